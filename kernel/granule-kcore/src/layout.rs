//! The layout of the kernel's virtual address space: addresses and sizes only; other files map them.
//! Nothing here depends on the page size, the number of virtual address bits or the load address:
//!
//! | from | what |
//! |---|---|
//! | bottom of TTBR1's space | the linear map, somewhere in the lower half of the space |
//! | `0xffff_fff8_0000_0000` | the kernel image, if addresses are randomised: somewhere in 28 GiB |
//! | `0xffff_ffff_0000_0000` | the trace's records, if any are wanted |
//! | `0xffff_ffff_6000_0000` | stacks of tasks, with gaps |
//! | `0xffff_ffff_8000_0000` | the kernel image, if addresses are not randomised |
//! | beside the image | the vmalloc area, with gaps: modules, and memory of theirs |
//! | `0xffff_ffff_c000_0000` | the device tree, read-only |
//! | `0xffff_ffff_c200_0000` | stacks and data of the secondary CPUs, with gaps |
//! | `0xffff_ffff_e000_0000` | fixmap: device and temporary mappings |
//! | `0xffff_ffff_e800_0000` | the interrupt controller |
//!
//! Only the linear map is ever split while CPUs use it. Everything else lies in the last 32 GiB, so the
//! exception vectors recognise by its address a stack whose mapping is never split. The last 32 GiB are
//! the upper half of TTBR1's space with 36 address bits, the fewest that are supported. Each window but the
//! trace's lies inside one 512 MiB aligned span, the coverage of one last-level table with 64K pages. The
//! spans of 4K and 16K pages, 2 MiB and 32 MiB, divide it. So the number of tables for a window is small
//! and known.
//!
//! # Address randomisation
//!
//! A seed (`granule_boot::kaslr`) moves the image and the linear map; the windows never move. Without a seed
//! both have the addresses above, or the lowest. The map has the same leaves and tables at every place, so no
//! count depends on the seed but that of instructions, which differs by less than a thousandth. Benchmarks and
//! figures boot without a seed.
//!
//! For the image this follows from three rules. A place is a multiple of 2 MiB, which with each page size is a
//! block or a contiguous group of pages, and no leaf of the image is larger. The image stays inside one span
//! of 32 MiB, so it never crosses from one table into the next above that. And no place shares a table of 4K
//! pages' level 2 (1 GiB) or of 64K pages' level 3 (512 MiB) with a window. The image has 28 GiB; a wider range
//! at more address bits would take another table with some page sizes.
//!
//! For the linear map `granule::linear::Places` does it: RAM keeps its offset in the largest leaf that it can
//! contain, and in every table into which it crosses from another. As much room as RAM takes stays free above
//! it, for memory that is added later. If RAM has no room, the map has one place, and a line on the console
//! reports it.
//!
//! The addresses are in the console record only (`kaslr.image`, `kaslr.linear_map`), which is for those who
//! test the kernel. A panic prints addresses in the ELF file; registers are printed as they are.

use core::ops::Range;

/// Virtual address of the image's first byte, if addresses are not randomised. It is 2 MiB aligned, as
/// the load address is, so both agree in all bits that a page or a last-level block of up to 2 MiB
/// leaves untranslated.
pub const KIMAGE_VADDR: u64 = 0xffff_ffff_8000_0000;

/// The addresses of the image, if they are randomised.
pub const KIMAGE_RANDOM: Range<u64> = FIRST_OF_LAST_32_GIB..TRACE_VADDR;

/// The first address at which only mappings lie that are never split.
pub const FIRST_OF_LAST_32_GIB: u64 = !0 << NEVER_SPLIT_SHIFT;

/// An address is at or above [`FIRST_OF_LAST_32_GIB`] if and only if its bits from this one on are ones.
pub const NEVER_SPLIT_SHIFT: u32 = 35;

/// The image lies inside one aligned span of this size: the coverage of a last-level table with 16K
/// pages, the smallest above [`IMAGE_ALIGN`].
pub const KIMAGE_SPAN: u64 = 32 << 20;

/// The number of spans in which a randomised image can lie.
pub const KIMAGE_SPANS: u64 = (KIMAGE_RANDOM.end - KIMAGE_RANDOM.start) / KIMAGE_SPAN;

/// The number of places in a span for an image of `bytes`.
pub const fn kimage_places(bytes: u64) -> u64 {
    KIMAGE_SPAN.saturating_sub(bytes) / IMAGE_ALIGN + 1
}

/// The virtual address of a randomised image at place `place` of span `span`, both from 0 on.
pub const fn kimage_vaddr(span: u64, place: u64) -> u64 {
    KIMAGE_RANDOM
        .start
        .wrapping_add(span.wrapping_mul(KIMAGE_SPAN))
        .wrapping_add(place.wrapping_mul(IMAGE_ALIGN))
}

/// Bytes of the vmalloc area.
pub const VMALLOC_BYTES: u64 = 64 << 20;

/// The distance that a branch of a module reaches, forwards and backwards.
pub const BRANCH_REACH: u64 = 128 << 20;

/// The addresses of the vmalloc area, for an image at `image`: the spans behind the image's own, so that branches
/// between modules and the image reach; those before it where the trace's window follows. What lies there is mapped
/// in pages, and each boot without a module has nothing there.
pub const fn vmalloc(image: u64) -> Range<u64> {
    let span = image & !(KIMAGE_SPAN - 1);
    let behind = span + KIMAGE_SPAN;
    let start = if behind <= TRACE_VADDR && behind + VMALLOC_BYTES > TRACE_VADDR {
        span - VMALLOC_BYTES
    } else {
        behind
    };
    start..start + VMALLOC_BYTES
}

/// The numbers of places that a seed chooses from.
#[derive(Clone, Copy, Debug)]
pub struct Randomised {
    /// Of the image.
    pub image_places: u64,
    /// Of the linear map: 1 if it has no room beside RAM.
    pub linear_map_places: u64,
}

/// Alignment of the load address that the boot protocol requires.
pub const IMAGE_ALIGN: u64 = 2 << 20;

/// The device tree's window: the 2 MiB that a tree has at most, and one largest page.
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

/// Fixmap slot 9: the registers of a virtio disk.
pub const DISK_VADDR: u64 = FIXMAP_VADDR + 9 * FIXMAP_SLOT_BYTES;

/// From fixmap slot 16 on: consecutive pages of any size that show last-level tables.
pub const FIXMAP_SERIES_VADDR: u64 = FIXMAP_VADDR + 16 * FIXMAP_SLOT_BYTES;

/// The stacks and data of all CPUs but the boot CPU, one place of [`CPU_BYTES`] after the other, by the CPU's
/// number. In the same 512 MiB as the device tree, whose table of 64K pages they share.
pub const CPUS_VADDR: u64 = DTB_VADDR + (32 << 20);
/// Bytes of a CPU's place: twice the size of each of its two stacks and of its data.
pub const CPU_BYTES: u64 = 384 << 10;

/// A page that the boot CPU maps while it releases a CPU.
pub const RELEASE_VADDR: u64 = FIXMAP_VADDR + (64 << 20);

/// The kernel stacks of tasks: behind the trace, and in no table of the image.
pub const TASK_STACKS_VADDR: u64 = 0xffff_ffff_6000_0000;
/// Bytes of the window at [`TASK_STACKS_VADDR`].
pub const TASK_STACKS_BYTES: u64 = 512 << 20;

/// The interrupt controller's registers: of a GIC the distributor; a GICv2's CPU interface lies four slots further.
pub const INTC_VADDR: u64 = FIXMAP_VADDR + (128 << 20);

/// The redistributors of a GICv3, one region behind the other. A region keeps its offset in
/// [`REDISTRIBUTORS_ALIGN`], so that blocks can map it.
pub const REDISTRIBUTORS_VADDR: u64 = FIXMAP_VADDR + (192 << 20);
/// The end of the window at [`REDISTRIBUTORS_VADDR`].
pub const REDISTRIBUTORS_END: u64 = FIXMAP_VADDR + (480 << 20);
/// The alignment of a region of redistributors.
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

/// Virtual address of the device tree at `phys`. The window maps from the 64K below it.
pub const fn dtb_vaddr(phys: u64) -> u64 {
    in_slot(DTB_VADDR, phys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::MOST_CPUS;
    use granule::arch::{
        Attributes, CpuFeatures, Geometry, PageSize, Permissions, PhysicalAddress, Regime, VaRange,
        VirtualAddress,
    };
    use granule::linear::LeafStats;
    use granule::table::{Leaves, Piece};

    const SPAN_64K_TABLE: u64 = 512 << 20;
    /// The largest device tree that the boot protocol allows.
    const DTB_MAX_BYTES: u64 = 2 << 20;

    #[test]
    fn windows_stay_inside_one_table_of_any_page_size() {
        let cpus_bytes = MOST_CPUS as u64 * CPU_BYTES;
        for (start, bytes) in [
            (DTB_VADDR, DTB_MAX_BYTES + FIXMAP_SLOT_BYTES),
            (FIXMAP_VADDR, 32 * FIXMAP_SLOT_BYTES),
            (DTB_VADDR, CPUS_VADDR - DTB_VADDR + cpus_bytes),
            (FIXMAP_VADDR, REDISTRIBUTORS_END - FIXMAP_VADDR),
            (TASK_STACKS_VADDR, TASK_STACKS_BYTES),
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
        assert!(trace_vaddr(u64::MAX) + TRACE_MOST_BYTES <= TASK_STACKS_VADDR);
        const { assert!(TASK_STACKS_VADDR + TASK_STACKS_BYTES <= KIMAGE_VADDR) };
        // The linear map has the lower half.
        assert!(FIRST_OF_LAST_32_GIB >= bottom_of_36_bits + (1 << 35));
        const { assert!(KIMAGE_RANDOM.start >= FIRST_OF_LAST_32_GIB) };
    }

    /// Bytes of an image like ours, which is not a multiple of 2 MiB.
    const IMAGE_BYTES: u64 = (2 << 20) + (448 << 10);

    /// Counts the leaves of the kernel's tables with the image at `image`.
    fn boot_tables(geometry: &Geometry, image: u64) -> LeafStats {
        let piece = |start, output, bytes| Piece {
            start: VirtualAddress(start),
            output: PhysicalAddress(output),
            bytes,
            attributes: Attributes::normal(Permissions::READ),
            leaves: Leaves::LARGEST,
        };
        let load = 0x4020_0000;
        let text = 640 << 10;
        let mut pieces = [
            piece(image, load, text),
            piece(image + text, load + text, IMAGE_BYTES - text - (128 << 10)),
            piece(trace_vaddr(0x6600_0000), 0x6600_0000, 96 << 20),
            piece(dtb_vaddr(0x4801_0000), 0x4801_0000, 2 << 20),
            piece(UART_VADDR, 0x0900_0000, FIXMAP_SLOT_BYTES),
            piece(TASK_STACKS_VADDR, 0x5000_0000, FIXMAP_SLOT_BYTES),
        ];
        pieces.sort_by_key(|piece| piece.start);
        let stats = LeafStats::new(geometry, &pieces);
        assert_eq!(stats.bytes, pieces.iter().map(|it| it.bytes).sum::<u64>());
        stats
    }

    /// Every page size with its VA sizes. PARange, TGran4, TGran16 and VARange allow all of them.
    fn geometries() -> impl Iterator<Item = Geometry> {
        let cpu = CpuFeatures {
            mmfr0: 1 << 28 | 2 << 20 | 6,
            mmfr2: 1 << 16,
            ..CpuFeatures::NONE
        };
        let sizes = PageSize::ALL.into_iter();
        sizes.flat_map(move |size| {
            [36, 39, 42, 47, 48, 52].into_iter().map(move |bits| {
                Geometry::new(&cpu, size, bits, VaRange::Upper, Regime::El1And0).unwrap()
            })
        })
    }

    #[test]
    fn the_image_has_the_same_leaves_and_tables_at_every_place() {
        let places = kimage_places(IMAGE_BYTES);
        assert_eq!((KIMAGE_SPANS, places), (28 * 32, 15));
        for geometry in geometries() {
            let fixed = boot_tables(&geometry, KIMAGE_VADDR);
            for span in 0..KIMAGE_SPANS {
                for place in 0..places {
                    let image = kimage_vaddr(span, place);
                    let end = image + IMAGE_BYTES;
                    assert!(image >= KIMAGE_RANDOM.start && end <= KIMAGE_RANDOM.end);
                    let tables = boot_tables(&geometry, image);
                    assert_eq!(tables, fixed, "{geometry:?} {image:#x}");
                }
            }
        }
    }

    #[test]
    fn branches_reach_between_the_image_and_the_vmalloc_area() {
        let random =
            (0..KIMAGE_SPANS).flat_map(|span| [kimage_vaddr(span, 0), kimage_vaddr(span, 14)]);
        for image in random.chain([KIMAGE_VADDR]) {
            let area = vmalloc(image);
            let span = image & !(KIMAGE_SPAN - 1)..(image | (KIMAGE_SPAN - 1)) + 1;
            let (low, high) = (area.start.min(span.start), area.end.max(span.end));
            assert!(high - low <= BRANCH_REACH, "{image:#x}");
            assert!(area.end <= span.start || span.end <= area.start);
            assert!(area.start >= FIRST_OF_LAST_32_GIB);
            for window in [
                TRACE_VADDR..TRACE_VADDR + TRACE_MOST_BYTES + (512 << 20),
                TASK_STACKS_VADDR..TASK_STACKS_VADDR + TASK_STACKS_BYTES,
                DTB_VADDR..DTB_VADDR + 1,
            ] {
                assert!(
                    area.end <= window.start || window.end <= area.start,
                    "{image:#x}"
                );
            }
        }
    }

    #[test]
    fn an_image_larger_than_a_span_has_a_place_in_each() {
        for bytes in [KIMAGE_SPAN, KIMAGE_SPAN + 1, u64::MAX] {
            assert_eq!(kimage_places(bytes), 1);
        }
        assert_eq!(kimage_places(KIMAGE_SPAN - IMAGE_ALIGN), 2);
    }

    #[test]
    fn a_device_keeps_its_offset_in_the_largest_page() {
        assert_eq!(in_slot(UART_VADDR, 0x900_1040), UART_VADDR + 0x1040);
        assert_eq!(dtb_vaddr(0x4001_2348), DTB_VADDR + 0x2348);
    }
}
