//! Which of the kernels that describe themselves runs. A text that a search finds can be that of a kernel that
//! left by kexec, or of a guest; its tables are then still plausible, and do not map where the CPUs execute.

use crate::linux::Space;
use crate::source::{Memory, Registers};
use crate::tree::Tree;
use crate::vmcoreinfo::{MOST_TEXTS, Vmcoreinfo};
use granule::arch::PhysicalAddress;
use std::fmt;

/// A kernel that describes itself.
#[derive(Clone, Debug)]
pub struct Described {
    /// The place of its text in the memory, or `None` if the source has the text in its notes.
    pub place: Option<PhysicalAddress>,
    pub text: String,
    /// The tree of its half.
    pub tree: Tree,
}

/// The most bytes of a kernel's name that are shown.
const MOST_NAME: usize = 64;

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Vmcoreinfo(&self.text).get("OSRELEASE").unwrap_or_default();
        let name: String = name.chars().take(MOST_NAME).collect();
        write!(
            f,
            "{} with its root at {}",
            name.escape_debug(),
            self.tree.root
        )?;
        match self.place {
            Some(place) => write!(f, " (VMCOREINFO at {place})"),
            None => f.write_str(" (VMCOREINFO of the notes)"),
        }
    }
}

/// How a kernel's tables fit where the CPUs execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// They map no CPU's program counter, this one neither.
    Refuted(u64),
    /// No CPU executes in the kernel's half, or a table is missing.
    Unknown,
    /// They map so many CPUs' program counters. Those of CPUs that run guests are their guests'.
    Maps(usize),
}

/// The program counters in the upper half, where kernels run.
pub fn kernel_pcs(cpus: &[Registers]) -> Vec<u64> {
    let pcs = cpus.iter().filter_map(|cpu| cpu.get("pc"));
    pcs.filter(|pc| pc >> 63 != 0).collect()
}

impl Described {
    /// How its tables fit these program counters.
    pub fn fit(&self, memory: &dyn Memory, pcs: &[u64]) -> Fit {
        let Some(space) = Space::new(memory, &self.tree) else {
            return Fit::Unknown;
        };
        let mapped: Vec<_> = pcs.iter().map(|&pc| space.query(pc)).collect();
        match mapped
            .iter()
            .filter(|found| matches!(found, Ok(Some(_))))
            .count()
        {
            0 if mapped.iter().any(Result::is_err) => Fit::Unknown,
            0 => pcs.first().map_or(Fit::Unknown, |&pc| Fit::Refuted(pc)),
            count => Fit::Maps(count),
        }
    }

    /// Whether its tables map its root where it describes it. Those of a dead kernel are overwritten some time.
    fn maps_its_root(&self, memory: &dyn Memory) -> bool {
        let symbol = Vmcoreinfo(&self.text).symbol("swapper_pg_dir");
        let root = Space::new(memory, &self.tree).zip(symbol);
        // The root of some kernels is the end of what the symbol names.
        let found = root.and_then(|(space, symbol)| space.physical(symbol).ok());
        found.is_some_and(|found| {
            self.tree.root.0.wrapping_sub(found.0) < self.tree.geometry().page_size().bytes()
        })
    }
}

/// Returns the kernel that runs, if none of the CPUs' program counters refutes it, and a line about the others.
pub fn running(
    memory: &dyn Memory,
    kernels: Vec<Described>,
    pcs: &[u64],
) -> (Option<Described>, Option<String>) {
    let judged: Vec<_> = kernels
        .into_iter()
        .map(|kernel| {
            (
                (kernel.fit(memory, pcs), kernel.maps_its_root(memory)),
                kernel,
            )
        })
        .collect();
    let best = judged.iter().map(|(rank, _)| *rank).max();
    let best = best.filter(|(fit, _)| !matches!(fit, Fit::Refuted(_)));
    let used = best.and_then(|best| judged.iter().position(|(rank, _)| *rank == best));
    let alike = judged
        .iter()
        .filter(|(rank, _)| Some(*rank) == best)
        .count();
    let lines: Vec<_> = judged
        .iter()
        .enumerate()
        .map(|(at, ((fit, _), kernel))| match fit {
            _ if used == Some(at) => format!("{kernel} is used"),
            Fit::Refuted(pc) => {
                format!("{kernel} is passed over, because its tables do not map {pc:#x}, where a CPU executes")
            }
            Fit::Unknown => format!("{kernel} is not used"),
            Fit::Maps(count) => format!("{kernel} is not used, and maps {count} of the CPUs' program counters"),
        })
        .collect();
    let mut line = match (lines.len(), used) {
        (0, _) | (1, Some(_)) => None,
        _ => Some(format!(
            "kernels that describe themselves: {}",
            lines.join("; ")
        )),
    };
    if let Some(line) = &mut line {
        if alike > 1 {
            *line += "; nothing tells them apart: for another give --ttbr1 and --tcr";
        }
        if lines.len() >= MOST_TEXTS {
            *line += &format!("; the search ended at {MOST_TEXTS}");
        }
    }
    let used = used.and_then(|at| judged.into_iter().nth(at));
    (used.map(|(_, kernel)| kernel), line)
}
