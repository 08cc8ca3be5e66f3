//! The check of the code that runs with the MMU off. From the entry it follows every branch, call and taken
//! address, and reports instructions that must not run there.
//!
//! With the MMU off all data accesses are Device-nGnRnE (Arm ARM RPPDBS): unaligned accesses and DC ZVA
//! fault, exclusives and atomics have no guaranteed behaviour, and there are no vectors yet that could
//! report a fault. Such a fault is a silent hang, so the check reads the finished ELF file, after all
//! inlining. The tables below name the symbols where the check begins and stops; decoding is in `a64`, the
//! file in `elf`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::a64::{self, Address, Flow};
use crate::elf::Program;

/// A symbol, and the reason for its row in a table.
pub(crate) type Entry = (&'static str, &'static str);

/// The symbols at which the check begins and stops, and the exceptions that it allows. A row without effect
/// is a finding too, so that the tables cannot outlive the code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The entries of the code that runs with the MMU off.
    pub(crate) roots: &'static [Entry],
    /// The symbols that turn the MMU on: neither their code nor the code after a call to them is checked.
    pub(crate) stops: &'static [Entry],
    /// Functions that may contain `BR` or `BLR`, with the reason why their targets are bounded.
    pub(crate) indirect: &'static [Entry],
    /// Whether the code calls firmware, which is not part of the program: every function may contain `BLR`, and none
    /// may use x18, which belongs to the firmware (UEFI specification, binding for AArch64: the platform's register).
    pub(crate) calls_firmware: bool,
    /// Symbols whose address is used as a number (the end of a section) and never jumped to.
    pub(crate) bounds: &'static [Entry],
    /// Whether the code may read words that relocation has written. It may only while these hold addresses
    /// at which the code runs now.
    pub(crate) relocated: bool,
}

/// The reference kernel's rules.
#[rustfmt::skip]
pub(crate) const KERNEL: Rules = Rules {
    roots: &[
        ("_start", "the Image header's branch, entered by the boot loader"),
        ("mmu_off_main", "Rust's first function, called by the entry assembly"),
        ("secondary_entry", "where the firmware starts every CPU but the first"),
    ],
    stops: &[
        ("enable_mmu_and_jump",
            "sets SCTLR.M; its few instructions run from the identity map, use no memory and are reviewed by hand"),
        ("kmain_entry", "its virtual address is handed to enable_mmu_and_jump"),
    ],
    indirect: &[
        ("el2_stub_sync", "the restart call jumps to an address that its caller gives, in a program of its own"),
    ],
    calls_firmware: false,
    bounds: &[
        ("_start", "the image's address as a number, by which the entry code relocates; no vectors are there"),
    ],
    relocated: true,
};

/// The rules for the code of secondary CPUs, applied in a second pass. By then the image was relocated for
/// its virtual address, so a pointer in it (a string's, a vtable, a table of functions) leads nowhere while
/// the MMU is off.
#[rustfmt::skip]
pub(crate) const SECONDARY: Rules = Rules {
    roots: &[("secondary_entry", "where the firmware starts every CPU but the first")],
    stops: &[("enable_mmu_and_jump", "sets SCTLR.M; from there on virtual addresses are right")],
    bounds: &[],
    relocated: false,
    ..KERNEL
};

/// The rules for the EFI stub, applied in a third pass. It runs with the firmware's MMU on, but it too must
/// not panic: the kernel's panic would write to devices that belong to the firmware. At its end it turns the
/// MMU off, so the other rules hold there.
#[rustfmt::skip]
pub(crate) const EFI: Rules = Rules {
    roots: &[("efi_entry", "the PE header's entry, called by firmware or a boot loader")],
    stops: &[],
    indirect: &[("efi_leave", "jumps to the copy of the image")],
    calls_firmware: true,
    bounds: &[("_start", "the address of the loaded image")],
    ..KERNEL
};

/// Parts of demangled names that only panicking or formatting code has. Formatting calls through pointers
/// in data, which are not relocated for every address that the code runs at, and pulls in code that was not
/// written for Device memory.
const PANIC_OR_FORMAT: &[&str] = &[
    "core::panicking",
    "core::fmt",
    "rust_begin_unwind",
    "rust_panic",
    "panic_impl",
    "panic_fmt",
];

/// The result of the check.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) functions: usize,
    pub(crate) instructions: usize,
    /// The findings, one line each, in the order of discovery.
    pub(crate) findings: Vec<String>,
}

pub(crate) fn check(program: &Program, rules: &Rules) -> Report {
    let mut checker = Checker {
        program,
        rules,
        visits: Vec::new(),
        entered: BTreeSet::new(),
        used: BTreeSet::new(),
        words: BTreeSet::new(),
        report: Report::default(),
    };
    let mut next = 0;
    for (root, why) in rules.roots {
        match program.named(root) {
            Some(symbol) => checker.enter(symbol.address, None),
            None => checker.report.findings.push(format!(
                "mmu-off: symbol {root} ({why}) is not in the ELF file; it must not be inlined \
                 or stripped, or the table in tools/xtask/src/mmu_off.rs is out of date"
            )),
        }
        // One root after the other, so that each path in a finding begins at a CPU's entry.
        while next < checker.visits.len() {
            checker.visit(next);
            next += 1;
        }
    }
    for (table, entries) in [
        ("stops", rules.stops),
        ("indirect", rules.indirect),
        ("bounds", rules.bounds),
    ] {
        for (name, _) in entries {
            if !checker.used.contains(&(table, *name)) {
                checker.report.findings.push(format!(
                    "mmu-off: table `{table}` names {name}, but the code that was followed never \
                     needs it; take it out of tools/xtask/src/mmu_off.rs or find why it is not reached"
                ));
            }
        }
    }
    checker.report.functions = checker.visits.len();
    checker.report.instructions = checker.words.len();
    checker.report
}

/// A function (or a place inside one) that control may reach.
#[derive(Debug)]
struct Visit {
    entry: u64,
    parent: Option<usize>,
}

/// Registers that may hold the page of an ADRP here: (register, page).
type Pages = BTreeSet<(u8, u64)>;

struct Checker<'a> {
    program: &'a Program,
    rules: &'a Rules,
    visits: Vec<Visit>,
    entered: BTreeSet<u64>,
    used: BTreeSet<(&'static str, &'static str)>,
    words: BTreeSet<u64>,
    report: Report,
}

impl Checker<'_> {
    fn enter(&mut self, entry: u64, parent: Option<usize>) {
        if self.entered.insert(entry) {
            self.visits.push(Visit { entry, parent });
        }
    }

    /// The names from a root down to this visit.
    fn path(&self, visit: usize) -> String {
        let mut names = Vec::new();
        let mut at = Some(visit);
        while let Some(index) = at {
            let visit = &self.visits[index];
            names.push(self.program.describe(visit.entry));
            at = visit.parent;
        }
        names.reverse();
        names.join(" > ")
    }

    fn finding(&mut self, visit: usize, pc: u64, what: &str) {
        let place = self.program.describe(pc);
        let word = self.program.word(pc).unwrap_or(0);
        let path = self.path(visit);
        self.report.findings.push(format!(
            "mmu-off: {what}: {place} at {pc:#x}, word {word:#010x}, path {path}"
        ));
    }

    fn in_table(&mut self, table: &'static str, entries: &'static [Entry], at: u64) -> bool {
        let named = entries
            .iter()
            .find(|(name, _)| self.program.is_named_at(at, name));
        if let Some((name, _)) = named {
            self.used.insert((table, *name));
        }
        named.is_some()
    }

    fn may_be_indirect(&mut self, function: u64) -> bool {
        self.in_table("indirect", self.rules.indirect, function)
    }

    /// Control goes from `pc` to `target` in another function. True if it returns to code that still runs
    /// with the MMU off.
    fn leave(&mut self, visit: usize, pc: u64, target: u64, how: &str) -> bool {
        if self.in_table("stops", self.rules.stops, target) {
            return false;
        }
        let what = match self.program.owner(target) {
            None => format!("{how} {target:#x}, which is outside the code"),
            Some((owner, _)) if PANIC_OR_FORMAT.iter().any(|part| owner.contains(part)) => {
                format!("{how} panic or formatting code ({owner})")
            }
            Some(_) => {
                self.enter(target, Some(visit));
                return true;
            }
        };
        self.finding(visit, pc, &what);
        false
    }

    /// Follows one function to a fixed point of its registers' possible values, so that an ADRP hoisted out
    /// of a loop still meets its ADD.
    fn visit(&mut self, index: usize) {
        let entry = self.visits[index].entry;
        let Some((name, range)) = self.program.owner(entry) else {
            return;
        };
        let name = name.to_owned();
        let mut states: BTreeMap<u64, Pages> = BTreeMap::new();
        let mut work: VecDeque<(u64, Pages)> = VecDeque::from([(entry, Pages::new())]);
        let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
        let mut sets_vectors = false;
        let mut judged = BTreeSet::new();
        while let Some((pc, incoming)) = work.pop_front() {
            let known = states.contains_key(&pc);
            let state = states.entry(pc).or_default();
            let before = state.len();
            state.extend(incoming);
            if known && state.len() == before {
                continue;
            }
            let mut out = state.clone();
            let Some(word) = self.program.word(pc) else {
                self.finding(index, pc, "control runs out of the code");
                continue;
            };
            let first_time = judged.insert(pc);
            if first_time {
                self.words.insert(pc);
                if self.program.is_data(pc) {
                    self.finding(index, pc, "control runs into data");
                    continue;
                }
                if let Some(hazard) = a64::hazard(word) {
                    self.finding(index, pc, hazard);
                }
                if self.rules.calls_firmware && a64::has_as_operand(word, 18) {
                    self.finding(index, pc, "uses x18, which is the firmware's");
                }
                sets_vectors |= a64::writes_vector_base(word);
                if !self.rules.relocated && self.reaches_relocated(pc, word) {
                    let what = "reaches for relocated data, which holds virtual addresses by now";
                    self.finding(index, pc, what);
                }
            }
            for target in track(pc, word, &mut out) {
                // A label for ERET or for a jump by register, if it is in this function.
                let is_new = taken.insert(target, pc).is_none() && range.contains(&target);
                let is_code = target.is_multiple_of(4) && !self.program.is_data(target);
                if is_new && is_code && target != range.start {
                    work.push_back((target, Pages::new()));
                }
            }
            let mut successors = Vec::new();
            match a64::flow(pc, word) {
                Flow::Next => successors.push(pc + 4),
                Flow::Jump(target) => successors.push(target),
                Flow::Branch(target) => successors.extend([target, pc + 4]),
                Flow::Call(target) => {
                    // Calls clobber x0 to x18 and x30.
                    out.retain(|(reg, _)| (19..30).contains(reg));
                    let local = range.contains(&target);
                    if local {
                        successors.push(target);
                    }
                    // A call at the very end of a function does not return.
                    let returns = local || self.leave(index, pc, target, "calls");
                    if returns && range.contains(&(pc + 4)) {
                        successors.push(pc + 4);
                    }
                }
                Flow::IndirectJump(register) => {
                    if self.is_jump_table(pc, register, &range) {
                        successors.extend(range.clone().step_by(4));
                        successors.retain(|pc| !self.program.is_data(*pc));
                    } else if !self.may_be_indirect(range.start) && first_time {
                        let what = format!("jumps through x{register}, {name} is not allowed to");
                        self.finding(index, pc, &what);
                    }
                }
                Flow::IndirectCall(register) => {
                    let is_allowed = self.rules.calls_firmware || self.may_be_indirect(range.start);
                    if !is_allowed && first_time {
                        let what = format!("calls through x{register}, {name} is not allowed to");
                        self.finding(index, pc, &what);
                    }
                    successors.push(pc + 4);
                }
                Flow::End => {}
            }
            for successor in successors {
                if range.contains(&successor) {
                    work.push_back((successor, out.clone()));
                } else if first_time {
                    self.leave(index, pc, successor, "continues in");
                }
            }
        }
        for (target, pc) in taken {
            self.take_address(index, pc, target, &range, sets_vectors);
        }
    }

    /// If a register is loaded with an address in code, that counts as a possible call.
    fn take_address(
        &mut self,
        index: usize,
        pc: u64,
        target: u64,
        range: &Range<u64>,
        sets_vectors: bool,
    ) {
        if !self.program.is_code(target)
            || self.program.is_data(target)
            || !target.is_multiple_of(4)
            || self.in_table("bounds", self.rules.bounds, target)
        {
            return;
        }
        if !range.contains(&target) {
            self.leave(index, pc, target, "takes the address of");
        }
        // Vectors: 16 entries of 128 bytes, the table aligned to 2 KiB.
        if sets_vectors && target.is_multiple_of(0x800) {
            for slot in 1..16 {
                let entry = target + slot * 0x80;
                if self.program.is_code(entry) {
                    self.leave(index, pc, entry, "sets vectors that reach");
                }
            }
        }
    }

    /// Whether the word computes an address in relocated data, or loads from there. The page of an ADRP
    /// counts as a whole, because such data has pages of its own.
    fn reaches_relocated(&self, pc: u64, word: u32) -> bool {
        let literal = |pc| a64::literal(pc, word).map(|target| (target, 8));
        let reached = match a64::address(pc, word) {
            Some(Address::Whole(_, target)) => Some((target, 1)),
            Some(Address::Page(_, page)) => Some((page, 0x1000)),
            Some(Address::Add(..)) => None,
            None => literal(pc),
        };
        reached.is_some_and(|(start, bytes)| self.program.is_relocated(start, bytes))
    }

    /// Whether a `BR` ends a jump table in the form that LLVM writes: the target is the sum of two
    /// registers, and its base is a label in this function. The whole function is checked then, which
    /// covers every possible entry of the table.
    fn is_jump_table(&self, pc: u64, register: u8, range: &Range<u64>) -> bool {
        let word = |pc| self.program.word(pc);
        let is_label = |pc| match word(pc).and_then(|word| a64::address(pc, word)) {
            Some(Address::Whole(_, target)) => range.contains(&target),
            _ => false,
        };
        let before = pc.checked_sub(4).and_then(word).unwrap_or(0);
        a64::adds_registers_into(before, register) && range.clone().step_by(4).any(is_label)
    }
}

/// Follows ADR, ADRP and ADD through one instruction; returns the completed addresses.
fn track(pc: u64, word: u32, pages: &mut Pages) -> Vec<u64> {
    let Some(address) = a64::address(pc, word) else {
        return Vec::new();
    };
    let (Address::Whole(rd, _) | Address::Page(rd, _) | Address::Add(rd, ..)) = address;
    let made = match address {
        Address::Whole(_, target) => vec![target],
        Address::Page(..) => Vec::new(),
        Address::Add(_, rn, imm) => {
            let made = pages.iter().filter(|(reg, _)| *reg == rn);
            made.map(|(_, page)| page.wrapping_add(imm)).collect()
        }
    };
    pages.retain(|(reg, _)| *reg != rd);
    if let Address::Page(_, page) = address {
        pages.insert((rd, page));
    }
    made
}

#[cfg(test)]
mod tests;
