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

pub(crate) mod bench;
mod changes;
mod copy;
mod counts;
mod deferred;
mod faults;
mod guards;
mod plug;
mod quarters;
mod stress;

use super::live;
use super::pages::{self, Pages};
use crate::cpu;
use crate::ipi;
use crate::smp::percpu;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::{Descriptor, Kind, PageSize, PhysicalAddress, VirtualAddress};
use granule::boot::words;
use granule_kcore::frames::Frame;
use granule_kcore::frames::tables::Source;

/// Does what `bootargs` asks for. Not part of the boot's frame, and none of the tests is: with all
/// of them in one the boot's stack would be too small.
#[inline(never)]
pub(crate) fn run(bootargs: &[u8]) {
    let words = words::words(bootargs).filter(|word| word.key == b"granule.test");
    for word in words {
        match word.value {
            Some(b"permissions") => changes::permissions(),
            Some(b"noflush") => deferred::noflush(),
            Some(b"permission-counts") => counts::counts(),
            Some(b"exhaustion") => counts::exhaustion(),
            Some(b"background") => changes::background(),
            Some(b"background-busy") => changes::background_busy(),
            Some(b"hotplug") => plug::again(),
            Some(b"hotplug-new") => plug::new_bank(),
            Some(b"guard") => guards::pool(),
            Some(b"guard-beside") => guards::beside(),
            Some(b"spurious") => faults::spurious(),
            Some(b"pagealloc") => faults::pagealloc(),
            Some(value) => match value.strip_prefix(b"permissions-stress:") {
                Some(value) => stress::run(value),
                None => faults::run(value),
            },
            None => {}
        }
    }
}

/// The linear map as it is: every leaf, and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Snapshot {
    /// Of every leaf's address and descriptor, in order.
    digest: u64,
    leaves: u64,
    hidden: u64,
    /// Those of them in contiguous groups.
    grouped: u64,
    tables: u64,
    /// Bytes mapped, hidden ones included.
    bytes: u64,
    /// Free frames of the page allocator.
    free: u64,
}

impl Snapshot {
    fn take() -> Self {
        let mut seen = Self {
            digest: 0xcbf2_9ce4_8422_2325,
            leaves: 0,
            hidden: 0,
            grouped: 0,
            tables: 0,
            bytes: 0,
            free: Pages.with(|frames| frames.free_frames()),
        };
        live::look(|kernel, _, tree| {
            // Which free pages there are, and so which are invalid, changes with each table page.
            let kept = if kernel.debug_pagealloc {
                !(Descriptor::VALID | Descriptor::HIDDEN)
            } else {
                u64::MAX
            };
            let (start, bytes) = (kernel.geometry.base(), kernel.geometry.span() / 2);
            tree.visit(start, bytes, &mut |entry| {
                match entry.kind {
                    Kind::Table => seen.tables += 1,
                    Kind::Hidden => seen.hidden += 1,
                    _ => seen.leaves += 1,
                }
                if entry.kind != Kind::Table {
                    seen.bytes += entry.bytes;
                    seen.grouped += u64::from(entry.descriptor.is_contiguous());
                    for word in [entry.start.0, entry.bytes, entry.descriptor.0 & kept] {
                        // FNV-1a, a word at a time.
                        seen.digest = (seen.digest ^ word).wrapping_mul(0x100_0000_01b3);
                    }
                }
                true
            })
        });
        seen
    }
}

impl Snapshot {
    /// Free frames if all tables of the linear map were given back.
    const fn frames(&self) -> u64 {
        self.free + self.tables
    }
}

/// Panics unless the map is as `before`.
#[track_caller]
fn assert_as(before: &Snapshot, what: &str) {
    let now = Snapshot::take();
    assert!(now == *before, "{what}: {now:?}, expected {before:?}");
}

/// Panics, saying which call, unless it went well.
#[track_caller]
fn ok<T, E: core::fmt::Display>(what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Memory of the page allocator's, for a test.
struct Block {
    frame: Frame,
    order: u32,
    start: u64,
    page: u64,
}

impl Block {
    /// `bytes` bytes, a power of two of pages, naturally aligned.
    fn new(bytes: u64) -> Self {
        let Some(kernel) = live::kernel() else {
            panic!("the tables do not change yet");
        };
        let page = kernel.page();
        let order = (bytes / page).ilog2();
        let Some(frame) = pages::allocate(order) else {
            panic!("no free block of {bytes:#x} bytes: the machine is too small for this test");
        };
        Self::of(frame, order)
    }

    /// `2^order` pages that were allocated.
    fn of(frame: Frame, order: u32) -> Self {
        let Some(kernel) = live::kernel() else {
            panic!("the tables do not change yet");
        };
        let physical = frame.address(size());
        let start = kernel.placement.virtual_address(physical);
        let start = start.map_or(0, |start| start.0);
        Self {
            frame,
            order,
            start,
            page: kernel.page(),
        }
    }

    fn at(&self, page: u64) -> VirtualAddress {
        VirtualAddress(self.start + page * self.page)
    }

    fn physical(&self) -> PhysicalAddress {
        self.frame.address(size())
    }

    fn bytes(&self) -> u64 {
        self.page << self.order
    }

    fn free(self) {
        ok(
            "freeing a test's block",
            pages::free(self.frame, self.order),
        );
    }
}

fn size() -> PageSize {
    live::kernel().map_or(PageSize::MIN, |kernel| kernel.geometry.page_size())
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

/// xorshift64*: any spread will do, and the seed is in the record.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `end`, which is not 0.
    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end.max(1)
    }

    /// From 1 to `most`, each power of two about as often as any other.
    fn length(&mut self, most: u64) -> u64 {
        let bits = u64::from(most.max(1).ilog2()) + 1;
        let end = 1u64 << (self.below(bits) + 1);
        let length = end / 2 + self.below(end / 2);
        length.clamp(1, most.max(1))
    }
}
