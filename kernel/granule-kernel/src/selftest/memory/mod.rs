//! Tests of changes to the live linear map, chosen on the command line. Each panics with the reason on an
//! error, and adds its counts to the boot record.
//!
//! | `granule.test=` | test |
//! |---|---|
//! | `permissions` | each call, checked by every CPU's own walker; calls that must be refused |
//! | `permission-counts` | the cost of changes of 1 page, 64K, 2M and 1G, and that merging undoes them |
//! | `exhaustion` | a split for which there are N tables too few, for every N |
//! | `noflush` | changes with a deferred TLBI, and other changes before it |
//! | `background` | idle CPUs merge leaves that became alike |
//! | `background-busy` | the same when the CPU that was woken for it gets other work |
//! | `hotplug` | memory removed and added again |
//! | `hotplug-new` | RAM behind the last bank, unknown to the device tree, is added |
//! | `guard` | a pool of guard pages, flipped while another CPU holds the lock |
//! | `guard-beside` | the same in interrupts of a CPU that splits and merges the neighbouring leaves |
//! | `spurious` | a fault on a guard page that another CPU makes valid meanwhile |
//! | `pagealloc` | with `debug_pagealloc=on`, pages allocated and freed |
//! | `sized` | pages of every size: pieces of frames, runs of frames, on every CPU, without memory |
//! | `permissions-stress:CHANGES[:SEED]` | random changes while other CPUs use neighbouring pages |
//! | `write-read-only`, `execute`, `read-invalid`, `read-guard`, `use-after-free` | an access that must end in a panic |

mod changes;
mod counts;
mod deferred;
mod faults;
mod guards;
mod plug;
mod quarters;
mod sized;
mod stress;

use crate::arch::cpu;
use crate::bench::support::{Block, Random, Snapshot, assert_as, in_linear_map, kernel, ok, size};
use crate::cpu::ipi;
use crate::percpu;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::VirtualAddress;
use granule_kcore::parameters::Parameters;

/// Runs the tests that the command line requests. Neither this function nor any test is inlined:
/// all frames together would overflow the boot's stack.
#[inline(never)]
pub(crate) fn run(parameters: &Parameters<'_>) {
    for test in parameters.test.tests() {
        match test {
            b"permissions" => changes::permissions(),
            b"noflush" => deferred::noflush(),
            b"permission-counts" => counts::counts(),
            b"exhaustion" => counts::exhaustion(),
            b"background" => changes::background(),
            b"background-busy" => changes::background_busy(),
            b"hotplug" => plug::again(),
            b"hotplug-new" => plug::new_bank(),
            b"guard" => guards::pool(),
            b"guard-beside" => guards::beside(),
            b"spurious" => faults::spurious(),
            b"sized" => sized::sized(),
            b"pagealloc" => faults::pagealloc(),
            value => match value.strip_prefix(b"permissions-stress:") {
                Some(value) => stress::run(value),
                None => faults::run(value),
            },
        }
    }
}

/// The accesses that an address allows, as every CPU's walker sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allows {
    Nothing,
    Reading,
    Writing,
}

/// The accesses that free memory allows.
fn free_allows() -> Allows {
    if kernel().debug_pagealloc {
        Allows::Nothing
    } else {
        Allows::Writing
    }
}

/// Panics unless every CPU's own walker allows exactly `expected` at `address`, and translates it to its
/// place in the linear map.
#[track_caller]
fn assert_allows(address: VirtualAddress, expected: Allows, what: &str) {
    let physical = kernel().placement.physical_address(address);
    let physical = physical.map_or(u64::MAX, |physical| physical.0);
    // The number of a CPU that disagrees plus one; 0 for none.
    let wrong = AtomicU64::new(0);
    ipi::call(percpu::online(), &|this| {
        let read = cpu::translate(address.0);
        let write = cpu::translate_to_write(address.0);
        let right = match expected {
            Allows::Nothing => read.is_err() && write.is_err(),
            Allows::Reading => read == Ok(physical) && write.is_err(),
            Allows::Writing => read == Ok(physical) && write == Ok(physical),
        };
        if !right {
            wrong.store(this.number() as u64 + 1, Ordering::Relaxed);
        }
    });
    let wrong = wrong.load(Ordering::Relaxed);
    assert!(
        wrong == 0,
        "{what}: CPU {} does not say that {address} allows {expected:?}",
        wrong - 1
    );
}
