//! What the entry code did before the command line could be read, and what it does after Rust
//! has returned to it: known sequences, recorded by the code that runs between the two.
//!
//! Each function here speaks of one file in `head`, and changes with it.

use super::early::Early;
use crate::handover::{EntryInfo, MmuConfig};
use crate::head::{SCTLR_EL2_MMU_OFF, SCTLR_MMU_OFF, SCTLR_MMU_ON};
use crate::image;
use crate::mmu_off::record;
use granule::arch::PhysicalAddress;
use granule::trace::{Barrier, Event, System};

impl Early {
    fn barrier(&self, barrier: Barrier) {
        self.push(Event::Barrier(barrier));
    }

    fn system(&self, system: System, value: u64) {
        self.push(Event::System(system, value));
    }

    /// A routine of `head::cache`.
    fn lines(&self, instruction: System, start: u64, bytes: u64) {
        self.push(Event::Lines {
            instruction,
            start,
            bytes,
        });
        self.barrier(Barrier::DSB_SY);
    }

    fn data(&self, start: u64, bytes: u64) {
        self.push(Event::Data {
            start: PhysicalAddress(start),
            bytes,
        });
    }

    /// `mmu_off::record` changes the boot record, which cleans it before and after its state.
    fn boot_record(&self) {
        let record = record::range();
        let bytes = record.end - record.start;
        self.data(record.start, bytes);
        self.lines(System::DC_CVAC, record.start, bytes);
        self.lines(System::DC_CVAC, record.start, bytes);
    }

    /// `head::entry` up to `mmu_off_main`, and that up to the choice of a page size.
    pub(crate) fn entered(&self, entry: &EntryInfo, tree_bytes: u64) {
        let at_el2 = entry.entry_el == 2;
        if at_el2 {
            self.system(System::SCTLR_EL2, SCTLR_EL2_MMU_OFF);
        } else {
            self.system(System::SCTLR_EL1, SCTLR_MMU_OFF);
        }
        self.barrier(Barrier::ISB);
        // After VBAR.
        self.barrier(Barrier::ISB);
        let written = image::written();
        let start = entry.load + written.start;
        self.lines(System::DC_CIVAC, start, written.end - written.start);
        let bss = image::bss();
        self.data(entry.load + bss.start, bss.end - bss.start);
        self.relocated(entry);
        if at_el2 {
            self.left_el2(entry.vhe == 1);
        }
        self.barrier(Barrier::ISB);
        self.boot_record();
        self.lines(System::DC_CVAC, entry.dtb, 8);
        self.lines(System::DC_CVAC, entry.dtb, tree_bytes);
    }

    /// `head::el2`.
    fn left_el2(&self, vhe: bool) {
        if vhe {
            self.barrier(Barrier::ISB);
            self.system(System::SCTLR_EL1, SCTLR_MMU_OFF);
            self.barrier(Barrier::ISB);
            self.system(System::ALLE2, 0);
        } else {
            self.barrier(Barrier::ISB);
            self.system(System::ALLE1, 0);
            self.system(System::ALLE2, 0);
        }
        self.barrier(Barrier::DSB_NSH);
        self.barrier(Barrier::ISB);
        if !vhe {
            self.system(System::SCTLR_EL1, SCTLR_MMU_OFF);
        }
    }

    /// `head::relocate`.
    fn relocated(&self, entry: &EntryInfo) {
        let relro = image::relro();
        self.data(entry.load + relro.start, relro.end - relro.start);
    }

    /// The end of `mmu_off_main`, `head::entry` after it, and `head::mmu_on`.
    pub(crate) fn leaves(&self, entry: &EntryInfo, mmu: &MmuConfig) {
        self.boot_record();
        self.relocated(entry);
        self.barrier(Barrier::DMB_SY);
        let written = image::written();
        let start = entry.load + written.start;
        self.lines(System::DC_IVAC, start, written.end - written.start);

        self.barrier(Barrier::DSB_SY);
        self.system(System::VMALLE1, 0);
        self.barrier(Barrier::DSB_NSH);
        self.system(System::MAIR_EL1, mmu.mair);
        self.system(System::TCR_EL1, mmu.tcr);
        self.system(System::TTBR0_EL1, mmu.ttbr0);
        self.system(System::TTBR1_EL1, mmu.ttbr1);
        self.barrier(Barrier::ISB);
        self.system(System::SCTLR_EL1, SCTLR_MMU_ON);
        self.barrier(Barrier::ISB);
        self.system(System::IC_IALLU, 0);
        self.barrier(Barrier::DSB_NSH);
        self.barrier(Barrier::ISB);
    }
}
