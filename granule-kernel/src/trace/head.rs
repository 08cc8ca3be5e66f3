//! What the entry code did before the command line could be read, and what it does after Rust
//! has returned to it: known sequences, recorded by the code that runs between the two.
//!
//! Which instructions there are is [`entry_code`](granule_kcore::trace::entry_code)'s, and held to the assembly by
//! the check of the finished kernel. Here are the values, what is written to memory, and in which
//! order the routines of `head` run; that changes with them.

use super::early::Early;
use super::routine::{Teller, before_tables, with_tables};
use crate::arch::image;
use crate::handover::record;
use crate::handover::{EntryInfo, MmuConfig};
use granule_kcore::trace::entry_code::{
    CLEAN, CLEAN_AND_INVALIDATE, ENABLE_MMU, ENTRY, INVALIDATE, SETUP_EL2, SETUP_RUN_LEVEL, When,
};
use granule_trace::Event;

impl Early {
    /// `handover::record` changes the boot record, which cleans it before and after its state.
    fn boot_record(&self) {
        let record = record::range();
        let bytes = record.end - record.start;
        self.data(record.start, bytes);
        self.lines(&CLEAN, record.start, bytes);
        self.lines(&CLEAN, record.start, bytes);
    }

    /// `head::entry` up to `mmu_off_main`, and that up to the choice of a page size.
    pub(crate) fn entered(&self, entry: &EntryInfo, tree_bytes: u64) {
        let early = |system| Event::System(system, before_tables(system));
        let at_el2 = entry.entry_el == 2;
        let when = if at_el2 {
            When::EnteredAtEl2
        } else {
            When::EnteredAtEl1
        };
        self.ran(&ENTRY, when, early);
        let written = image::written();
        let start = entry.load + written.start;
        let bytes = written.end - written.start;
        self.lines(&CLEAN_AND_INVALIDATE, start, bytes);
        let bss = image::bss();
        self.data(entry.load + bss.start, bss.end - bss.start);
        self.relocated(entry);
        if at_el2 {
            let when = if entry.vhe == 1 {
                When::Vhe
            } else {
                When::NoVhe
            };
            self.ran(&SETUP_EL2, when, early);
        }
        self.ran(&SETUP_RUN_LEVEL, When::Always, early);
        self.boot_record();
        self.lines(&CLEAN, entry.dtb, 8);
        self.lines(&CLEAN, entry.dtb, tree_bytes);
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
        let written = image::written();
        let start = entry.load + written.start;
        self.lines(&INVALIDATE, start, written.end - written.start);
        self.ran(&ENABLE_MMU, When::Always, |system| {
            Event::System(system, with_tables(mmu, system))
        });
    }
}
