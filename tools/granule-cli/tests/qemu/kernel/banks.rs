//! RAM in odd pieces. `virt` has one contiguous bank, so its tree is rewritten: the kernel must map
//! exactly the tree's memory, to the page.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Request, Rodata};

use crate::booted::Booted;
use crate::kernel::machine::{GIB, IMAGE, MIB, RAM, sized};
use crate::kernel::reference::{Range, Reference, range};
use crate::kernel::trees::Crafted;

fn crafted(size: PageSize) -> Crafted {
    Crafted::new(&sized(size).rodata(Rodata::Off).memory(GIB))
}

/// The mapped memory must be these ranges, with the largest leaves.
#[track_caller]
fn assert_maps(kernel: &Booted, size: PageSize, ranges: &[Range]) {
    let expected = Reference::new(size, false, false, ranges);
    assert_eq!(kernel.mapped(), expected.bytes(), "{size:?}");
    assert_eq!(kernel.leaves(), expected.leaves(), "{size:?}");
    let start_level = if size == K64 { 1 } else { 0 };
    let tables = expected.tables(start_level);
    kernel.has("linear_map.tables", tables);
}

fn down(at: u64, size: PageSize) -> u64 {
    at / size.bytes() * size.bytes()
}

fn up(at: u64, size: PageSize) -> u64 {
    at.next_multiple_of(size.bytes())
}

const BANKS: [(u64, u64); 4] = [
    (RAM, 64 * MIB),
    (RAM + 96 * MIB, 2 * MIB),
    (RAM + 128 * MIB, 384 * MIB),
    (RAM + 768 * MIB, 256 * MIB),
];

#[test]
fn several_banks_with_holes_in_several_nodes() {
    for size in PageSize::ALL {
        let kernel = crafted(size).banks(&BANKS).ok();
        assert_maps(
            &kernel,
            size,
            &BANKS.map(|(start, bytes)| range(start, start + bytes)),
        );
        let sum = BANKS.iter().map(|(_, bytes)| bytes).sum::<u64>();
        kernel.has("linear_map.ram_bytes", sum);
        for (start, bytes) in BANKS {
            kernel.prints(&format!("RAM {start:#014x} to {:#014x}", start + bytes));
        }
    }
}

#[test]
fn several_regs_of_one_node_in_any_order() {
    let mut tree = crafted(K4);
    let [first, second, third, fourth] = BANKS;
    tree.banks(&[])
        .bank_node(&[fourth, first])
        .bank_node(&[third, second]);
    let ranges = BANKS.map(|(start, bytes)| range(start, start + bytes));
    assert_maps(&tree.ok(), K4, &ranges);
}

#[test]
fn odd_edges_are_rounded_inward() {
    for size in PageSize::ALL {
        let start = RAM + 0x1234;
        let end = RAM + 512 * MIB + 0x5679;
        let (next, next_end) = (RAM + 600 * MIB - 1, RAM + 700 * MIB + 1);
        let banks = [(start, end - start), (next, next_end - next)];
        let kernel = crafted(size).banks(&banks).ok();
        let ranges = [
            range(up(start, size), down(end, size)),
            range(up(next, size), down(next_end, size)),
        ];
        assert_maps(&kernel, size, &ranges);
        let ram = banks[0].1 + banks[1].1;
        kernel.has("linear_map.ram_bytes", ram);
        let left = ram - kernel.mapped();
        kernel.prints(&format!("{left} bytes of RAM at the edges of banks"));
    }
}

/// Two banks that meet in the middle of a page are one page's RAM.
#[test]
fn banks_that_meet_in_a_page_lose_nothing() {
    let middle = 256 * MIB + 0x123;
    let banks = [(RAM, middle), (RAM + middle, 512 * MIB - middle)];
    for size in PageSize::ALL {
        let kernel = crafted(size).banks(&banks).ok();
        assert_maps(&kernel, size, &[range(RAM, RAM + 512 * MIB)]);
        kernel.does_not_print("edges of banks");
    }
}

#[test]
fn overlapping_banks_are_counted_once_and_reported() {
    let banks = [
        (RAM, 300 * MIB),
        (RAM + 200 * MIB, 300 * MIB),
        (RAM + 100 * MIB, MIB),
    ];
    let kernel = crafted(K16).banks(&banks).ok();
    assert_maps(&kernel, K16, &[range(RAM, RAM + 500 * MIB)]);
    kernel.prints(&format!(
        "{} bytes of RAM are in more than one bank",
        101 * MIB
    ));
}

#[test]
fn a_bank_smaller_than_a_page_and_one_of_no_bytes_add_nothing() {
    let banks = [
        (RAM, 512 * MIB),
        (RAM + 600 * MIB + 8, 4096),
        (RAM + 700 * MIB, 0),
    ];
    let kernel = crafted(K64).banks(&banks).ok();
    assert_maps(&kernel, K64, &[range(RAM, RAM + 512 * MIB)]);
    kernel.prints("4096 bytes of RAM at the edges of banks");
}

#[test]
fn memory_that_is_disabled_is_not_used() {
    let mut tree = crafted(K4);
    tree.banks(&[(RAM, 512 * MIB), (RAM + 512 * MIB, 512 * MIB)]);
    tree.set("/memory@60000000", "status", "disabled");
    assert_maps(&tree.ok(), K4, &[range(RAM, RAM + 512 * MIB)]);
}

#[test]
fn no_map_ranges_are_rounded_outward_and_never_mapped() {
    for size in PageSize::ALL {
        let (hole, hole_end) = (RAM + 0x1000_0fff, RAM + 0x1000_0fff + 0x3_0002);
        let (last, last_end) = (RAM + 512 * MIB - 1, RAM + 512 * MIB + 1);
        let mut tree = crafted(size);
        tree.reserved(hole, hole_end - hole, true)
            .reserved(last, last_end - last, true)
            .banks(&[(RAM, GIB)]);
        let kernel = tree.ok();
        let ranges = [
            range(RAM, down(hole, size)),
            range(up(hole_end, size), down(last, size)),
            range(up(last_end, size), RAM + GIB),
        ];
        assert_maps(&kernel, size, &ranges);
        kernel.has("linear_map.ram_bytes", GIB);
        kernel.prints(&format!("no-map {hole:#014x} to {hole_end:#014x}"));
    }
}

#[test]
fn a_no_map_range_at_either_end_of_ram() {
    let mut tree = crafted(K4);
    tree.reserved(RAM, 4097, true)
        .reserved(RAM + GIB - 1, 4096, true);
    let kernel = tree.ok();
    assert_maps(&kernel, K4, &[range(RAM + 8192, RAM + GIB - 4096)]);
}

/// Reserved ranges are mapped, but not given out: free memory shrinks by just the pages they touch,
/// and by those that the tree itself grows.
#[test]
fn reserved_ranges_are_mapped_but_kept() {
    let (start, bytes) = (RAM + 300 * MIB + 5, 3 * MIB + 3);
    let plain = crafted(K4);
    let free = |tree: &Crafted| {
        let kernel = tree.ok();
        assert_maps(&kernel, K4, &[range(RAM, RAM + GIB)]);
        kernel.number("memory.free_bytes") + up(tree.bytes().len() as u64, K4)
    };
    let touched = up(start + bytes, K4) - down(start, K4);
    assert_eq!(touched, 3 * MIB + 4096);
    let without = free(&plain);

    let mut node = crafted(K4);
    node.reserved(start, bytes, false);
    assert_eq!(
        without - free(&node),
        touched,
        "a child of /reserved-memory"
    );

    let mut block = crafted(K4);
    block.memreserve(start, bytes);
    assert_eq!(without - free(&block), touched, "the reservation block");

    let mut both = crafted(K4);
    both.memreserve(start, bytes)
        .reserved(start + 4096, bytes, false);
    assert_eq!(without - free(&both), touched + 4096, "both, which overlap");

    // Where there is a disk there may be programs, for whose stacks the kernel has tables: against
    // a disk of one page they are the same.
    let mut disk = crafted(K4);
    disk.set("/chosen", "linux,initrd-start", start);
    disk.set("/chosen", "linux,initrd-end", start + 1);
    let one_page = free(&disk);
    assert!(one_page <= without - 4096, "a disk of one page");
    disk.set("/chosen", "linux,initrd-end", start + bytes);
    let kept = touched - 4096;
    assert_eq!(one_page - free(&disk), kept, "the initial RAM disk");

    disk.set("/chosen", "linux,initrd-start", start as u32);
    disk.set("/chosen", "linux,initrd-end", (start + bytes) as u32);
    assert_eq!(
        one_page - free(&disk),
        kept,
        "the disk's addresses in one cell"
    );
}

/// The end of the image is static storage that is given back in the end; what firmware reserved
/// there is not ours to give.
#[test]
fn a_reserved_range_in_the_images_static_storage_is_kept() {
    for size in PageSize::ALL {
        let given_back = |tree: &Crafted| tree.ok().number("memory.static_bytes_given_back");
        let without = given_back(&crafted(size));
        let end = IMAGE + image_memory();
        let mut tree = crafted(size);
        tree.memreserve(end - 0x1_0000, 1)
            .reserved(end - 8, 16, false);
        let touched = if size == K64 {
            0x1_0000
        } else {
            2 * size.bytes()
        };
        assert_eq!(without - given_back(&tree), touched, "{size:?}");
    }
}

/// The bytes of memory that the image's header requires.
fn image_memory() -> u64 {
    let image = std::fs::read(crate::image::image()).unwrap();
    u64::from_le_bytes(image[16..24].try_into().unwrap())
}

#[test]
fn an_initial_ram_disk_by_qemu_is_kept() {
    let files = tempfile::tempdir().unwrap();
    let disk = files.path().join("disk");
    std::fs::write(&disk, vec![7; 5 * MIB as usize]).unwrap();
    let request = sized(K64).initrd(disk);
    let with = crate::kernel::machine::ok(&request).number("memory.free_bytes");
    let without = crate::kernel::machine::ok(&sized(K64)).number("memory.free_bytes");
    // The tree that QEMU makes grows by the two properties that describe the disk.
    assert!(
        (5 * MIB..=5 * MIB + K64.bytes()).contains(&(without - with)),
        "{without} {with}"
    );
}

#[test]
fn a_reserved_range_outside_ram_is_reported_and_harmless() {
    let mut tree = crafted(K4);
    tree.reserved(0x1_0000_0000, 0x1000, false)
        .memreserve(RAM + GIB - 0x1000, 0x3000);
    let kernel = tree.ok();
    assert_maps(&kernel, K4, &[range(RAM, RAM + GIB)]);
    kernel.prints("reserved range 0x100000000 to 0x100001000 lies outside RAM");
    kernel.prints("reserved range 0x80000000 to 0x80002000 lies outside RAM");
}

#[test]
fn the_image_may_lie_in_the_last_of_many_banks() {
    let banks = [
        (RAM + 4 * MIB, 8 * MIB),
        (RAM + 32 * MIB, 8 * MIB),
        (RAM + 512 * MIB, 64 * MIB),
    ];
    let mut tree = Crafted::new(&Request {
        load_address: Some(RAM + 512 * MIB),
        memory: GIB,
        rodata: Some(Rodata::Off),
        ..sized(K16)
    });
    let kernel = tree.banks(&banks).ok();
    let ranges = banks.map(|(start, bytes)| range(start, start + bytes));
    assert_maps(&kernel, K16, &ranges);
}

/// 128 of each kind is what early memory holds; the image and the tree are two reserved ranges.
#[test]
fn as_many_ranges_as_fit() {
    let mut banks: Vec<_> = (0..128).map(|n| (RAM + n * 8 * MIB, 4 * MIB)).collect();
    // The image lies in the first, 2 MiB from its start.
    banks[0].1 = 7 * MIB;
    let mut tree = crafted(K4);
    tree.banks(&banks);
    for (start, _) in &banks[1..] {
        tree.reserved(start + MIB, MIB, true);
    }
    for (start, _) in &banks[2..] {
        tree.memreserve(start + 3 * MIB, 4096);
    }
    let kernel = tree.ok();
    let mut ranges = vec![range(RAM, RAM + 7 * MIB)];
    for (start, bytes) in &banks[1..] {
        ranges.push(range(*start, start + MIB));
        ranges.push(range(start + 2 * MIB, start + bytes));
    }
    assert_maps(&kernel, K4, &ranges);
}

/// Of too many banks the smallest are left out; no-map ranges are joined, with the memory between them.
#[test]
fn any_number_of_banks_and_no_map_ranges_boots() {
    let kib = MIB / 1024;
    for size in PageSize::ALL {
        for count in [128, 129, 600, 5000] {
            let first = (RAM, 64 * MIB);
            let small = |n: u64| (RAM + 65 * MIB + n * 192 * kib, 64 * kib);
            let all: Vec<_> = std::iter::once(first)
                .chain((1..count).map(small))
                .collect();
            let mut banks = crafted(size);
            banks.banks(&[]).bank_node(&all);
            let kernel = banks.ok();
            let kept = all[..128]
                .iter()
                .map(|(start, bytes)| range(*start, start + bytes));
            assert_maps(&kernel, size, &kept.collect::<Vec<_>>());
            let left_out = (count - 128) * 64 * kib;
            assert_eq!(
                kernel.console.contains(&format!(
                    "RAM in more than 128 places; {left_out} bytes in the smallest are left out"
                )),
                count > 128
            );
            let mut no_map = crafted(size);
            for n in 0..count {
                no_map.reserved(small(n).0, 4 * kib, true);
            }
            let kernel = no_map.ok();
            // 128 ranges are left; the nearest, which are the first, became one.
            let last = |n: u64| small(n).0 + 4 * kib;
            let joined = count - 128;
            let mut at = RAM;
            let mut ranges = Vec::new();
            for n in joined..count {
                let start = if n == joined { small(0).0 } else { small(n).0 };
                ranges.push(range(at, down(start, size)));
                at = up(last(n), size);
            }
            ranges.push(range(at, RAM + GIB));
            assert_maps(&kernel, size, &ranges);
            let between = joined * 188 * kib;
            assert_eq!(
                kernel.console.contains(&format!(
                    "no-map ranges in more than 128 places; {between} bytes between the nearest are not mapped either"
                )),
                count > 128
            );
        }
    }
}

#[test]
fn too_many_reservations_are_joined() {
    let mut tree = crafted(K4);
    for n in 0..129 {
        tree.reserved(RAM + 256 * MIB + n * 2 * MIB, MIB, false);
    }
    // Reservations need only be kept, so near ones are taken together. Image and tree are reserved before, so beside
    // the 33 gaps that leave 96 of 129 two more are joined.
    let kernel = tree.ok();
    let (_, line) = kernel
        .console
        .split_once("reserves memory in more than 96 places; ")
        .unwrap();
    let (between, rest) = line.split_once(' ').unwrap();
    assert!((33 * MIB..=35 * MIB).contains(&between.parse().unwrap()));
    assert!(rest.starts_with("bytes between the nearest are not used either"));
}

#[test]
fn the_image_in_a_no_map_range_is_refused() {
    let mut tree = crafted(K4);
    tree.reserved(IMAGE + 0x1000, 0x1000, true);
    let kernel = tree.refused();
    kernel.fails_with("no-map");
    kernel.fails_with("image");
}
