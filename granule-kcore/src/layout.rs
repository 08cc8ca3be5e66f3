//! The layout of the kernel's virtual address space: addresses and sizes, and nothing that maps them.
//! Nothing here depends on the page size, the number of virtual address bits or the load address:
//!
//! | from | what |
//! |---|---|
//! | bottom of TTBR1's space | the linear map |
//! | `0xffff_ffff_0000_0000` | the trace's records, if any are wanted |
//! | `0xffff_ffff_8000_0000` | the kernel image |
//! | `0xffff_ffff_c000_0000` | the device tree, read-only |
//! | `0xffff_ffff_e000_0000` | fixmap: device and temporary mappings |
//! | `0xffff_ffff_e400_0000` | stacks of the secondary CPUs, with gaps |
//! | `0xffff_ffff_e500_0000` | stacks of tasks, with gaps |
//! | `0xffff_ffff_e800_0000` | the interrupt controller |
//!
//! The linear map is the only part whose mapping is ever split while CPUs use it. All the rest lies
//! in the last 4 GiB, by which the vectors tell a stack that is never split; hence inside TTBR1's
//! space at every supported size down to 36 bits. Each window but the trace's lies inside one
//! 512 MiB aligned span, what one last-level table covers with 64K pages (the
//! spans of 4K and 16K, 2 MiB and 32 MiB, divide it), so the number of tables
//! it takes is small and known.

/// Virtual address of the image's first byte. 2 MiB aligned as the load address
/// is, so that both agree in all bits that a page or a last-level block of any
/// page size up to 2 MiB leaves untranslated.
pub const KIMAGE_VADDR: u64 = 0xffff_ffff_8000_0000;

/// What the boot protocol asks of the load address.
pub const IMAGE_ALIGN: u64 = 2 << 20;

/// The device tree's window. A tree is at most 2 MiB and begins anywhere in a
/// page, so the window takes that and one largest page more.
pub const DTB_VADDR: u64 = 0xffff_ffff_c000_0000;

/// First address of the fixmap.
pub const FIXMAP_VADDR: u64 = 0xffff_ffff_e000_0000;

/// Distance between fixmap slots: the largest page size, so that a slot is
/// whole pages of any size.
pub const FIXMAP_SLOT_BYTES: u64 = 64 << 10;

/// Fixmap slot 0: the console's UART. Its registers are at this address plus
/// the low 16 bits of their physical address.
pub const UART_VADDR: u64 = FIXMAP_VADDR;

/// Fixmap slot 6: a page of the image, read-only, that keeps the fixmap's table in being.
/// Slots 1 to 5 show tables, one a level.
pub const FIXMAP_ANCHOR_VADDR: u64 = FIXMAP_VADDR + 6 * FIXMAP_SLOT_BYTES;

/// Fixmap slot 7: the table with the entry that is to look like a TLB conflict (see
/// `exception::inject`).
pub const INJECT_VADDR: u64 = FIXMAP_VADDR + 7 * FIXMAP_SLOT_BYTES;

/// Fixmap slot 8: the self-check's second view of a page.
pub const CHECK_VADDR: u64 = FIXMAP_VADDR + 8 * FIXMAP_SLOT_BYTES;

/// From fixmap slot 16 on: pages, of whatever size, that follow each other and show last-level
/// tables.
pub const FIXMAP_SERIES_VADDR: u64 = FIXMAP_VADDR + 16 * FIXMAP_SLOT_BYTES;

/// The stacks of all CPUs but the boot CPU.
pub const STACKS_VADDR: u64 = FIXMAP_VADDR + (64 << 20);

/// The kernel's stacks of tasks.
pub const TASK_STACKS_VADDR: u64 = STACKS_VADDR + (16 << 20);
/// See [`TASK_STACKS_VADDR`].
pub const TASK_STACKS_BYTES: u64 = 48 << 20;

/// The interrupt controller's distributor; a GICv2's CPU interface lies four slots further.
pub const GIC_VADDR: u64 = FIXMAP_VADDR + (128 << 20);

/// The redistributors of a GICv3: one window of this many bytes for each region, which keeps its
/// offset in 2 MiB, so that it can be in blocks.
pub const REDISTRIBUTORS_VADDR: u64 = FIXMAP_VADDR + (192 << 20);
/// See [`REDISTRIBUTORS_VADDR`].
pub const REDISTRIBUTORS_BYTES: u64 = 32 << 20;

/// Two pages for tests of what happens to a translation.
pub const SCRATCH_VADDR: u64 = FIXMAP_VADDR + 18 * FIXMAP_SLOT_BYTES;

/// Where a device at physical address `phys` appears in the fixmap slot at `slot`.
pub const fn in_slot(slot: u64, phys: u64) -> u64 {
    slot + (phys & (FIXMAP_SLOT_BYTES - 1))
}

/// The trace's window. Its area keeps its offset in 512 MiB, what one last-level
/// table of 64K pages covers, and so in every smaller block.
pub const TRACE_VADDR: u64 = 0xffff_ffff_0000_0000;

/// The largest area for which the window has room wherever it begins.
pub const TRACE_MOST_BYTES: u64 = 1 << 30;

/// Where a trace area at physical address `phys` appears in its window.
pub const fn trace_vaddr(phys: u64) -> u64 {
    TRACE_VADDR + (phys & ((512 << 20) - 1))
}

/// Where the device tree at physical address `phys` appears in its window: the
/// window maps from the 64K boundary below the tree.
pub const fn dtb_vaddr(phys: u64) -> u64 {
    in_slot(DTB_VADDR, phys)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN_64K_TABLE: u64 = 512 << 20;
    /// Largest device tree that the boot protocol allows.
    const DTB_MAX_BYTES: u64 = 2 << 20;

    #[test]
    fn windows_stay_inside_one_table_of_any_page_size() {
        for (start, bytes) in [
            (DTB_VADDR, DTB_MAX_BYTES + FIXMAP_SLOT_BYTES),
            (FIXMAP_VADDR, 32 * FIXMAP_SLOT_BYTES),
            (STACKS_VADDR & !(SPAN_64K_TABLE - 1), 64 << 20),
            (
                FIXMAP_VADDR,
                REDISTRIBUTORS_VADDR + 4 * REDISTRIBUTORS_BYTES - FIXMAP_VADDR,
            ),
        ] {
            assert_eq!(start / SPAN_64K_TABLE, (start + bytes - 1) / SPAN_64K_TABLE);
            assert_eq!(start % SPAN_64K_TABLE, 0);
        }
    }

    #[test]
    fn the_smallest_upper_half_holds_everything() {
        let bottom_of_36_bits = !0u64 << 36;
        assert!(KIMAGE_VADDR > bottom_of_36_bits);
        assert_eq!(KIMAGE_VADDR % IMAGE_ALIGN, 0);
        const { assert!(TRACE_VADDR > !0 << 36) };
        assert!(trace_vaddr(u64::MAX) + TRACE_MOST_BYTES < KIMAGE_VADDR);
    }

    #[test]
    fn a_device_keeps_its_offset_in_the_largest_page() {
        assert_eq!(in_slot(UART_VADDR, 0x900_1040), UART_VADDR + 0x1040);
        assert_eq!(dtb_vaddr(0x4001_2348), DTB_VADDR + 0x2348);
    }
}
