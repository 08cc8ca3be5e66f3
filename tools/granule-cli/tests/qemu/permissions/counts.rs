//! The cost of changes in a block of 1 GiB, worked out here from the page size alone.

use granule_cli::PageSize::{self, K4, K16, K64};

use crate::permissions::machine::{machine, ok};

const GIB: u64 = 1 << 30;

/// The changes of `memory/selftest/counts.rs` in the kernel: name, first byte, bytes (0: a page).
const CHANGES: [(&str, u64, u64); 8] = [
    ("first", 0, 0),
    ("middle", GIB / 2 + (768 << 20) / 1024 * 128, 0),
    ("k64", 0x1234_0000, 64 << 10),
    ("m2", 0x1220_0000, 2 << 20),
    ("across", GIB / 2 - (64 << 10), 128 << 10),
    ("m32", 0x1200_0000, 32 << 20),
    ("m512", GIB / 2, GIB / 2),
    ("g1", 0, GIB),
];

/// The leaves and groups that a naturally aligned GiB is made of, largest first: bytes of an entry,
/// entries of a group (1 for a leaf), and whether an entry is split by a table of the next row's.
fn shape(size: PageSize) -> &'static [(u64, u64)] {
    match size {
        K4 => &[(1 << 30, 1), (2 << 20, 16), (4 << 10, 16)],
        K16 => &[(32 << 20, 32), (16 << 10, 128)],
        K64 => &[(512 << 20, 1), (64 << 10, 32)],
    }
}

/// Tables that a change adds, the stores it takes, and the stores of changing it back.
fn expected(size: PageSize, start: u64, bytes: u64) -> (u64, u64, u64) {
    let shape = shape(size);
    let page = size.bytes();
    let end = start + bytes;
    let cuts = |span: u64| -> Vec<u64> {
        let mut cut: Vec<_> = [start, end]
            .into_iter()
            .filter(|edge| edge % span != 0)
            .map(|edge| edge / span)
            .collect();
        cut.dedup();
        cut
    };
    let (mut tables, mut stores) = (0, 0);
    for (row, (entry, group)) in shape.iter().enumerate() {
        let whole = row + 1 == shape.len();
        if row == 0 && *group > 1 {
            // The existing pages are a group, which loses its hint.
            stores += group * cuts(entry * group).len() as u64;
        }
        if whole {
            break;
        }
        let cut = cuts(*entry).len() as u64;
        let (below, _) = shape[row + 1];
        tables += cut;
        stores += cut * (entry / below);
        if row == 0 {
            // One store links what was split; what is below is linked while it is private.
            stores += cut;
        }
    }
    assert_eq!(shape.last().unwrap().0, page);
    // The change itself: of the largest entries that the cuts leave.
    let mut changed = 0;
    let mut at = start;
    while at < end {
        let largest = shape.iter().map(|(entry, _)| *entry);
        let fits = |entry: &u64| at.is_multiple_of(*entry) && at + entry <= end;
        let entry = largest.into_iter().find(fits).unwrap();
        changed += 1;
        at += entry;
    }
    (tables, stores + changed, changed)
}

#[test]
fn a_change_takes_what_the_geometry_requires() {
    for size in PageSize::ALL {
        let mut request = machine(1, size, "granule.test=permission-counts");
        // Room for a free GiB beside the one that the image is in.
        request.memory = 4 << 30;
        let made = ok(&request);
        for (name, start, bytes) in CHANGES {
            let bytes = bytes.max(size.bytes());
            let start = start & !(size.bytes() - 1);
            let (tables, stores, changed) = expected(size, start, bytes);
            let tested = |step: &str, key: &str| {
                let path = format!("counts.{name}.{step}.{key}");
                made.tested(&path)
            };
            let what = format!("{name} with {size:?}");
            assert_eq!(tested("ro", "tables"), tables, "{what}");
            assert_eq!(tested("ro", "stores"), stores, "{what}");
            assert!(tables <= 3, "{what}");
            for (step, stores, invalidates) in [
                ("ro", stores, true),
                ("rw", changed, true),
                ("invalid", changed, true),
                ("default", changed, false),
            ] {
                assert_eq!(tested(step, "stores"), stores, "{step} of {what}");
                assert_eq!(tested(step, "locks"), 1, "{step} of {what}");
                // Two blocks of 64K pages are two operations by address.
                let most = u64::from(invalidates) * (1 + u64::from(size == K64));
                let tlbi = tested(step, "tlbi");
                assert!(
                    tlbi <= most && tlbi >= u64::from(invalidates),
                    "{tlbi} TLBIs for {step} of {what}"
                );
                if changed == 1 {
                    assert_eq!(tlbi, u64::from(invalidates), "{step} of {what}");
                }
                assert_eq!(tested(step, "dsb"), 1 + u64::from(invalidates), "{what}");
                assert_eq!(tested(step, "isb"), 1, "{what}");
            }
            for step in ["rw", "invalid", "default"] {
                assert_eq!(tested(step, "tables"), 0, "{step} of {what}");
            }
            // All tables come back, and the kernel has compared every leaf with before.
            assert_eq!(tested("merge", "tables"), tables, "{what}");
            assert_eq!(tested("merge", "locks"), 1, "{what}");
        }
    }
}

/// With N tables too few, for every N, nothing changes; with enough it does.
#[test]
fn a_split_without_memory_leaves_the_map_as_it_was() {
    for size in PageSize::ALL {
        let mut request = machine(2, size, "granule.test=exhaustion");
        request.memory = 4 << 30;
        let made = ok(&request);
        for call in ["ro", "invalid", "valid"] {
            for (name, start, bytes) in CHANGES {
                let bytes = bytes.max(size.bytes());
                let start = start & !(size.bytes() - 1);
                let (tables, ..) = expected(size, start, bytes);
                let seen = made.tested(&format!("exhaustion.{call}.{name}"));
                assert_eq!(seen, tables, "{call} of {name} with {size:?}");
            }
        }
    }
}
