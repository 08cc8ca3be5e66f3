//! Tests of the linear map while it changes, asked for on the command line; each panics when
//! something is wrong, with what, and adds its counts to the record.
//!
//! | `granule.test=` | what |
//! |---|---|
//! | `permissions` | each call, seen by every CPU's own walker; what must be refused |
//! | `permission-counts` | what changes of 1 page, 64K, 2M and 1G take, and that merging undoes them |
//! | `exhaustion` | a split for which there are N tables too few, for every N |
//! | `noflush` | changes whose TLBI comes later, and what is done beside them meanwhile |
//! | `background` | idle CPUs merge what became alike |
//! | `background-busy` | the same when the CPU that was woken for it gets something else to do |
//! | `hotplug` | memory removed and added again |
//! | `hotplug-new` | the RAM behind the last bank, of which the device tree does not tell, added |
//! | `guard` | a pool of guard pages, flipped while another CPU holds the lock |
//! | `guard-beside` | the same in interrupts of a CPU that splits and merges what lies round it |
//! | `spurious` | a fault on a guard page that another CPU makes valid meanwhile |
//! | `pagealloc` | with `debug_pagealloc=on`, pages allocated and freed |
//! | `permissions-stress:CHANGES[:SEED]` | random changes while other CPUs use what lies beside them |
//! | `write-read-only`, `execute`, `read-invalid`, `read-guard`, `use-after-free` | an access that must end in a panic |

mod changes;
mod counts;
mod deferred;
mod faults;
mod guards;
mod plug;
mod quarters;
mod stress;

use crate::arch::cpu;
use crate::bench::support::{Block, Random, Snapshot, assert_as, ok, size};
use crate::cpu::ipi;
use crate::mm::live;
use crate::percpu;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::VirtualAddress;
use granule_kcore::parameters::Parameters;

/// Does what the command line asks for. Not part of the boot's frame, and none of the tests is: with all
/// of them in one the boot's stack would be too small.
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
            b"pagealloc" => faults::pagealloc(),
            value => match value.strip_prefix(b"permissions-stress:") {
                Some(value) => stress::run(value),
                None => faults::run(value),
            },
        }
    }
}

/// What an address allows, as every CPU's walker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allows {
    Nothing,
    Reading,
    Writing,
}

/// What memory allows that nobody has allocated.
fn free_allows() -> Allows {
    match live::kernel() {
        Some(kernel) if kernel.debug_pagealloc => Allows::Nothing,
        _ => Allows::Writing,
    }
}

/// Panics unless every CPU's own walker allows exactly that at `address`, and translates it to its
/// place in the linear map.
#[track_caller]
fn assert_allows(address: VirtualAddress, expected: Allows, what: &str) {
    let physical = live::kernel().and_then(|kernel| kernel.placement.physical_address(address));
    let physical = physical.map_or(u64::MAX, |physical| physical.0);
    // One more than the number of a CPU that disagrees.
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
