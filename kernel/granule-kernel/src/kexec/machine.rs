//! Facts about the machine that loading needs, recorded while the boot still has them: RAM, the ranges
//! that must not be overwritten, the device tree, and the kexec options of the command line.

#![allow(unsafe_code, reason = "the device tree where the boot loader put it")]

use crate::handover::Handover;
use crate::lock::Lock;
use crate::mm::firmware;
use crate::mm::kernel_tables::pointer;
use arrayvec::ArrayVec;
use granule::arch::{CpuFeatures, PageSize, PhysicalAddress};
use granule_boot::kaslr::Seed;
use granule_kcore::devicetree::memory::{self as tree, MOST_RANGES, Memory};
use granule_kcore::parameters::{KexecOptions, Parameters};
use granule_kexec::{MemoryMap, PhysRange};

/// As many as early memory has of one kind, and of two.
type Extents = ArrayVec<PhysRange, MOST_RANGES>;
type BothExtents = ArrayVec<PhysRange, { 2 * MOST_RANGES }>;

/// Facts about the machine, recorded at boot.
#[derive(Debug)]
pub(crate) struct MachineFacts {
    /// Features of the boot CPU.
    pub(super) cpu: CpuFeatures,
    /// RAM that the linear map covers.
    ram: Extents,
    /// RAM that firmware reserves or that is not mapped.
    reserved: BothExtents,
    /// RAM that must not be mapped; `reserved` includes it.
    pub(super) unmapped: Extents,
    /// The memory of the trace and the memory handed over on request: the next kernel gets both
    /// unchanged.
    kept: ArrayVec<PhysRange, 2>,
    /// The range of `kept` that the command line names.
    pub(super) persist: Option<PhysRange>,
    /// The memory for a crash kernel; `reserved` includes it.
    pub(crate) crash: Option<PhysRange>,
    /// The machine's device tree, if it lies in mapped RAM.
    tree: Option<PhysRange>,
    /// Whether the machine began at EL2 and this kernel runs at EL1.
    pub(super) returns_to_el2: bool,
    pub(crate) options: KexecOptions,
    /// The seed of this kernel's addresses, if they are randomised.
    pub(super) seed: Option<Seed>,
    /// Whether the storage had room for every range.
    is_whole: bool,
}

static MACHINE: spin::Once<MachineFacts> = spin::Once::new();
/// The memory that the tree reserves, while the facts are recorded. On the boot's stack it would
/// take a tenth of that.
static RESERVED: Lock<Memory> = Lock::new(Memory::new(PageSize::K4));

/// The recorded facts, if all of them fitted.
pub(crate) fn machine() -> Option<&'static MachineFacts> {
    MACHINE.get().filter(|machine| machine.is_whole)
}

/// Records the facts while the device tree is in its window and early memory has all RAM. The record is
/// marked incomplete if the ranges exceed the storage.
#[inline(never)]
pub(crate) fn begin(
    handover: &Handover,
    memory: &Memory,
    persist: Option<PhysRange>,
    crash: Option<PhysRange>,
    parameters: &Parameters<'_>,
) {
    // Built in place: copies on the way there would take much of the boot's stack.
    MACHINE.call_once(|| {
        let (entry, trace) = (&handover.entry, &handover.trace);
        // The next kernel may continue the trace, so the memory of the trace is used for nothing else.
        let trace = PhysRange::new(trace.start, trace.bytes);
        let kept = [persist, (trace.bytes != 0).then_some(trace)];
        let mut machine = MachineFacts {
            cpu: entry.features(),
            ram: Extents::new(),
            reserved: BothExtents::new(),
            unmapped: Extents::new(),
            kept: kept.into_iter().flatten().collect(),
            persist,
            crash,
            tree: None,
            returns_to_el2: entry.entry_el == 2 && entry.run_el == 1,
            options: parameters.kexec,
            seed: handover.kaslr.seed(),
            is_whole: true,
        };
        let mut fits = true;
        for bank in memory.banks().iter() {
            let bank = PhysRange::new(bank.start(), bank.end() - bank.start());
            fits &= machine.ram.try_push(bank).is_ok();
        }
        for range in memory.no_map().iter() {
            let range = PhysRange::new(range.start(), range.end() - range.start());
            fits &= machine.unmapped.try_push(range).is_ok();
            fits &= machine.reserved.try_push(range).is_ok();
        }
        // As coarse as in early memory, which leaves out the same memory then.
        let listed = RESERVED.with(|reserved| {
            let listed = firmware::with_tree(handover, |tree| {
                tree::each_reserved(tree, parameters.persist.clone(), |start, bytes| {
                    let range = PhysRange::new(start, bytes);
                    // Segments lie in RAM, so only what is reserved there takes room.
                    if machine.ram.iter().any(|bank| bank.overlaps(&range)) {
                        fits &= reserved.reserve_coarsely(start, bytes).is_ok();
                    }
                })
            });
            for range in reserved.reserved() {
                let range = PhysRange::new(range.start(), range.len());
                fits &= machine.reserved.try_push(range).is_ok();
            }
            listed
        });
        let tree = PhysRange::new(entry.dtb, handover.tree.bytes);
        fits &= crash.is_none_or(|crash| machine.reserved.try_push(crash).is_ok());
        let in_ram = machine.ram.iter().any(|bank| bank.holds(&tree));
        machine.tree = in_ram.then_some(tree);
        machine.is_whole = fits && listed.is_ok();
        machine
    });
}

impl MachineFacts {
    /// The machine's device tree and its place.
    pub(crate) fn tree(&self) -> Option<(PhysRange, &'static [u8])> {
        let place = self.tree?;
        let start = pointer(PhysicalAddress(place.start))?;
        // SAFETY: the tree lies in a bank that the linear map covers, where the boot refuses no-map
        // ranges. The range was reserved before the first allocation, and nothing writes it.
        let bytes = unsafe { core::slice::from_raw_parts(start.as_ptr(), place.bytes as usize) };
        Some((place, bytes))
    }

    /// Ranges that the next kernel must find unchanged, apart from the note.
    pub(super) fn kept(&self) -> &[PhysRange] {
        &self.kept
    }

    /// Calls `each` with all RAM that is mapped and not the crash kernel's: what its core contains.
    pub(super) fn each_dumped(&self, mut each: impl FnMut(PhysRange)) {
        for bank in &self.ram {
            let (mut at, end) = (bank.start, bank.start + bank.bytes);
            while at < end {
                let holes = self.unmapped.iter().chain(&self.crash);
                let next = holes.filter(|hole| hole.end().is_some_and(|last| last > at));
                let next = next.min_by_key(|hole| hole.start);
                let hole = next.copied().unwrap_or(PhysRange::new(end, 0));
                let until = hole.start.clamp(at, end);
                if until > at {
                    each(PhysRange::new(at, until - at));
                }
                at = hole.end().unwrap_or(end).max(until);
            }
        }
    }

    /// The memory that segments may use. `kept` includes the ranges of `Self::kept`.
    pub(super) fn memory_map<'a>(&'a self, page: PageSize, kept: &'a [PhysRange]) -> MemoryMap<'a> {
        MemoryMap {
            page,
            ram: &self.ram,
            reserved: &self.reserved,
            kept,
        }
    }
}

/// The map of a machine that has `memory` alone.
pub(super) const fn only(page: PageSize, memory: &PhysRange) -> MemoryMap<'_> {
    MemoryMap {
        page,
        ram: core::slice::from_ref(memory),
        reserved: &[],
        kept: &[],
    }
}
