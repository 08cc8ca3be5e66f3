//! What of the machine loading must know, noted while the boot still has it: RAM, what in it is not
//! this kernel's to overwrite, the device tree, and what the command line says of leaving.

use crate::handover::Handover;
use crate::mm::firmware;
use crate::mm::live::pointer;
use arrayvec::ArrayVec;
use granule::arch::{CpuFeatures, PageSize, PhysicalAddress};
use granule_kcore::devicetree::memory::{self as tree, MOST_RANGES, Memory};
use granule_kcore::parameters::{KexecOptions, Parameters};
use granule_kexec::{Extent, Ground};

type Extents = ArrayVec<Extent, MOST_RANGES>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Machine {
    /// What the boot CPU can do.
    pub(super) cpu: CpuFeatures,
    /// RAM that the linear map reaches.
    ram: Extents,
    /// What of it firmware has reserved, or is not mapped.
    reserved: Extents,
    /// What of it must not be mapped, which is reserved too.
    pub(super) unmapped: Extents,
    /// Records of a trace, and what is handed over by request: the next kernel finds both as they are.
    kept: ArrayVec<Extent, 2>,
    /// What of that the command line names.
    pub(super) persist: Option<Extent>,
    /// The machine's device tree, if it is in RAM that is mapped.
    tree: Option<Extent>,
    /// Whether the machine began at EL2 and this kernel runs at EL1.
    pub(super) returns_to_el2: bool,
    pub(crate) options: KexecOptions,
    /// Whether there was room for all of it.
    is_whole: bool,
}

static MACHINE: spin::Once<Machine> = spin::Once::new();

/// What was noted, if all of it could be.
pub(crate) fn machine() -> Option<&'static Machine> {
    MACHINE.get().filter(|machine| machine.is_whole)
}

/// Notes it all, while the device tree is in its window and early memory tells of RAM. Not if there
/// is more of it than there is room for.
// Its own frame, as that of the boot is under all that follows.
#[inline(never)]
pub(crate) fn begin(
    handover: &Handover,
    memory: &Memory,
    persist: Option<Extent>,
    parameters: &Parameters<'_>,
) {
    // Made where it stays: as one of several on the way there it would take much of the boot's stack.
    MACHINE.call_once(|| {
        let (entry, trace) = (&handover.entry, &handover.trace);
        // The trace goes on in the next kernel's, if that is told so: its memory is not for anything
        // else.
        let trace = Extent::new(trace.start, trace.bytes);
        let kept = [persist, (trace.bytes != 0).then_some(trace)];
        let mut machine = Machine {
            cpu: entry.features(),
            ram: Extents::new(),
            reserved: Extents::new(),
            unmapped: Extents::new(),
            kept: kept.into_iter().flatten().collect(),
            persist,
            tree: None,
            returns_to_el2: entry.entry_el == 2 && entry.run_el == 1,
            options: parameters.kexec,
            is_whole: true,
        };
        let mut fits = true;
        for bank in memory.banks().iter() {
            let bank = Extent::new(bank.start(), bank.end() - bank.start());
            fits &= machine.ram.try_push(bank).is_ok();
        }
        for range in memory.no_map().iter() {
            let range = Extent::new(range.start(), range.end() - range.start());
            fits &= machine.unmapped.try_push(range).is_ok();
            fits &= machine.reserved.try_push(range).is_ok();
        }
        let told = firmware::with_tree(handover, |tree| {
            tree::each_reserved(tree, parameters.persist.clone(), |start, bytes| {
                let range = Extent::new(start, bytes);
                fits &= machine.reserved.try_push(range).is_ok();
            })
        });
        let tree = Extent::new(entry.dtb, handover.tree.bytes);
        let in_ram = machine.ram.iter().any(|bank| bank.holds(&tree));
        machine.tree = in_ram.then_some(tree);
        machine.is_whole = fits && told.is_ok();
        machine
    });
}

impl Machine {
    /// The machine's device tree and where it is.
    pub(super) fn tree(&self) -> Option<(Extent, &'static [u8])> {
        let place = self.tree?;
        let start = pointer(PhysicalAddress(place.start))?;
        // SAFETY: in a bank that the linear map shows, where the boot refuses no-map ranges; reserved
        // since before anything was allocated, and nobody writes it.
        let bytes = unsafe { core::slice::from_raw_parts(start.as_ptr(), place.bytes as usize) };
        Some((place, bytes))
    }

    /// What the next kernel is to find as it is, but for the note.
    pub(super) fn kept(&self) -> &[Extent] {
        &self.kept
    }

    /// Where segments may be, with what is kept, in which `kept` of here is.
    pub(super) fn ground<'a>(&'a self, page: PageSize, kept: &'a [Extent]) -> Ground<'a> {
        Ground {
            page,
            ram: &self.ram,
            reserved: &self.reserved,
            kept,
        }
    }
}
