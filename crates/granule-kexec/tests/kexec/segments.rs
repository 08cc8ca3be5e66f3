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

/// Returns the refusal of a wrong pair of segments, the same by all checks; nothing is emitted, no
/// page taken, nothing written.
fn refused(segments: &[Segment<'_>]) -> Refusal {
    let why = check(segments, &memory_map()).unwrap_err();
    let emitted = plan(segments, &memory_map(), |record| panic!("{record:?}"));
    assert_eq!(emitted, Err(why));
    let mut memory = Memory::default();
    let mut pages = Pages::new(PageSize::K4, BASE + 30 * MIB, 20);
    let list = write(&mut memory, &mut pages, segments, &memory_map());
    assert_eq!(list, Err(why));
    assert!(pages.out.is_empty() && memory == Memory::default());
    let line = why.to_string();
    assert!(line.lines().count() == 1 && !line.is_empty(), "{line}");
    why
}

#[test]
fn right_ones_are_not_refused() {
    assert_eq!(check(&[image(), tree()], &memory_map()), Ok(()));
}

#[test]
fn no_bytes() {
    let empty = Segment { bytes: 0, ..tree() };
    assert_eq!(
        refused(&[image(), empty]),
        Refusal::Empty {
            segment: "device tree"
        }
    );
}

#[test]
fn half_pages() {
    let page = PageSize::K4;
    for wrong in [
        Segment {
            destination: BASE + 8 * MIB + 0x800,
            ..tree()
        },
        Segment {
            memory: 0x1800,
            ..tree()
        },
        Segment {
            pages: &[PhysRange::new(BASE + 23 * MIB + 8, 0x1000)],
            ..tree()
        },
        Segment {
            pages: &[PhysRange::new(BASE + 23 * MIB, 0x1008)],
            ..tree()
        },
    ] {
        let why = refused(&[image(), wrong]);
        assert!(
            matches!(why, Refusal::Misaligned { segment: "device tree", page: found, .. } if found == page),
            "{why}"
        );
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
fn memory_that_does_not_go() {
    for (destination, bytes, memory) in [
        (BASE, 0x1001, 0x1000),
        (u64::MAX - 0xfff, 1, 0x1000),
        (BASE, 1, u64::MAX - 0xfff),
        (u64::MAX - 0x1fff, u64::MAX, 0x1000),
    ] {
        let wrong = Segment {
            destination,
            bytes,
            memory,
            ..tree()
        };
        let why = refused(&[wrong]);
        assert!(matches!(why, Refusal::Memory { .. }), "{why}");
    }
}

#[test]
fn outside_ram() {
    let (low, high) = (RAM[0], RAM[1]);
    for (destination, memory) in [
        (0, 0x1000),
        (low.start - 0x1000, 0x2000),
        (low.start + low.bytes, 0x1000),
        // Across the hole.
        (
            low.start + low.bytes - 0x1000,
            high.start - low.start - low.bytes + 0x2000,
        ),
        (high.start + high.bytes - 0x1000, 0x2000),
    ] {
        let wrong = Segment {
            destination,
            memory,
            ..tree()
        };
        let why = refused(&[image(), wrong]);
        assert!(matches!(why, Refusal::OutsideRam { .. }), "{why}");
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
    let over = Segment {
        destination: 0x2000,
        memory: 0x2000,
        ..tree()
    };
    assert_eq!(check_places(&[over], &memory_map), Ok(()));
}

#[test]
fn in_reserved_memory() {
    for taken in [FIRMWARE, HANDED] {
        for (destination, memory) in [
            (taken.start, 0x1000),
            (taken.start - 0x1000, 0x2000),
            (taken.start + taken.bytes - 0x1000, 0x2000),
        ] {
            let wrong = Segment {
                destination,
                memory,
                ..tree()
            };
            let why = refused(&[image(), wrong]);
            assert!(
                matches!(why, Refusal::Reserved { reserved, .. } if reserved == taken),
                "{why}"
            );
        }
        // Right beside it is right.
        let beside = Segment {
            destination: taken.start - 0x1000,
            ..tree()
        };
        assert_eq!(check(&[beside], &memory_map()), Ok(()));
    }
}

#[test]
fn overlapping_each_other() {
    let image = image();
    for destination in [image.destination, image.destination + 3 * MIB - 0x1000] {
        let wrong = Segment {
            destination,
            ..tree()
        };
        let why = refused(&[image, wrong]);
        assert!(
            matches!(
                why,
                Refusal::Overlap {
                    segment: "device tree",
                    other: "image",
                    ..
                }
            ),
            "{why}"
        );
    }
    let behind = Segment {
        destination: image.destination + image.memory,
        ..tree()
    };
    assert_eq!(check(&[image, behind], &memory_map()), Ok(()));
}

#[test]
fn too_few_pages_and_too_many() {
    for pages in [
        &[][..],
        &[PhysRange::new(BASE + 23 * MIB, 0x2000)],
        &[
            PhysRange::new(BASE + 23 * MIB, 0x1000),
            PhysRange::new(BASE + 24 * MIB, 0x1000),
        ],
    ] {
        let why = refused(&[image(), Segment { pages, ..tree() }]);
        assert!(
            matches!(
                why,
                Refusal::Pages {
                    segment: "device tree",
                    needed: 0x1000,
                    ..
                }
            ),
            "{why}"
        );
    }
}

#[test]
fn bytes_where_none_can_be() {
    for pages in [
        &[PhysRange::new(0x1000, 0x1000)][..],
        &[PhysRange::new(RAM[0].start + RAM[0].bytes, 0x1000)],
        &[HANDED],
        &[PhysRange::new(BASE, 0), PhysRange::new(BASE, 0x1000)],
        &[PhysRange::new(u64::MAX - 0xfff, 0x1000)],
    ] {
        let why = refused(&[image(), Segment { pages, ..tree() }]);
        assert!(matches!(why, Refusal::Source { .. }), "{why}");
    }
    // Reserved memory may be read: firmware may have left an initramfs there.
    let pages = &[FIRMWARE];
    let from_firmware = Segment { pages, ..image() };
    assert_eq!(check(&[from_firmware], &memory_map()), Ok(()));
}

#[test]
fn bytes_that_would_be_written_over_before_they_are_read() {
    let image = image();
    let place = image.destination;
    // In another one's place; in what another one zeroes itself; in one's own, but elsewhere.
    for start in [place, place + 3 * MIB - 0x1000] {
        let pages = [PhysRange::new(start, 0x1000)];
        let wrong = Segment {
            pages: &pages,
            ..tree()
        };
        let why = refused(&[image, wrong]);
        assert!(
            matches!(why, Refusal::InTheWay { other: "image", .. }),
            "{why}"
        );
    }
    let shifted = [PhysRange::new(place + 0x1000, 2 * MIB)];
    let wrong = Segment {
        pages: &shifted,
        ..image
    };
    let why = refused(&[wrong]);
    assert!(
        matches!(
            why,
            Refusal::InTheWay {
                segment: "image",
                other: "image",
                ..
            }
        ),
        "{why}"
    );
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
    let place = |memory, align, taken: &[Segment<'_>]| {
        find_place("image", memory, align, &ANYWHERE, taken, &memory_map())
    };
    assert_eq!(place(MIB, (2 * MIB, 0), &[]), Ok(BASE));
    assert_eq!(place(MIB, (2 * MIB, 0x8_0000), &[]), Ok(BASE + 0x8_0000));
    // Behind the image, which ends at 5 MiB.
    assert_eq!(place(3 * MIB, (2 * MIB, 0), &[image()]), Ok(BASE + 6 * MIB));
    assert_eq!(place(MIB, (0x1000, 0), &[image()]), Ok(BASE));
    // Only behind the hole.
    let low = Segment {
        destination: BASE,
        memory: 40 * MIB,
        ..image()
    };
    assert_eq!(place(8 * MIB, (2 * MIB, 0), &[low]), Ok(BASE + 52 * MIB));
    assert_eq!(
        place(41 * MIB, (2 * MIB, 0), &[]),
        Err(Refusal::TooBig {
            segment: "image",
            memory: 41 * MIB,
            longest: 40 * MIB,
        })
    );
    assert!(place(u64::MAX, (1, 0), &[]).is_err());
    let line = place(41 * MIB, (2 * MIB, 0), &[]).unwrap_err().to_string();
    assert!(
        line.contains("0x2900000") && line.contains("0x2800000"),
        "{line}"
    );
}

#[test]
fn a_place_is_found_in_a_part_of_ram() {
    let place = |memory, within: PhysRange| {
        find_place(
            "initramfs",
            memory,
            (0x1000, 0),
            &within,
            &[image()],
            &memory_map(),
        )
    };
    let from = |start, bytes| PhysRange::new(BASE + start, bytes);
    assert_eq!(place(MIB, from(0, 64 * MIB)), Ok(BASE));
    // In the middle of a bank, and of what is taken.
    assert_eq!(
        place(MIB, from(7 * MIB + 1, 64 * MIB)),
        Ok(BASE + 7 * MIB + 0x1000)
    );
    assert_eq!(place(MIB, from(3 * MIB, 64 * MIB)), Ok(BASE + 5 * MIB));
    // Up to its last byte.
    assert_eq!(place(2 * MIB, from(6 * MIB, 2 * MIB)), Ok(BASE + 6 * MIB));
    assert_eq!(
        place(2 * MIB, from(6 * MIB + 1, 2 * MIB)),
        Err(Refusal::TooBig {
            segment: "initramfs",
            memory: 2 * MIB,
            longest: 2 * MIB - 0xfff,
        })
    );
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
