//! The layout of the kernel's virtual address space: addresses and sizes only; other files map them.
//! Nothing here depends on the page size, the number of virtual address bits or the load address:
//!
//! | from | what |
//! |---|---|
//! | bottom of TTBR1's space | the linear map |
//! | `0xffff_ffff_0000_0000` | the trace's records, if any are wanted |
//! | `0xffff_ffff_8000_0000` | the kernel image |
//! | `0xffff_ffff_c000_0000` | the device tree, read-only |
//! | `0xffff_ffff_c200_0000` | stacks and data of the secondary CPUs, with gaps |
//! | `0xffff_ffff_e000_0000` | fixmap: device and temporary mappings |
//! | `0xffff_ffff_e500_0000` | stacks of tasks, with gaps |
//! | `0xffff_ffff_e800_0000` | the interrupt controller |
//!
//! Only the linear map is ever split while CPUs use it. Everything else lies in the last 4 GiB, so the
//! exception vectors recognise by its address a stack whose mapping is never split. The last 4 GiB are
//! inside TTBR1's space at every supported VA size down to 36 bits. Each window but the trace's lies
//! inside one 512 MiB aligned span, the coverage of one last-level table with 64K pages. The spans of
//! 4K and 16K pages, 2 MiB and 32 MiB, divide it. So the number of tables for a window is small and
//! known.

/// Virtual address of the image's first byte. It is 2 MiB aligned, as the load address is, so both
/// agree in all bits that a page or a last-level block of up to 2 MiB leaves untranslated.
pub const KIMAGE_VADDR: u64 = 0xffff_ffff_8000_0000;

/// Alignment of the load address that the boot protocol requires.
pub const IMAGE_ALIGN: u64 = 2 << 20;

/// The device tree's window. A tree is at most 2 MiB and begins anywhere in a page, so the window has
/// 2 MiB and one largest page.
pub const DTB_VADDR: u64 = 0xffff_ffff_c000_0000;

/// First address of the fixmap.
pub const FIXMAP_VADDR: u64 = 0xffff_ffff_e000_0000;

/// Distance between fixmap slots: the largest page size, so that a slot is whole pages of any size.
pub const FIXMAP_SLOT_BYTES: u64 = 64 << 10;

/// Fixmap slot 0: the console's UART, or a page of the image if there is no console. The registers are at
/// this address plus the low 16 bits of their physical address.
pub const UART_VADDR: u64 = FIXMAP_VADDR;

/// Fixmap slot 6: a page of the image, mapped read-only so that the fixmap's table is never freed.
/// Slots 1 to 5 show tables, one for each level.
pub const FIXMAP_ANCHOR_VADDR: u64 = FIXMAP_VADDR + 6 * FIXMAP_SLOT_BYTES;

/// Fixmap slot 7: the table whose entry imitates a TLB conflict (see `selftest::inject`).
pub const INJECT_VADDR: u64 = FIXMAP_VADDR + 7 * FIXMAP_SLOT_BYTES;

/// Fixmap slot 8: a second mapping of a page, for the self-check.
pub const CHECK_VADDR: u64 = FIXMAP_VADDR + 8 * FIXMAP_SLOT_BYTES;

/// From fixmap slot 16 on: consecutive pages of any size that show last-level tables.
pub const FIXMAP_SERIES_VADDR: u64 = FIXMAP_VADDR + 16 * FIXMAP_SLOT_BYTES;

/// The stacks and data of all CPUs but the boot CPU, one place of [`CPU_BYTES`] after the other, by the CPU's
/// number. In the same 512 MiB as the device tree, whose table of 64K pages they share.
pub const CPUS_VADDR: u64 = DTB_VADDR + (32 << 20);
/// Bytes of a CPU's place: twice the size of each of its two stacks and of its data.
pub const CPU_BYTES: u64 = 384 << 10;

/// A page that the boot CPU maps while it releases a CPU.
pub const RELEASE_VADDR: u64 = FIXMAP_VADDR + (64 << 20);

/// The kernel stacks of tasks.
pub const TASK_STACKS_VADDR: u64 = FIXMAP_VADDR + (80 << 20);
/// Bytes of the window at [`TASK_STACKS_VADDR`].
pub const TASK_STACKS_BYTES: u64 = 48 << 20;

/// The interrupt controller's distributor; a GICv2's CPU interface lies four slots further.
pub const GIC_VADDR: u64 = FIXMAP_VADDR + (128 << 20);

/// The redistributors of a GICv3, one region behind the other. A region keeps its offset in
/// [`REDISTRIBUTORS_ALIGN`], so that blocks can map it.
pub const REDISTRIBUTORS_VADDR: u64 = FIXMAP_VADDR + (192 << 20);
/// The end of the window at [`REDISTRIBUTORS_VADDR`].
pub const REDISTRIBUTORS_END: u64 = FIXMAP_VADDR + (480 << 20);
/// What the place of a region of redistributors is a multiple of.
pub const REDISTRIBUTORS_ALIGN: u64 = 2 << 20;

/// Two pages for tests that change a translation.
pub const SCRATCH_VADDR: u64 = FIXMAP_VADDR + 18 * FIXMAP_SLOT_BYTES;

/// Virtual address, in the fixmap slot at `slot`, of a device at physical address `phys`.
pub const fn in_slot(slot: u64, phys: u64) -> u64 {
    slot + (phys & (FIXMAP_SLOT_BYTES - 1))
}

/// The trace's window. The area keeps its offset in 512 MiB, the coverage of one last-level table of
/// 64K pages, and so in every smaller block.
pub const TRACE_VADDR: u64 = 0xffff_ffff_0000_0000;

/// The largest area that fits into the window wherever it begins.
pub const TRACE_MOST_BYTES: u64 = 1 << 30;

/// Virtual address of a trace area at physical address `phys`.
pub const fn trace_vaddr(phys: u64) -> u64 {
    TRACE_VADDR + (phys & ((512 << 20) - 1))
}

/// Virtual address of the device tree at physical address `phys`. The window maps from the 64K
/// boundary below the tree.
pub const fn dtb_vaddr(phys: u64) -> u64 {
    in_slot(DTB_VADDR, phys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::MOST_CPUS;

    const SPAN_64K_TABLE: u64 = 512 << 20;
    /// The largest device tree that the boot protocol allows.
    const DTB_MAX_BYTES: u64 = 2 << 20;

    #[test]
    fn windows_stay_inside_one_table_of_any_page_size() {
        for (start, bytes) in [
            (DTB_VADDR, DTB_MAX_BYTES + FIXMAP_SLOT_BYTES),
            (FIXMAP_VADDR, 32 * FIXMAP_SLOT_BYTES),
            (
                DTB_VADDR,
                CPUS_VADDR + MOST_CPUS as u64 * CPU_BYTES - DTB_VADDR,
            ),
            (FIXMAP_VADDR, REDISTRIBUTORS_END - FIXMAP_VADDR),
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
