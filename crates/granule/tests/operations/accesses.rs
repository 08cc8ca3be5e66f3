//! The accesses that an environment need not have: those that are made of a pointer, and those that are
//! made of loads and stores, do what the trait defines, for single calls and below every operation.

use crate::any::{answers, new_host};
use crate::exhaustion::EVERY;
use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{Descriptor, Dispatch, Geometry, Page, PageSize, PhysicalAddress, VaRange};
use granule::forward;
use granule::table::{BitChange, BitPattern, TableEnvironment, Visibility};
use granule_testing::cases::config;
use granule_testing::host::{self, Event, HostEnvironment};
use granule_testing::shape::PLAIN;
use proptest::prelude::*;

/// An environment of four functions.
struct Four(HostEnvironment);

// SAFETY: each call is handed on.
unsafe impl TableEnvironment for Four {
    forward!(self.0: reach allocate free invalidate);
}

/// An environment whose entries no pointer reaches: it has [`load`](TableEnvironment::load) and
/// [`store`](TableEnvironment::store), and no other access.
struct Words(HostEnvironment);

// SAFETY: each call is handed on.
unsafe impl TableEnvironment for Words {
    const BY_POINTER: bool = false;

    fn reach(&self, table: PhysicalAddress) -> *mut u64 {
        panic!("{table} is reached by a pointer")
    }

    forward!(self.0: load store reserve allocate allocate_run free invalidate capabilities);
}

/// The events, with one for each entry that is stored.
fn by_words(events: &[Event]) -> Vec<Event> {
    let one = |table, first, descriptor, visibility| Event::Store {
        table,
        first,
        count: 1,
        descriptor,
        step: 0,
        visibility,
    };
    let mut words = Vec::new();
    for event in events {
        match *event {
            Event::Store {
                table,
                first,
                count,
                descriptor,
                step,
                visibility,
            } => words.extend((0..count).map(|number| {
                let descriptor = descriptor.wrapping_add(step.wrapping_mul(number as u64));
                one(table, first + number, descriptor, visibility)
            })),
            Event::Change {
                table,
                index,
                descriptor,
                visibility,
            } => words.push(one(table, index, descriptor, visibility)),
            other => words.push(other),
        }
    }
    words
}

struct EveryOperation(Geometry);

impl Dispatch for EveryOperation {
    type Output = ();

    fn run<P: Page>(self) {
        let geometry = self.0;
        for (live, reserves) in EVERY {
            if cfg!(miri) && reserves {
                // The other half has all environments.
                continue;
            }
            let new = || {
                let (host, environment) = new_host(&geometry);
                if !reserves {
                    host.without_reservations();
                }
                (host, environment)
            };
            let (host, environment) = new();
            let expected = answers::<P, _>(geometry, environment, live);
            let events = by_words(&host.take_events());

            let (host, environment) = new();
            let found = answers::<P, _>(geometry, Words(environment), live);
            assert_eq!(found, expected, "by words");
            assert_eq!(host.take_events(), events);
            assert_eq!(host.given_out(), 0);

            if !reserves {
                let (host, environment) = new();
                let found = answers::<P, _>(geometry, Four(environment), live);
                assert_eq!(found, expected, "by four functions");
                assert_eq!(host.given_out(), 0);
            }
        }
    }
}

#[test]
fn an_environment_need_not_have_more() {
    let sizes = [(PageSize::K4, 48), (PageSize::K16, 47), (PageSize::K64, 42)];
    // Tables of the other sizes take Miri minutes.
    for (size, bits) in &sizes[..if cfg!(miri) { 1 } else { 3 }] {
        let geometry = PLAIN.geometry(*size, *bits, VaRange::Upper);
        size.dispatch(EveryOperation(geometry));
    }
}

/// An access to entries from `first` on.
#[derive(Clone, Copy, Debug)]
enum Access {
    Find(BitPattern),
    Fill(u64, u64),
    Exchange(u64),
    Update(BitChange),
    UpdateAlike(BitPattern, BitChange),
}

impl Access {
    /// Makes the access. The number that it returns, or the old entry.
    fn make<E: TableEnvironment>(
        self,
        environment: &mut E,
        table: PhysicalAddress,
        (first, count): (usize, usize),
        how: Visibility,
    ) -> Option<u64> {
        // SAFETY: the entries are in a page that nothing else uses.
        unsafe {
            match self {
                Self::Find(pattern) => environment
                    .find_unlike(table, first, count, pattern, how)
                    .map(|distance| distance as u64),
                Self::Fill(descriptor, step) => {
                    environment.fill(table, first, count, Descriptor(descriptor), step, how);
                    None
                }
                Self::Exchange(new) => {
                    Some(environment.exchange(table, first, Descriptor(new), how).0)
                }
                Self::Update(change) => {
                    Some(environment.update(table, first, count, change, how) as u64)
                }
                Self::UpdateAlike(pattern, change) => {
                    let alike = environment.update_alike(table, first, count, pattern, change, how);
                    Some(alike as u64)
                }
            }
        }
    }

    /// Changes `entries`, the named ones, as the trait defines it.
    fn expect(self, entries: &mut [u64]) -> Option<u64> {
        let update = |entries: &mut [u64], change: BitChange| {
            let mut changed = 0;
            for entry in entries {
                if *entry & change.of != 0 {
                    *entry = *entry & !change.clear | change.set;
                    changed += 1;
                }
            }
            changed
        };
        let unlike = |entries: &[u64], pattern: BitPattern| {
            let is_unlike = |entry: &u64| entry & pattern.mask != pattern.value;
            entries.iter().position(is_unlike)
        };
        match self {
            Self::Find(pattern) => unlike(entries, pattern).map(|distance| distance as u64),
            Self::Fill(descriptor, step) => {
                for (number, entry) in entries.iter_mut().enumerate() {
                    *entry = descriptor.wrapping_add(step.wrapping_mul(number as u64));
                }
                None
            }
            Self::Exchange(new) => Some(std::mem::replace(&mut entries[0], new)),
            Self::Update(change) => Some(update(entries, change)),
            Self::UpdateAlike(pattern, change) => {
                let end = unlike(entries, pattern).unwrap_or(entries.len());
                Some(update(&mut entries[..end], change))
            }
        }
    }
}

/// Entries that differ in few bits, so that many are alike.
fn entry() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => Just(Descriptor::VALID | Descriptor::ACCESS_FLAG),
        1 => Just(Descriptor::VALID),
        1 => Just(Descriptor::VALID | Descriptor::TABLE_OR_PAGE),
        1 => Just(Descriptor::PRESENT_INVALID),
        1 => Just(0),
    ]
}

fn access() -> impl Strategy<Value = Access> {
    let change = BitChange {
        of: Descriptor::VALID,
        clear: Descriptor::AP_USER | Descriptor::ACCESS_FLAG,
        set: Descriptor::AP_READ_ONLY,
    };
    let leaves = BitChange {
        of: BitChange::LEAVES,
        ..change
    };
    let pattern = proptest::sample::select(vec![BitPattern::BLOCK, BitPattern::PAGE]);
    let change = proptest::sample::select(vec![change, leaves]);
    let found =
        proptest::sample::select(vec![BitPattern::BLOCK, BitPattern::PAGE, BitPattern::EMPTY]);
    prop_oneof![
        found.prop_map(Access::Find),
        any::<(u64, u64)>().prop_map(|(descriptor, step)| Access::Fill(descriptor, step)),
        any::<u64>().prop_map(Access::Exchange),
        change.clone().prop_map(Access::Update),
        (pattern, change).prop_map(|(pattern, change)| Access::UpdateAlike(pattern, change)),
    ]
}

proptest! {
    #![proptest_config(config(300, 8))]

    #[test]
    fn each_access_does_what_is_defined(
        entries in proptest::collection::vec(entry(), 80),
        access in access(),
        (first, count) in (0..40_usize, 1..41_usize),
        how in proptest::sample::select(vec![Visibility::Private, Visibility::Live, Visibility::Publish]),
    ) {
        let geometry = PLAIN.geometry(PageSize::K4, 48, VaRange::Upper);
        let (host, environment) = new_host(&geometry);
        let mut words = Words(environment);
        let mut four = Four(host::environment(&host, TlbCapabilities::BASIC));
        let table = host.take_page();
        let place = (first, count);
        let mut expected = entries.clone();
        let answer = access.expect(&mut expected[first..first + count]);
        for by_pointer in [false, true] {
            for (index, entry) in entries.iter().enumerate() {
                host.set_word(table, index, *entry);
            }
            let table = PhysicalAddress(table);
            let found = if by_pointer {
                access.make(&mut four, table, place, how)
            } else {
                access.make(&mut words, table, place, how)
            };
            prop_assert_eq!(found, answer, "by pointer: {}", by_pointer);
            prop_assert_eq!(&host.table(table.0)[..entries.len()], &expected[..]);
        }
    }
}
