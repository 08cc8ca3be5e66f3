//! The sampled guard allocator: one of `RATE` small objects that modules ask for lies at the end of a page of its own,
//! between two pages that are always invalid, and its page is invalid again once it is freed (`granule.guard=`). An
//! access behind the object, or after its end, faults, and the report names who allocated and who freed it.
//!
//! The pages are a pool of guard pages ([`Pool`]), which one store and one TLBI change. Where the CPUs cannot split live
//! blocks, early memory gives the pool before the linear map is made, and the map has it in pages. Elsewhere it takes
//! any pages, after the boot.

#![allow(unsafe_code, reason = "objects in pages of the pool")]

use super::Place;
use crate::dev::console::println;
use crate::lock::Lock;
use crate::mm::guard::{Pool, PoolError};
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::PhysicalAddress;
use granule_boot::memblock::Direction;
use granule_kcore::devicetree::memory::Memory;
use granule_kcore::parameters::{GuardPool, MOST_GUARD_PAGES};

/// The alignment of objects in bytes.
pub(super) const ALIGNMENT: u64 = 8;

/// The most objects at a time: every second page, of those between the first and the last.
const MOST_SLOTS: usize = (MOST_GUARD_PAGES as usize - 1) / 2;

/// A page for an object, and its last object.
#[derive(Clone, Copy)]
struct Slot {
    bytes: u64,
    /// Who allocated it; 0 if there was none yet.
    allocated: u64,
    /// Who freed it; 0 while it is allocated.
    freed: u64,
}

struct Slots {
    all: [Slot; MOST_SLOTS],
    /// The slot to look at first, so that a freed page is invalid for long.
    next: usize,
}

struct Guard {
    pool: Pool,
    rate: u64,
    /// The slots that the pool has.
    count: usize,
}

static GUARD: spin::Once<Guard> = spin::Once::new();

static SLOTS: Lock<Slots> = Lock::new(Slots {
    all: [Slot {
        bytes: 0,
        allocated: 0,
        freed: 0,
    }; MOST_SLOTS],
    next: 0,
});

/// Objects that modules asked for, and those that were sampled.
static ASKED: AtomicU64 = AtomicU64::new(0);
static SAMPLED: AtomicU64 = AtomicU64::new(0);

/// Takes early memory for a pool. Prints why if there is none.
pub(crate) fn reserve(pool: GuardPool, memory: &mut Memory) -> Option<Range<u64>> {
    let page = memory.page_size().bytes();
    let bytes = pool.pages * page;
    match memory.allocate(bytes, page, 0..u64::MAX, Direction::TopDown) {
        Ok(start) => Some(start..start + bytes),
        Err(error) => {
            println!(
                "granule: granule.guard={}: {error}; there is none",
                pool.pages
            );
            None
        }
    }
}

/// Makes the pool of pages from early memory, or of any pages. Prints why if that fails.
pub(crate) fn begin(wanted: GuardPool, early: Option<Range<u64>>) {
    let made = match early {
        Some(range) => Pool::of_boot(PhysicalAddress(range.start), wanted.pages),
        None => Pool::new(wanted.pages.ilog2()),
    };
    let made = made.and_then(|pool| {
        for index in 0..wanted.pages {
            pool.set_valid(index, false)?;
        }
        Ok::<Pool, PoolError>(pool)
    });
    match made {
        Ok(pool) => {
            GUARD.call_once(|| Guard {
                pool,
                rate: wanted.rate,
                count: (wanted.pages as usize - 1) / 2,
            });
        }
        Err(error) => println!(
            "granule: granule.guard={}: {error}; there is none",
            wanted.pages
        ),
    }
}

/// The page of a slot: guard pages are those with even numbers.
const fn page_of(slot: usize) -> u64 {
    2 * slot as u64 + 1
}

/// Where an object begins that ends with its page.
fn start_of(guard: &Guard, slot: usize, bytes: u64) -> Option<u64> {
    let page = guard.pool.address(page_of(slot))?.0;
    Some(page + guard.pool.page() - bytes.next_multiple_of(ALIGNMENT))
}

/// Allocates an object, if it is one to be sampled and there is room. It is zeroed.
pub(super) fn allocate(bytes: u64, caller: u64) -> Option<u64> {
    let asked = ASKED.fetch_add(1, Ordering::Relaxed) + 1;
    let guard = GUARD
        .get()
        .filter(|guard| asked.is_multiple_of(guard.rate))?;
    if bytes == 0 || bytes > guard.pool.page() {
        return None;
    }
    SLOTS.with(|slots| {
        let mut order = (0..guard.count).map(|add| (slots.next + add) % guard.count);
        let is_free = |slot: &Slot| slot.allocated == 0 || slot.freed != 0;
        let number = order.find(|number| slots.all.get(*number).is_some_and(is_free))?;
        let start = start_of(guard, number, bytes)?;
        guard.pool.set_valid(page_of(number), true).ok()?;
        let object = core::ptr::with_exposed_provenance_mut::<u8>(start as usize);
        // SAFETY: the page was just made valid, for this object alone, which ends with it.
        unsafe { object.write_bytes(0, bytes as usize) };
        *slots.all.get_mut(number)? = Slot {
            bytes,
            allocated: caller,
            freed: 0,
        };
        slots.next = (number + 1) % guard.count;
        SAMPLED.fetch_add(1, Ordering::Relaxed);
        Some(start)
    })
}

/// Frees an object in the pool. Returns whether `object` lies there; one that is not allocated panics.
pub(super) fn free(object: u64, caller: u64) -> bool {
    let Some(guard) = GUARD.get() else {
        return false;
    };
    let Some(page) = guard.pool.index_of(object) else {
        return false;
    };
    let number = (page / 2) as usize;
    let freed = SLOTS.with(|slots| {
        let slot = slots.all.get_mut(number)?;
        let is_it = page % 2 == 1 && slot.allocated != 0 && slot.freed == 0;
        start_of(guard, number, slot.bytes).filter(|start| is_it && *start == object)?;
        slot.freed = caller;
        guard.pool.set_valid(page, false).ok()
    });
    assert!(
        freed.is_some(),
        "{} frees {object:#x}, which is not an object of the guard pool{}",
        Place(caller),
        Explained(object)
    );
    true
}

/// Prints how many objects were sampled.
pub(super) fn report() {
    let Some(guard) = GUARD.get() else {
        println!("granule: guard: there is none (granule.guard=PAGES[,RATE])");
        return;
    };
    let live = SLOTS.with(|slots| {
        let live = |slot: &&Slot| slot.allocated != 0 && slot.freed == 0;
        slots.all.iter().filter(live).count()
    });
    println!(
        "granule: guard: {} of {} objects were sampled (one in {}), {live} of {} places are in use",
        SAMPLED.load(Ordering::Relaxed),
        ASKED.load(Ordering::Relaxed),
        guard.rate,
        guard.count
    );
}

struct Explained(u64);

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        explain(self.0, f)
    }
}

/// Writes whose object an address is in, or behind; nothing for an address outside of the pool.
pub(crate) fn explain(address: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(guard) = GUARD.get() else {
        return Ok(());
    };
    let Some(page) = guard.pool.index_of(address) else {
        return Ok(());
    };
    // Behind an object, or before the first one. A panic must not wait.
    let number = (page.saturating_sub(1) / 2) as usize;
    let slot = SLOTS.try_with(|slots| slots.all.get(number).copied());
    let Some(slot) = slot.flatten().filter(|slot| slot.allocated != 0) else {
        return Ok(());
    };
    let start = start_of(guard, number, slot.bytes).unwrap_or(0);
    let offset = address.wrapping_sub(start) as i64;
    let (bytes, allocated) = (slot.bytes, Place(slot.allocated));
    write!(
        f,
        ", byte {offset} of an object of {bytes} bytes, allocated by {allocated}"
    )?;
    match slot.freed {
        0 => f.write_str(", not freed"),
        freed => write!(f, ", freed by {}", Place(freed)),
    }
}
