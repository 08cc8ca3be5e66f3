//! How the walker reaches the memory of a table: the first of the three traits it stands on.
//!
//! [`TableMemory`] is what the walker calls; [`Reached`] implements it over plain pointers for
//! anyone who can turn a table's physical address into one. A model of the hardware implements
//! it otherwise. Nothing in here knows what a descriptor means.

use crate::arch::{Descriptor, PhysicalAddress};
use core::sync::atomic::{AtomicU64, Ordering};

/// Who may see a table while it is written, and so how its entries must be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Visibility {
    /// Nobody: the table is not linked yet. Plain stores, which compilers may pair.
    Private,
    /// Walkers may read it at any time: each entry is stored whole.
    Live,
    /// As [`Live`](Self::Live), and every store made before is visible to a walker that sees
    /// this one: links tables that were filled before (a store-release, in place of a DSB ISHST
    /// between filling and linking).
    Publish,
}

/// A change of some bits of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitChange {
    /// The bits to clear first.
    pub clear: u64,
    /// The bits to set then.
    pub set: u64,
}

impl BitChange {
    /// The descriptor after the change.
    #[must_use]
    pub const fn apply(self, descriptor: Descriptor) -> Descriptor {
        Descriptor((descriptor.0 & !self.clear) | self.set)
    }
}

/// Access to the memory of translation tables.
///
/// Indices count descriptors of 8 bytes. The bulk operations are there so that nothing need be
/// called once an entry, and so that a model or a trace sees one event for a whole run.
///
/// # Safety
///
/// An implementation must read and write exactly the entries named, and for
/// [`Visibility::Live`] and [`Visibility::Publish`] store each entry with a single 64-bit access
/// in the order asked for.
pub unsafe trait TableMemory {
    /// Loads one entry.
    ///
    /// # Safety
    ///
    /// `table` must be a table that this memory reaches, `index` inside it.
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor;

    /// How far behind index `first` the first valid one of `count` entries is, if there is one.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), for each of them.
    unsafe fn find_valid(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
    ) -> Option<usize> {
        // SAFETY: the caller vouches for all of the entries.
        (0..count).find(|index| unsafe { self.load(table, first + index) }.is_valid())
    }

    /// Stores one entry.
    ///
    /// # Safety
    ///
    /// As for [`load`](Self::load), and the caller is the only one who writes the table. A
    /// [`Visibility::Private`] store is only for a table that no walker can reach.
    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    );

    /// Stores `count` entries from index `first`: `descriptor`, `descriptor + step`, and so on.
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store), for each of them.
    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    );

    /// Changes bits of the valid ones among `count` entries from index `first` and gives back
    /// how many those were. Entries that are not valid stay as they are.
    ///
    /// # Safety
    ///
    /// As for [`store`](Self::store), for each of them.
    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize;
}

/// Turns the physical address of a table into a pointer to it.
///
/// # Safety
///
/// For every table that was handed to the walker (by its root or its allocator)
/// [`pointer`](Self::pointer) must give a pointer that is valid for reads and writes of the whole
/// table, aligned to 8 bytes, for as long as the walker lives.
pub unsafe trait Reach {
    /// A pointer to the first entry of `table`.
    fn pointer(&self, table: PhysicalAddress) -> *mut u64;
}

/// Memory at a constant distance from its physical address: an identity map (0) or a linear map.
#[derive(Clone, Copy, Debug)]
pub struct Offset(u64);

impl Offset {
    /// Physical addresses plus `offset`, wrapping, are the addresses to use.
    ///
    /// # Safety
    ///
    /// All tables handed to a walker that uses this must be mapped there, readable and writable
    /// (or the MMU off and `offset` zero).
    #[must_use]
    pub const unsafe fn new(offset: u64) -> Self {
        Self(offset)
    }
}

// SAFETY: the caller of `new` vouched that the tables are mapped at the offset.
unsafe impl Reach for Offset {
    #[inline(always)]
    fn pointer(&self, table: PhysicalAddress) -> *mut u64 {
        core::ptr::with_exposed_provenance_mut(table.0.wrapping_add(self.0) as usize)
    }
}

/// Entries that the bulk loops write a round. Chunks of this size compile to paired stores at
/// 1.5 to 1.6 instructions an entry on arm64; rolled loops cost 3, and from 128 on they are
/// rolled again.
const CHUNK: usize = 64;

/// Table memory that is reached through pointers.
#[derive(Clone, Copy, Debug)]
pub struct Reached<R>(pub R);

impl<R: Reach> Reached<R> {
    #[inline(always)]
    fn entry(&self, table: PhysicalAddress, index: usize) -> *mut u64 {
        self.0.pointer(table).wrapping_add(index)
    }
}

/// A view of an entry for stores that walkers may see.
///
/// # Safety
///
/// `entry` must be valid for writes and aligned, and no Rust reference to it may exist.
#[inline(always)]
unsafe fn atomic<'a>(entry: *mut u64) -> &'a AtomicU64 {
    // SAFETY: the caller vouches for the pointer; walkers read single 64-bit words.
    unsafe { AtomicU64::from_ptr(entry) }
}

// SAFETY: every method touches the named entries only; live stores are relaxed atomics (one
// 64-bit access each), publishing ones are store-releases.
unsafe impl<R: Reach> TableMemory for Reached<R> {
    #[inline(always)]
    unsafe fn load(&self, table: PhysicalAddress, index: usize) -> Descriptor {
        // SAFETY: the caller vouches that the entry is inside a reached table.
        Descriptor(unsafe { self.entry(table, index).read_volatile() })
    }

    #[inline(always)]
    unsafe fn find_valid(
        &self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
    ) -> Option<usize> {
        let start = self.entry(table, first);
        let mut done = 0;
        while done + CHUNK <= count {
            let mut valid = 0;
            for index in done..done + CHUNK {
                // SAFETY: inside the `count` entries that the caller vouches for.
                valid |= unsafe { atomic(start.wrapping_add(index)).load(Ordering::Relaxed) };
            }
            if valid & Descriptor::VALID != 0 {
                break;
            }
            done += CHUNK;
        }
        // SAFETY: as above.
        (done..count).find(|&index| unsafe { self.load(table, first + index) }.is_valid())
    }

    #[inline(always)]
    unsafe fn store(
        &mut self,
        table: PhysicalAddress,
        index: usize,
        descriptor: Descriptor,
        visibility: Visibility,
    ) {
        let entry = self.entry(table, index);
        // SAFETY: the caller vouches that the entry is inside a reached table and that nobody
        // else writes it; a private one is read by nobody.
        unsafe {
            match visibility {
                Visibility::Private => entry.write(descriptor.0),
                Visibility::Live => atomic(entry).store(descriptor.0, Ordering::Relaxed),
                Visibility::Publish => atomic(entry).store(descriptor.0, Ordering::Release),
            }
        }
    }

    #[inline(always)]
    unsafe fn fill(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        descriptor: Descriptor,
        step: u64,
        visibility: Visibility,
    ) {
        let mut next = descriptor.0;
        let mut entry = self.entry(table, first);
        if visibility != Visibility::Private {
            for _ in 0..count {
                // SAFETY: as for `store`, for each of the `count` entries.
                unsafe {
                    match visibility {
                        Visibility::Publish => atomic(entry).store(next, Ordering::Release),
                        _ => atomic(entry).store(next, Ordering::Relaxed),
                    }
                }
                entry = entry.wrapping_add(1);
                next = next.wrapping_add(step);
            }
            return;
        }
        for _ in 0..count / CHUNK {
            // SAFETY: the chunk lies inside the `count` entries, which nobody else reads or
            // writes: the table is private.
            let chunk = unsafe { &mut *entry.cast::<[core::mem::MaybeUninit<u64>; CHUNK]>() };
            let mut value = next;
            for slot in chunk {
                slot.write(value);
                value = value.wrapping_add(step);
            }
            entry = entry.wrapping_add(CHUNK);
            next = next.wrapping_add(step.wrapping_mul(CHUNK as u64));
        }
        for _ in 0..count % CHUNK {
            // SAFETY: as for the chunks.
            unsafe { entry.write(next) };
            entry = entry.wrapping_add(1);
            next = next.wrapping_add(step);
        }
    }

    #[inline(always)]
    unsafe fn update(
        &mut self,
        table: PhysicalAddress,
        first: usize,
        count: usize,
        change: BitChange,
        visibility: Visibility,
    ) -> usize {
        let mut valid = 0;
        let mut entry = self.entry(table, first);
        for _ in 0..count {
            // SAFETY: as for `load` and `store`; nobody else writes the entry in between.
            unsafe {
                let old = Descriptor(match visibility {
                    Visibility::Private => entry.read(),
                    _ => atomic(entry).load(Ordering::Relaxed),
                });
                let is_valid = old.is_valid();
                let new = if is_valid { change.apply(old) } else { old };
                match visibility {
                    Visibility::Private => entry.write(new.0),
                    Visibility::Live if is_valid => {
                        atomic(entry).store(new.0, Ordering::Relaxed);
                    }
                    Visibility::Publish if is_valid => {
                        atomic(entry).store(new.0, Ordering::Release);
                    }
                    _ => {}
                }
                valid += usize::from(is_valid);
            }
            entry = entry.wrapping_add(1);
        }
        valid
    }
}
