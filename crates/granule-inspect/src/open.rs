//! From a source to its memory and its trees. This file decides which source to trust: the user's
//! options first, then registers, then Linux's VMCOREINFO, then a guess.

use crate::running::{Described, Fit, kernel_pcs, running};
use crate::source::{self, Memory, OpenError, Registers, Source};
use crate::tree::{Origin, Shape, Tree};
use crate::vmcoreinfo::{self, Vmcoreinfo};
use crate::{guess, linux, registers};
use granule::arch::PageSize;
use granule::arch::registers::Mair;
use std::path::{Path, PathBuf};

/// The user's settings for a source that does not contain them itself.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The address of the first byte of a raw image.
    pub base: Option<u64>,
    /// The exception level of the registers below, 1 to 3; the default is 1.
    pub el: Option<u8>,
    /// Whether EL2 runs an operating system's kernel (HCR_EL2.E2H), with both halves.
    pub vhe: bool,
    /// TTBR0 of that exception level.
    pub ttbr0: Option<u64>,
    /// TTBR1 of that exception level.
    pub ttbr1: Option<u64>,
    /// TCR of that exception level.
    pub tcr: Option<u64>,
    /// MAIR of that exception level.
    pub mair: Option<u64>,
    pub vttbr: Option<u64>,
    pub vtcr: Option<u64>,
    /// HCR_EL2, of which FWB gives stage 2's memory types their meaning.
    pub hcr: Option<u64>,
    /// ID_AA64MMFR1_EL1, of which XNX gives stage 2's execute permissions their meaning.
    pub mmfr1: Option<u64>,
    /// A Linux kernel's System.map, for processes of a dump whose kernel does not list its data.
    pub symbols: Option<PathBuf>,
}

impl Options {
    /// The registers that these options are, or `None` if they name no root.
    fn registers(&self) -> Result<Option<Registers>, OpenError> {
        let missing = |what: &str, other: &str| {
            Err(OpenError(format!(
                "{what} alone does not say how its tables are read: give {other} too (--{})",
                other.to_ascii_lowercase()
            )))
        };
        let el = self.el.unwrap_or(1);
        if !(1..=3).contains(&el) {
            return Err(OpenError(format!(
                "exception level {el} has no tables of its own; give 1, 2 or 3"
            )));
        }
        let both_halves =
            el == 1 || el == 2 && (self.vhe || self.hcr.unwrap_or(0) & registers::E2H != 0);
        let vhe = if el == 2 { ", or --vhe" } else { "" };
        for (is_wrong, why) in [
            (
                self.vhe && el != 2,
                "VHE is of EL2: give --el 2 with --vhe".to_owned(),
            ),
            (
                self.ttbr1.is_some() && !both_halves,
                format!("EL{el} has no TTBR1: give --ttbr0{vhe}"),
            ),
            (
                self.tcr.is_some() && self.ttbr0.or(self.ttbr1).is_none(),
                "TCR alone names no root: give TTBR0 or TTBR1 too (--ttbr0, --ttbr1)".to_owned(),
            ),
            (
                self.vtcr.is_some() && self.vttbr.is_none(),
                "VTCR alone names no root: give VTTBR too (--vttbr)".to_owned(),
            ),
        ] {
            if is_wrong {
                return Err(OpenError(why));
            }
        }
        let mut cpu = Registers::default();
        let mut set = |name: String, value: Option<u64>| {
            value.into_iter().for_each(|value| cpu.set(&name, value));
        };
        let half = self.ttbr0.or(self.ttbr1);
        if half.is_some() {
            if self.tcr.is_none() {
                return missing("TTBR", "TCR");
            }
            set(format!("ttbr0_el{el}"), self.ttbr0);
            set(format!("ttbr1_el{el}"), self.ttbr1);
            set(format!("tcr_el{el}"), self.tcr);
            set(format!("mair_el{el}"), self.mair);
        }
        let mut hcr = self.hcr.unwrap_or(0);
        if self.vhe && el == 2 {
            hcr |= registers::E2H | registers::TGE;
        }
        if self.vttbr.is_some() {
            if self.vtcr.is_none() {
                return missing("VTTBR", "VTCR");
            }
            set("vttbr_el2".into(), self.vttbr);
            set("vtcr_el2".into(), self.vtcr);
            set("id_aa64mmfr1_el1".into(), self.mmfr1);
            hcr |= granule::arch::Stage2Geometry::HCR_VM;
        }
        set("hcr_el2".into(), Some(hcr));
        Ok(half.or(self.vttbr).map(|_| cpu))
    }
}

/// The text of a file that a user names.
fn text(path: &Path) -> Result<String, OpenError> {
    let bytes = std::fs::read(path);
    let bytes = bytes.map_err(|error| OpenError(format!("{}: {error}", path.display())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A source whose trees are known.
#[expect(missing_debug_implementations, reason = "the memory has none")]
pub struct Opened {
    /// Its physical memory.
    pub memory: Box<dyn Memory>,
    /// Its trees, the kernel's first.
    pub trees: Vec<Tree>,
    /// Notes for the user about both, a line each.
    pub notes: Vec<String>,
}

/// Opens a source and finds its trees.
/// Fails if it cannot be read, or no tree is found in it.
pub fn open(source: &Source, options: &Options) -> Result<Opened, OpenError> {
    open_telling(source, options, &mut |_, _| {})
}

/// The looks at all of a source's memory: for VMCOREINFO, and for a root table of each page size.
const LOOKS: u64 = 1 + PageSize::ALL.len() as u64;

/// As [`open`]. While the memory is searched, `progress` is called with the bytes that were looked at, and
/// with the most that will be.
pub fn open_telling(
    source: &Source,
    options: &Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Opened, OpenError> {
    let given = options.registers()?;
    let symbols = options.symbols.as_deref().map(text).transpose()?;
    let (memory, facts) = source::open(source, options.base)?;
    let mut notes = facts.notes;
    // Why there are no trees: the first that was missing is the cause.
    let mut missing: Vec<String> = facts.missing.into_iter().collect();
    let mut done = 0_u64;
    let all = memory
        .searchable()
        .iter()
        .fold(0_u64, |all, range| {
            all.saturating_add(range.end - range.start)
        })
        .saturating_mul(LOOKS);
    let mut looked = |bytes: u64| {
        done = done.saturating_add(bytes);
        progress(done, all);
    };
    let mut trees = Vec::new();
    for (cpus, origin) in [
        (given.as_slice(), Origin::Options),
        (facts.cpus.as_slice(), Origin::Registers),
    ] {
        if trees.is_empty() && !cpus.is_empty() {
            let (found, said) = registers::trees(cpus, origin);
            if let (true, Origin::Options, Some(why)) = (found.is_empty(), origin, said.first()) {
                return Err(OpenError(why.clone()));
            }
            if found.is_empty() {
                missing.extend(said.iter().cloned());
            }
            trees = found;
            notes.extend(said);
        }
    }
    if trees.is_empty() {
        let pcs = kernel_pcs(&facts.cpus);
        let highest = memory.ranges().last().map_or(0, |last| last.end);
        let mut describe = |place, text: String| match Vmcoreinfo(&text).kernel(highest) {
            Ok(tree) => Some(Described { place, text, tree }),
            Err(why) => {
                missing.push(why.clone());
                notes.push(why);
                None
            }
        };
        let noted = facts.vmcoreinfo.and_then(|text| describe(None, text));
        let mut kernels: Vec<_> = noted.iter().cloned().collect();
        let refuted = |kernel: &Described| matches!(kernel.fit(&*memory, &pcs), Fit::Refuted(_));
        if kernels.iter().all(refuted) {
            for (place, text) in vmcoreinfo::find(&*memory, &mut looked) {
                if kernels.iter().all(|other| other.text != text) {
                    kernels.extend(describe(Some(place), text));
                }
            }
        }
        let (kernel, line) = running(&*memory, kernels, &pcs);
        match (&line, kernel.as_ref().and_then(|kernel| kernel.place)) {
            (Some(line), _) => notes.push(line.clone()),
            (None, Some(place)) => {
                notes.push(format!("VMCOREINFO was found in the memory at {place}"))
            }
            (None, None) => {}
        }
        missing.extend(line);
        let mut guessed = None;
        if kernel.is_none() {
            guessed = guess::kernel(&*memory, &facts.cpus, &mut looked);
        }
        if let Some((tree, why)) = guessed {
            trees.push(tree);
            notes.push(why);
        } else if let Some(Described { text, tree, .. }) = kernel.or_else(|| {
            let noted = noted?;
            notes.push(
                "the kernel of the notes is shown all the same: nothing else was found".into(),
            );
            Some(noted)
        }) {
            let info = Vmcoreinfo(&text);
            match linux::processes(&*memory, &tree, info, symbols.as_deref()) {
                _ if info.is_granule() => {
                    let release = info.get("OSRELEASE").unwrap_or_default().escape_debug();
                    notes.push(format!(
                        "the kernel is Granule, {release}; its programs are not looked for"
                    ));
                }
                Ok((processes, said)) => {
                    trees = processes;
                    notes.extend(said);
                }
                Err(why) => notes.push(format!("processes are not read: {why}")),
            }
            trees.insert(0, tree);
        }
    }
    if trees.is_empty() {
        let why = missing.into_iter().next();
        let why = why.unwrap_or_else(|| match memory.searchable().is_empty() {
            true => "no register of a CPU has a root".into(),
            false => {
                "no register has a root, there is no VMCOREINFO, and no page looks like a root"
                    .into()
            }
        });
        return Err(OpenError(format!(
            "no page tables were found ({why}); give TTBR1 or TTBR0, and TCR (--ttbr1, --ttbr0, --tcr)"
        )));
    }
    if let Some(mair) = options.mair {
        for tree in &mut trees {
            if matches!(tree.shape, Shape::Stage1(_)) {
                tree.memory_types = tree.memory_types.or(Some(Mair(mair)));
            }
        }
    }
    Ok(Opened {
        memory,
        trees,
        notes,
    })
}

#[cfg(test)]
mod tests;
