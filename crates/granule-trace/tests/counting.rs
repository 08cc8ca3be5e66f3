//! The arithmetic of counters. What is counted of page tables is tested with their operations.

#![allow(clippy::unwrap_used)]

use granule_trace::recorder::{Counters, Counts};

#[test]
fn counters_in_a_static_add_up() {
    static COUNTERS: Counters = Counters::new();
    let one = Counts {
        stores: 1,
        tables: 2,
        tlbi: 3,
        dsb: 4,
        isb: 5,
    };
    // Another thread reads what this one adds.
    COUNTERS.add(one);
    COUNTERS.tables.add(1u64.wrapping_neg());
    let seen = std::thread::spawn(|| COUNTERS.get()).join().unwrap();
    assert_eq!(seen, Counts { tables: 1, ..one });
    let twice = Counts { stores: 2, ..one };
    assert_eq!(
        twice.since(&one),
        Counts {
            stores: 1,
            ..Counts::default()
        }
    );
}
