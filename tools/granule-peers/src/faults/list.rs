//! The list of faults: the removed instructions, and the expected findings.

/// A fault: its description, the instruction, the rules of which one is violated, and the function
/// that the finding names.
#[derive(Debug)]
pub(super) struct Fault(
    pub(super) &'static str,
    pub(super) &'static str,
    pub(super) &'static [&'static str],
    pub(super) &'static str,
);

pub(super) const STALE: &[&str] = &["stale-translation", "stale-reuse", "RWHZWS"];
const TABLES: &[&str] = &["freed-in-use", "unlinked-in-use"];

/// The faults, with the function names of Debian's Linux 6.12.
#[rustfmt::skip]
pub(super) const FAULTS: [Fault; 24] = [
    Fault("copy on write: no TLBI of the page that is copied", "ptep_clear_flush:tlbi", STALE, "ptep_clear_flush"),
    Fault("copy on write: the TLBI before the store is visible", "ptep_clear_flush:dsb ishst", STALE, "ptep_clear_flush"),
    Fault("copy on write: the TLBI is not waited for", "ptep_clear_flush:dsb ish", STALE, "ptep_clear_flush"),
    Fault("fork: no TLBI of the parent's pages, now read-only", "copy_process:tlbi", STALE, "copy_page_range"),
    Fault("fork: the TLBI before the stores are visible", "copy_process:dsb ishst", STALE, "copy_page_range"),
    Fault("fork: the TLBI is not waited for", "copy_process:dsb ish", STALE, "copy_page_range"),
    Fault("mprotect: no TLBI of pages, now read-only", "tlb_flush:tlbi vale1is", STALE, "ptep_modify_prot_start"),
    Fault("mprotect: the TLBI before the stores are visible", "tlb_flush:dsb ishst", STALE, "ptep_modify_prot_start"),
    Fault("mprotect: the TLBI is not waited for", "tlb_flush:dsb ish", STALE, "ptep_modify_prot_start"),
    Fault("munmap: no TLBI of pointers to tables that are freed", "tlb_flush:tlbi vae1is", TABLES, "free_pgd_range"),
    Fault("exec: no TLBI of the stack that moves", "__flush_tlb_range_nosync:tlbi", STALE, "move_page_tables"),
    Fault("exit: no TLBI by ASID before tables are freed", "tlb_flush:tlbi aside1is", TABLES, "free_pgd_range"),
    Fault("reclaim and migration: no TLBI", "set_tlb_ubc_flush_pending:tlbi", STALE, "try_to_migrate_one"),
    Fault("fixmap: the TLBI before the store is visible", "__set_fixmap:dsb ishst", STALE, "__set_fixmap"),
    Fault("fixmap: no TLBI of a slot that is cleared", "__set_fixmap:tlbi", STALE, "__set_fixmap"),
    // Several files have a function of this name; the numbers select that of mm/mprotect.c, here
    // and below.
    Fault("mprotect of many pages: no TLBI by ASID", "tlb_flush:tlbi aside1is:9", STALE, "ptep_modify_prot_start"),
    Fault("mprotect of many pages: the TLBI before the stores are visible",
        "tlb_flush:dsb ishst:8", STALE, "ptep_modify_prot_start"),
    Fault("reclaim and migration: the TLBI before the store is visible",
        "set_tlb_ubc_flush_pending:dsb ishst", STALE, "try_to_migrate_one"),
    Fault("exec: the TLBI of the stack before the stores are visible",
        "__flush_tlb_range_nosync:dsb ishst", STALE, "move_page_tables"),
    // The function of mm/mmu_gather.c.
    Fault("munmap: the TLBI of pointers before the stores are visible", "tlb_flush:dsb ishst:4", TABLES, "free_pgd_range"),
    Fault("vmalloc: no TLBI of areas before they are given out again",
        "__purge_vmap_area_lazy:tlbi", STALE, "__vunmap_range_noflush"),
    Fault("vmalloc: the TLBI of areas before the stores are visible",
        "__purge_vmap_area_lazy:dsb ishst", STALE, "__vunmap_range_noflush"),
    // The fourth ISB and the second TLBI precede the write of the identity map to TTBR0.
    Fault("kexec: no ISB between the empty tree in TTBR0 and the TLBI", "machine_kexec:isb:4", STALE, "machine_kexec"),
    Fault("kexec: no TLBI of the program's pages before the identity map", "machine_kexec:tlbi:2", STALE, "machine_kexec"),
];
