//! The set of addresses against one of single bytes.

use granule_kexec::{Full, PhysRange, Ranges};
use granule_testing::cases::config;
use proptest::prelude::*;
use std::collections::BTreeSet;

proptest! {
    #![proptest_config(config(400, 8))]

    #[test]
    fn holds_what_was_inserted_and_nothing_else(
        inserted in prop::collection::vec((0u64..60, 0u64..9), 0..25),
        room in 1usize..12,
    ) {
        let mut slots = vec![PhysRange::new(7, 7); room];
        let mut ranges = Ranges::new(&mut slots);
        let mut expected = BTreeSet::new();
        for (start, bytes) in inserted {
            let before = ranges.all().to_vec();
            match ranges.insert(PhysRange::new(start, bytes)) {
                Ok(()) => expected.extend(start..start + bytes),
                Err(full) => {
                    prop_assert_eq!(full, Full { room });
                    prop_assert_eq!(before.len(), room);
                    prop_assert_eq!(ranges.all(), &before[..]);
                }
            }
            let all = ranges.all();
            let found: BTreeSet<u64> = all.iter().flat_map(|it| it.start..it.start + it.bytes).collect();
            prop_assert_eq!(&found, &expected);
            // Ascending, and with something between.
            prop_assert!(all.windows(2).all(|two| two[0].start + two[0].bytes < two[1].start));
        }
    }
}

#[test]
fn the_last_address_is_an_end() {
    let mut slots = [PhysRange::default(); 2];
    let mut ranges = Ranges::new(&mut slots);
    ranges.insert(PhysRange::new(u64::MAX - 9, 100)).unwrap();
    ranges.insert(PhysRange::new(u64::MAX - 20, 11)).unwrap();
    assert_eq!(ranges.all(), [PhysRange::new(u64::MAX - 20, 20)]);
}
