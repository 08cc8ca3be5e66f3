//! Records the entry code's actions before the command line could be read, and its actions after Rust has
//! returned to it. Both are known sequences, recorded by the Rust code that runs between the two.
//!
//! [`entry_code`](granule_kcore::trace::entry_code) lists the instructions, and the check of the finished
//! kernel compares that list with the assembly. This file has the values, the stores to memory, and the order
//! in which the routines of `head` run. Change it together with them.

use super::early::Early;
use super::routine::{Teller, before_tables, entered_at, runs_at, with_tables};
use crate::arch::image;
use crate::handover::{EntryInfo, MmuConfig, boot_record};
use granule_kcore::trace::entry_code::{
    CLEAN, CLEAN_AND_INVALIDATE, ENABLE_MMU, ENTRY, INVALIDATE, SETUP_EL2, SETUP_RUN_LEVEL, When,
};
use granule_trace::Event;

impl Early {
    /// Records a change of the boot record by `handover::boot_record`, which cleans it before and after writing
    /// its state.
    fn boot_record(&self) {
        let record = boot_record::range();
        let bytes = record.end - record.start;
        self.data(record.start, bytes);
        self.lines(&CLEAN, record.start, bytes);
        self.lines(&CLEAN, record.start, bytes);
    }

    /// Records `head::entry` up to `mmu_off_main`, and that function up to the choice of a page size.
    pub(crate) fn entered(&self, entry: &EntryInfo, tree_bytes: u64) {
        let early = |system| Event::System(system, before_tables(system));
        self.ran(&ENTRY, entered_at(entry.entry_el), early);
        let written = image::written();
        let start = entry.load + written.start;
        let bytes = written.end - written.start;
        self.lines(&CLEAN_AND_INVALIDATE, start, bytes);
        let bss = image::bss();
        self.data(entry.load + bss.start, bss.end - bss.start);
        self.relocated(entry);
        if entry.entry_el == 2 {
            self.ran(&SETUP_EL2, runs_at(entry.run_el), early);
        }
        self.ran(&SETUP_RUN_LEVEL, When::Always, early);
        self.boot_record();
        self.lines(&CLEAN, entry.dtb, 8);
        self.lines(&CLEAN, entry.dtb, tree_bytes);
    }

    /// Records `head::relocate`.
    fn relocated(&self, entry: &EntryInfo) {
        let relro = image::relro();
        self.data(entry.load + relro.start, relro.end - relro.start);
    }

    /// Records the end of `mmu_off_main`, `head::entry` after it, and `head::mmu_on`.
    pub(crate) fn leaves(&self, entry: &EntryInfo, mmu: &MmuConfig) {
        self.boot_record();
        self.relocated(entry);
        let written = image::written();
        let start = entry.load + written.start;
        self.lines(&INVALIDATE, start, written.end - written.start);
        self.ran(&ENABLE_MMU, When::Always, |system| {
            Event::System(system, with_tables(mmu, system))
        });
    }
}
