//! The compared facts of a tree, and the sums of many trees.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;

/// A range of addresses, by its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece(pub(super) u64, pub(super) u64);

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} to {:#x}", self.0, self.1)
    }
}

/// A UART: its address, its family, the distance of its registers as a power of two, and the bytes
/// of an access.
pub(super) type Console = (u64, &'static str, u32, u32);

/// The facts of one tree.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Nodes, properties, and the bytes of all values.
    pub(super) size: [usize; 3],
    /// RAM, exact to the byte, sorted and without overlaps.
    pub(super) banks: Vec<Piece>,
    /// Reserved ranges, in the tree's order, and those that must not be mapped.
    pub(super) reserved: Vec<Piece>,
    pub(super) no_map: Vec<Piece>,
    /// The affinity fields of the first CPU, which is assumed to boot.
    pub(super) boot_cpu: u64,
    /// The other CPUs that can be started: the affinity fields, and the release address unless PSCI
    /// starts the CPU.
    pub(super) others: Vec<(u64, Option<u64>)>,
    /// The paths of CPUs that cannot be started.
    pub(super) left_out: Vec<String>,
    /// The number of all CPUs.
    pub(super) cpus: usize,
    /// The method of PSCI calls.
    pub(super) psci: Option<String>,
    /// The console of `stdout-path`, or the reason why there is none.
    pub(super) console: Option<Result<Console, &'static str>>,
    /// Nodes of serial lines, each with its address for the CPU.
    pub(super) serial: Vec<(String, Option<u64>)>,
    /// The interrupt controller: its kind, the regions of its registers, and from 0 on the stride of its
    /// redistributors.
    pub(super) intc: Option<Result<(&'static str, Vec<Piece>), String>>,
    /// The interrupts of the timer at EL1 and at EL2.
    pub(super) timer: [Option<u32>; 2],
}

impl Facts {
    fn lines(&self) -> Vec<String> {
        let [nodes, properties, bytes] = self.size;
        let mut lines = vec![format!(
            "{nodes} nodes, {properties} properties, {bytes} bytes of values"
        )];
        let pieces = [
            ("bank", &self.banks),
            ("reserved", &self.reserved),
            ("no-map", &self.no_map),
        ];
        for (what, pieces) in pieces {
            lines.extend(pieces.iter().map(|piece| format!("{what} {piece}")));
        }
        lines.push(format!("{} CPUs", self.cpus));
        let others = self.others.iter();
        lines.extend(others.map(|(cpu, release)| format!("CPU {cpu:#x} by {release:x?}")));
        lines.extend(self.left_out.iter().map(|it| format!("{it} not started")));
        lines.push(format!("psci {:?}", self.psci));
        lines.push(format!("console {:x?}", self.console));
        let serial = self.serial.iter();
        lines.extend(serial.map(|(node, at)| format!("{node} at {at:x?}")));
        lines.push(format!("interrupt controller {:x?}", self.intc));
        lines.push(format!("timer {:?}", self.timer));
        lines
    }

    pub(super) fn totals(&self, hash: String) -> Totals {
        // Trees of test machines reserve ranges as large as the address space.
        let bytes = |pieces: &[Piece]| {
            let bytes = pieces.iter().map(|it| it.1 - it.0);
            bytes.fold(0, u64::saturating_add)
        };
        let released = self.others.iter().filter(|it| it.1.is_some()).count();
        let usable = usize::from(matches!(self.console, Some(Ok(_))));
        let count = |number: usize| number as u64;
        Totals {
            different: BTreeSet::from([hash]),
            counts: [
                ("banks", count(self.banks.len())),
                ("bytes of banks", bytes(&self.banks)),
                ("reserved ranges", count(self.reserved.len())),
                ("bytes reserved", bytes(&self.reserved)),
                ("CPUs", count(self.cpus)),
                ("CPUs with a release address", count(released)),
                ("CPUs that cannot be started", count(self.left_out.len())),
                ("consoles", count(self.console.iter().len())),
                ("usable consoles", count(usable)),
                ("serial lines", count(self.serial.len())),
                (
                    "interrupt controllers",
                    count(self.intc.iter().flatten().count()),
                ),
            ]
            .into(),
        }
    }
}

/// Returns the first line in which both readings differ.
pub(super) fn difference(ours: &Facts, theirs: &Facts) -> Option<String> {
    let (ours, theirs) = (ours.lines(), theirs.lines());
    let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
    let line = |lines: &[String]| {
        lines
            .get(at)
            .cloned()
            .unwrap_or_else(|| "nothing".to_owned())
    };
    Some(format!(
        "ours: {}, dtoolkit's: {}",
        line(&ours),
        line(&theirs)
    ))
}

/// Sums of trees.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    different: BTreeSet<String>,
    counts: Vec<(&'static str, u64)>,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.different.extend(other.different);
        if self.counts.is_empty() {
            self.counts = other.counts;
            return;
        }
        for ((_, sum), (_, one)) in self.counts.iter_mut().zip(other.counts) {
            *sum = sum.saturating_add(one);
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of them different", self.different.len())?;
        let mut counts = self.counts.iter();
        counts.try_for_each(|(what, count)| write!(f, ", {what}: {count}"))
    }
}
