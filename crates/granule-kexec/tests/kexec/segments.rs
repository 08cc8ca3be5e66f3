//! Everything that is refused of segments, each by its own error, and nothing is done then.

use crate::scene::{Memory, Pages, RAM, write};
use granule::arch::PageSize;
use granule_kexec::{
    ANYWHERE, Clean, MemoryMap, PhysRange, Refusal, Segment, TREE_BLOCK, check, check_boot,
    check_places, find_place, in_the_way, near, plan,
};

const MIB: u64 = 1 << 20;
pub const BASE: u64 = RAM[0].start;
const FIRMWARE: PhysRange = PhysRange::new(BASE + 40 * MIB, 2 * MIB);
const HANDED: PhysRange = PhysRange::new(BASE + 44 * MIB, 0x1000);

pub fn memory_map() -> MemoryMap<'static> {
    MemoryMap {
        page: PageSize::K4,
        ram: &RAM,
        reserved: &[FIRMWARE],
        kept: &[HANDED],
    }
}

const SOURCE: [PhysRange; 1] = [PhysRange::new(BASE + 20 * MIB, 2 * MIB)];
const TREE: [PhysRange; 1] = [PhysRange::new(BASE + 23 * MIB, 0x1000)];

fn image() -> Segment<'static> {
    Segment {
        name: "image",
        destination: BASE + 2 * MIB,
        bytes: 2 * MIB - 5,
        memory: 3 * MIB,
        pages: &SOURCE,
        clean: Clean::All,
    }
}

fn tree() -> Segment<'static> {
    Segment {
        name: "device tree",
        destination: BASE + 8 * MIB,
        bytes: 100,
        memory: 0x1000,
        pages: &TREE,
        clean: Clean::All,
    }
}

/// Checks that all checks alike refuse these segments with a line that contains `expected`, and that
/// nothing is emitted, no page taken and nothing written.
#[track_caller]
fn refused(segments: &[Segment<'_>], expected: &str) {
    let why = check(segments, &memory_map()).unwrap_err();
    let emitted = plan(segments, &memory_map(), |record| panic!("{record:?}"));
    assert_eq!(emitted, Err(why));
    let mut memory = Memory::default();
    let mut pages = Pages::new(PageSize::K4, BASE + 30 * MIB, 20);
    let list = write(&mut memory, &mut pages, segments, &memory_map());
    assert_eq!(list, Err(why));
    assert!(pages.out.is_empty() && memory == Memory::default());
    let line = why.to_string();
    assert!(
        line.contains(expected) && line.lines().count() == 1,
        "{line:?} lacks {expected:?}"
    );
}

/// The tree in other memory.
fn placed(destination: u64, memory: u64) -> Segment<'static> {
    Segment {
        destination,
        memory,
        ..tree()
    }
}

#[test]
fn impossible_places_are_refused() {
    let (low, high) = (RAM[0], RAM[1]);
    let (low_end, high_end) = (low.start + low.bytes, high.start + high.bytes);
    let empty = Segment { bytes: 0, ..tree() };
    let full = Segment {
        bytes: 0x1001,
        ..tree()
    };
    let endless = Segment {
        bytes: u64::MAX,
        ..placed(u64::MAX - 0x1fff, 0x1000)
    };
    let page = "this kernel's 4k page size";
    let (memory, outside) = ("bytes of memory, which does not go", "which is not all RAM");
    for (wrong, expected) in [
        (empty, "the device tree has no bytes"),
        (placed(BASE + 8 * MIB + 0x800, 0x1000), page),
        (placed(BASE + 8 * MIB, 0x1800), page),
        (full, "the device tree has 0x1001 bytes and 0x1000"),
        (placed(u64::MAX - 0xfff, 0x1000), memory),
        (placed(BASE, u64::MAX - 0xfff), memory),
        (endless, memory),
        (placed(0, 0x1000), outside),
        (placed(low.start - 0x1000, 0x2000), outside),
        (placed(low_end, 0x1000), outside),
        // Across the hole.
        (
            placed(low_end - 0x1000, high.start - low_end + 0x2000),
            outside,
        ),
        (placed(high_end - 0x1000, 0x2000), outside),
        (
            placed(image().destination, 0x1000),
            "the device tree at 0x40200000..0x40201000 overlaps the image",
        ),
        (
            placed(image().destination + 3 * MIB - 0x1000, 0x1000),
            "overlaps the image at 0x40200000..0x40500000",
        ),
    ] {
        refused(&[image(), wrong], expected);
    }
    for taken in [FIRMWARE, HANDED] {
        for (start, memory) in [
            (taken.start, 0x1000),
            (taken.start - 0x1000, 0x2000),
            (taken.start + taken.bytes - 0x1000, 0x2000),
        ] {
            refused(
                &[image(), placed(start, memory)],
                &format!("where {taken} is reserved"),
            );
        }
    }
    // Places that are valid for 4K need not be for 64K.
    let memory_map = MemoryMap {
        page: PageSize::K64,
        ..memory_map()
    };
    let why = check_places(&[tree()], &memory_map).unwrap_err();
    assert!(
        matches!(why, Refusal::Misaligned { value: 0x1000, .. }),
        "{why}"
    );
}

#[test]
fn sources_that_cannot_be_read_are_refused() {
    let (place, page) = (image().destination, "this kernel's 4k page size");
    let run = PhysRange::new;
    let (count, kind) = (
        "takes 0x1000 bytes of pages, and has",
        "which is not RAM that they can be in",
    );
    let overwritten = "where the image is to be: they would be written over";
    for (pages, expected) in [
        (&[run(BASE + 23 * MIB + 8, 0x1000)][..], page),
        (&[run(BASE + 23 * MIB, 0x1008)], page),
        (&[], count),
        (&[run(BASE + 23 * MIB, 0x2000)], count),
        (
            &[run(BASE + 23 * MIB, 0x1000), run(BASE + 24 * MIB, 0x1000)],
            count,
        ),
        (&[run(0x1000, 0x1000)], kind),
        (&[run(RAM[0].start + RAM[0].bytes, 0x1000)], kind),
        (&[HANDED], kind),
        (&[run(BASE, 0), run(BASE, 0x1000)], kind),
        (&[run(u64::MAX - 0xfff, 0x1000)], kind),
        // In another one's place, and in what another one zeroes itself.
        (&[run(place, 0x1000)], overwritten),
        (&[run(place + 3 * MIB - 0x1000, 0x1000)], overwritten),
    ] {
        refused(&[image(), Segment { pages, ..tree() }], expected);
    }
    // In one's own place, but elsewhere.
    let pages = &[run(place + 0x1000, 2 * MIB)];
    refused(&[Segment { pages, ..image() }], overwritten);
}

#[test]
fn right_segments_are_not_refused() {
    let behind = placed(image().destination + image().memory, 0x1000);
    // Reserved memory may be read: firmware may have left an initramfs there.
    let pages = &[FIRMWARE];
    for right in [
        &[image(), tree()][..],
        &[image(), behind],
        &[placed(FIRMWARE.start - 0x1000, 0x1000)],
        &[placed(HANDED.start - 0x1000, 0x1000)],
        &[Segment { pages, ..image() }],
    ] {
        assert_eq!(check(right, &memory_map()), Ok(()));
    }
    // Banks that touch are one, in any order.
    let ram = [
        PhysRange::new(0x3000, 0x1000),
        PhysRange::new(0x1000, 0x2000),
    ];
    let memory_map = MemoryMap {
        ram: &ram,
        reserved: &[],
        kept: &[],
        ..memory_map()
    };
    assert_eq!(check_places(&[placed(0x2000, 0x2000)], &memory_map), Ok(()));
}

#[test]
fn pages_of_the_transition_must_be_elsewhere() {
    let segments = [image(), tree()];
    let at = |start| in_the_way(&segments, &PhysRange::new(start, 0x1000)).map(|one| one.name);
    assert_eq!(at(BASE + 2 * MIB), Some("image"));
    assert_eq!(at(BASE + 5 * MIB - 0x1000), Some("image"));
    assert_eq!(at(BASE + 5 * MIB), None);
    assert_eq!(at(BASE + 2 * MIB - 0x1000), None);
    assert_eq!(at(BASE + 8 * MIB), Some("device tree"));
}

#[test]
fn the_lowest_place_is_found_and_too_big_is_refused() {
    let too_big = |memory, longest| {
        Err(Refusal::TooBig {
            segment: "image",
            memory,
            longest,
        })
    };
    let anywhere = |memory, align, taken: &[Segment<'_>]| {
        find_place("image", memory, align, &ANYWHERE, taken, &memory_map())
    };
    assert_eq!(anywhere(MIB, (2 * MIB, 0), &[]), Ok(BASE));
    assert_eq!(anywhere(MIB, (2 * MIB, 0x8_0000), &[]), Ok(BASE + 0x8_0000));
    // Behind the image, which ends at 5 MiB.
    assert_eq!(
        anywhere(3 * MIB, (2 * MIB, 0), &[image()]),
        Ok(BASE + 6 * MIB)
    );
    assert_eq!(anywhere(MIB, (0x1000, 0), &[image()]), Ok(BASE));
    // Only behind the hole.
    let low = placed(BASE, 40 * MIB);
    assert_eq!(anywhere(8 * MIB, (2 * MIB, 0), &[low]), Ok(BASE + 52 * MIB));
    let refused = anywhere(41 * MIB, (2 * MIB, 0), &[]);
    assert_eq!(refused, too_big(41 * MIB, 40 * MIB));
    let line = refused.unwrap_err().to_string();
    assert!(
        line.contains("0x2900000") && line.contains("0x2800000"),
        "{line}"
    );
    assert!(anywhere(u64::MAX, (1, 0), &[]).is_err());

    let inside = |memory, start, bytes| {
        let within = PhysRange::new(BASE + start, bytes);
        find_place(
            "image",
            memory,
            (0x1000, 0),
            &within,
            &[image()],
            &memory_map(),
        )
    };
    assert_eq!(inside(MIB, 0, 64 * MIB), Ok(BASE));
    // In the middle of a bank, and of what is taken.
    assert_eq!(
        inside(MIB, 7 * MIB + 1, 64 * MIB),
        Ok(BASE + 7 * MIB + 0x1000)
    );
    assert_eq!(inside(MIB, 3 * MIB, 64 * MIB), Ok(BASE + 5 * MIB));
    // Up to its last byte.
    assert_eq!(inside(2 * MIB, 6 * MIB, 2 * MIB), Ok(BASE + 6 * MIB));
    let refused = inside(2 * MIB, 6 * MIB + 1, 2 * MIB);
    assert_eq!(refused, too_big(2 * MIB, 2 * MIB - 0xfff));
}

const GIB: u64 = 1 << 30;

/// RAM from 1 GiB to 129 GiB, with an image somewhere, an initramfs and a tree.
fn boots(image_at: u64, initramfs: u64, tree_at: PhysRange) -> Result<(), Refusal> {
    let ram = [
        PhysRange::new(GIB, 64 * GIB),
        PhysRange::new(65 * GIB, 64 * GIB + 0x1000),
    ];
    let memory_map = MemoryMap {
        ram: &ram,
        ..memory_map()
    };
    let one = |name, destination, bytes: u64| Segment {
        name,
        destination,
        bytes,
        memory: bytes.next_multiple_of(0x1000),
        ..tree()
    };
    let image = one("image", image_at, 16 * MIB);
    let initramfs = one("initramfs", initramfs, 64 * MIB);
    let tree = one("tree", tree_at.start, tree_at.bytes);
    // A page in the midst of a block, and one that ends where a block does.
    let unmapped = [
        PhysRange::new(100 * GIB + MIB, 0x1000),
        PhysRange::new(101 * GIB - 0x1000, 0x1000),
    ];
    let place = initramfs.place();
    let result = check_boot(&image, Some(&initramfs), &tree, &memory_map, &unmapped);
    assert_eq!(
        near(&image.place()).holds(&place),
        !matches!(result, Err(Refusal::Far { .. }))
    );
    result
}

/// Both ends of the window, from below and from above; the window begins at whole gibibytes.
#[test]
fn an_initramfs_is_within_32_gib_of_its_image() {
    let tree = PhysRange::new(2 * GIB, 0x1000);
    let image = 40 * GIB + 8 * MIB;
    for (initramfs, near) in [
        (image + 16 * MIB, true),
        (72 * GIB - 64 * MIB, true),
        (72 * GIB - 64 * MIB + 0x1000, false),
        (72 * GIB, false),
        (image - 64 * MIB, true),
        (9 * GIB, true),
        (9 * GIB - 0x1000, false),
        (GIB, false),
    ] {
        let result = boots(image, initramfs, tree);
        assert_eq!(result.is_ok(), near, "{initramfs:#x}: {result:?}");
    }
    let line = boots(image, GIB, tree).unwrap_err().to_string();
    assert!(line.contains("0x240000000..0x1200000000"), "{line}");
    assert_eq!(near(&PhysRange::new(GIB, MIB)), PhysRange::new(0, 33 * GIB));
    // Whatever an image contains, no address wraps.
    let last = near(&PhysRange::new(u64::MAX - 0xfff, 0x1000));
    assert_eq!(last.start, 32_u64.wrapping_mul(GIB).wrapping_neg());
}

#[test]
fn a_tree_lies_in_blocks_that_may_be_mapped() {
    let tree = |start, bytes| boots(GIB, GIB + 16 * MIB, PhysRange::new(start, bytes));
    assert_eq!(tree(2 * GIB, TREE_BLOCK), Ok(()));
    // Two blocks, neither of which is another kind of memory.
    assert_eq!(tree(2 * GIB + MIB, TREE_BLOCK), Ok(()));
    let long = tree(2 * GIB, TREE_BLOCK + 1);
    assert!(matches!(
        long,
        Err(Refusal::Long {
            bytes: 0x20_0001,
            most: 0x20_0000,
            ..
        })
    ));
    for (start, bytes, mapped) in [
        (100 * GIB, 0x1000, false),
        (100 * GIB + MIB + 0x1000, 0x1000, false),
        (100 * GIB - 0x1000, 0x1000, true),
        (100 * GIB - 0x1000, 0x1001, false),
        (100 * GIB + 2 * MIB, 0x1000, true),
        (101 * GIB - 2 * MIB, 0x1000, false),
        (101 * GIB, 0x1000, true),
        // RAM ends within the block.
        (129 * GIB - 2 * MIB, 0x1000, true),
        (129 * GIB, 0x1000, false),
    ] {
        let result = tree(start, bytes);
        assert_eq!(result.is_ok(), mapped, "{start:#x}: {result:?}");
        if let Err(why) = result {
            assert!(why.to_string().contains("blocks of 2 MiB"), "{why}");
        }
    }
}
