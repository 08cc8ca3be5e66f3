//! Address space numbers (ASIDs) for more spaces than there are numbers, by generations.
//!
//! Every space remembers its last number and that number's generation ([`SpaceAsid`]). While the
//! generation is current, a CPU that switches to the space only registers the number
//! ([`Asids::enter`]), without a lock. Otherwise the space needs a new number ([`Asids::renew`],
//! under a lock of the caller). When no number is left, a new generation begins: all numbers become
//! free except those in use by CPUs at that moment, which stay with their spaces. Every CPU must
//! invalidate all of its own TLB before it uses a number of the new generation.
//!
//! This module issues no TLBI and writes no TTBR; its results name what the caller must issue.
//! Number 0 belongs to no space and serves a TTBR0 without tables.
//!
//! # Locks
//!
//! TLBIs for a space name its number, so the number must not change while its tables change: the
//! caller of `renew` holds the lock of the space's tables too. `enter` with a current number needs
//! neither lock.

use core::fmt::Debug;
use core::sync::atomic::{AtomicU64, Ordering};

/// A word that several CPUs load and change: an atomic, or a substitute in tests of interleavings.
pub trait Word: Debug {
    /// A word that holds `value`.
    fn new(value: u64) -> Self;
    /// Loads the value.
    fn load(&self) -> u64;
    /// Stores a value.
    fn store(&self, value: u64);
    /// Stores a value and returns the old one, in one step that is ordered with all others.
    fn swap(&self, value: u64) -> u64;
    /// Stores `new` if the word holds `old`, in one step that is ordered with all others. Returns
    /// whether it did.
    fn replace(&self, old: u64, new: u64) -> bool;
}

impl Word for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }
    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }
    fn swap(&self, value: u64) -> u64 {
        self.swap(value, Ordering::SeqCst)
    }
    fn replace(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

/// The width of a number in bits. The bits above hold its generation.
const NUMBER_BITS: u32 = 16;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// The first generation. A space without a number has generation 0.
const FIRST: u64 = 1 << NUMBER_BITS;

/// The number of one space, with its generation.
#[derive(Debug)]
pub struct SpaceAsid<W = AtomicU64>(W);

impl<W: Word> SpaceAsid<W> {
    /// A space without a number.
    #[must_use]
    pub fn new() -> Self {
        Self(W::new(0))
    }

    /// The number that TLBIs for the space must name; `None` if it never had one. The number may be
    /// of an old generation: a CPU that runs a number of a newer generation has no entries of the
    /// old number in its TLB.
    #[must_use]
    pub fn number(&self) -> Option<u16> {
        match self.0.load() & NUMBER {
            0 => None,
            number => Some(number as u16),
        }
    }
}

impl SpaceAsid {
    /// A space without a number, for statics.
    #[must_use]
    pub const fn none() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl<W: Word> Default for SpaceAsid<W> {
    fn default() -> Self {
        Self::new()
    }
}

/// The ASID state of one CPU.
#[derive(Debug)]
pub struct AsidCpu<W = AtomicU64> {
    /// The number it runs under; 0 from the start of a generation until it enters a space again.
    active: W,
    /// The number it ran under when the current generation began. Changed under the lock only.
    reserved: W,
    /// Nonzero if its TLB may hold entries of an older generation. Changed under the lock only.
    stale: W,
}

impl<W: Word> AsidCpu<W> {
    /// A CPU that has not run a space yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            active: W::new(0),
            reserved: W::new(0),
            stale: W::new(0),
        }
    }
}

impl AsidCpu {
    /// A CPU that has not run a space yet, for statics.
    #[must_use]
    pub const fn unused() -> Self {
        Self {
            active: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            stale: AtomicU64::new(0),
        }
    }
}

impl<W: Word> Default for AsidCpu<W> {
    fn default() -> Self {
        Self::new()
    }
}

/// The numbers taken in the current generation. The caller's lock protects this map.
#[derive(Debug)]
pub struct AsidMap<'m> {
    /// One bit for each number.
    taken: &'m mut [u64],
    /// The number of numbers, including 0.
    numbers: u64,
    /// The number where the next search starts.
    next: u64,
}

/// The words of memory that an [`AsidMap`] needs for ASIDs of `bits` bits.
#[must_use]
pub const fn map_words(bits: u32) -> usize {
    1 << (bits - u64::BITS.trailing_zeros())
}

impl<'m> AsidMap<'m> {
    /// An empty map. `words` should have [`map_words`] words; fewer words give fewer numbers.
    #[must_use]
    pub fn new(words: &'m mut [u64]) -> Self {
        Self::with_numbers(words, u64::MAX)
    }

    /// As [`new`](Self::new), but only numbers below `numbers`.
    #[must_use]
    pub fn with_numbers(words: &'m mut [u64], numbers: u64) -> Self {
        words.fill(0);
        let numbers = numbers.min(words.len() as u64 * u64::from(u64::BITS));
        let mut map = Self {
            taken: words,
            numbers,
            next: 1,
        };
        map.take(0);
        map
    }

    /// Takes a number. Returns false if it was taken already.
    fn take(&mut self, number: u64) -> bool {
        let bit = 1 << (number % u64::from(u64::BITS));
        match self.taken.get_mut((number / u64::from(u64::BITS)) as usize) {
            Some(word) => {
                let free = *word & bit == 0;
                *word |= bit;
                free
            }
            None => false,
        }
    }

    /// Takes the next free number.
    fn take_next(&mut self) -> Option<u64> {
        let bits = u64::from(u64::BITS);
        let mut at = self.next;
        while at < self.numbers {
            let word = self.taken.get((at / bits) as usize)?;
            let free = !word & (u64::MAX << (at % bits));
            if free != 0 {
                let number = at / bits * bits + u64::from(free.trailing_zeros());
                if number >= self.numbers {
                    break;
                }
                self.take(number);
                self.next = number + 1;
                return Some(number);
            }
            at = (at / bits + 1) * bits;
        }
        None
    }

    fn clear(&mut self) {
        self.taken.fill(0);
        self.take(0);
        self.next = 1;
    }
}

/// A number for a space, and what must happen before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Renewed {
    /// The number.
    pub asid: u16,
    /// This CPU must invalidate all of its own TLB (TLBI VMALLE1, DSB NSH, ISB) before it runs
    /// under the number.
    pub flush: bool,
    /// A new generation began. Every other CPU must flush when it next switches to a space.
    pub rolled_over: bool,
}

/// Every number is in use by a CPU, so no other space can get one. There must be more numbers than
/// CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewNumbers;

impl core::fmt::Display for TooFewNumbers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("every address space number is in use by a CPU: there must be more than CPUs")
    }
}

impl core::error::Error for TooFewNumbers {}

/// The ASIDs of a system.
#[derive(Debug)]
pub struct Asids<'c, W = AtomicU64> {
    generation: W,
    cpus: &'c [AsidCpu<W>],
}

impl<'c> Asids<'c> {
    /// The ASIDs for these CPUs, for statics.
    #[must_use]
    pub const fn of(cpus: &'c [AsidCpu]) -> Self {
        Self {
            generation: AtomicU64::new(FIRST),
            cpus,
        }
    }
}

impl<'c, W: Word> Asids<'c, W> {
    /// The ASIDs for these CPUs.
    #[must_use]
    pub fn new(cpus: &'c [AsidCpu<W>]) -> Self {
        Self {
            generation: W::new(FIRST),
            cpus,
        }
    }

    /// Switches CPU `cpu` to a space without a lock. Returns the space's number if that is current.
    /// Until it writes TTBR0, the CPU must not switch to another space. The CPU must have been
    /// running the space that it entered last; after the write it no longer uses that space's
    /// number.
    #[must_use]
    pub fn enter(&self, cpu: usize, space: &SpaceAsid<W>) -> Option<u16> {
        let active = &self.cpus.get(cpu)?.active;
        let before = active.load();
        let number = space.0.load();
        // 0 means that a generation has begun since this CPU's last switch. The CPU is not counted
        // as active and must invalidate its TLB first. If a generation begins between here and the
        // exchange, the exchange finds the 0.
        let current = before != 0 && (number ^ self.generation.load()) >> NUMBER_BITS == 0;
        (current && active.replace(before, number)).then_some((number & NUMBER) as u16)
    }

    /// As [`enter`](Self::enter), with a new number if the space needs one. The caller holds the
    /// lock of `map`, and the lock of the space, because its number may change.
    ///
    /// # Errors
    ///
    /// [`TooFewNumbers`] when no number is left. No CPU may run under the space's old number then.
    pub fn renew(
        &self,
        map: &mut AsidMap<'_>,
        cpu: usize,
        space: &SpaceAsid<W>,
    ) -> Result<Renewed, TooFewNumbers> {
        let this = self.cpus.get(cpu).ok_or(TooFewNumbers)?;
        let old = space.0.load();
        let mut rolled_over = false;
        let mut number = old;
        if (old ^ self.generation.load()) >> NUMBER_BITS != 0 {
            let (new, rolled) = self.new_number(map, old)?;
            rolled_over = rolled;
            number = new;
            space.0.store(number);
        }
        let flush = this.stale.load() != 0;
        this.stale.store(0);
        let _ = this.active.swap(number);
        Ok(Renewed {
            asid: (number & NUMBER) as u16,
            flush,
            rolled_over,
        })
    }

    /// Finds a number of the current or the next generation for a space whose last number is `old`.
    fn new_number(&self, map: &mut AsidMap<'_>, old: u64) -> Result<(u64, bool), TooFewNumbers> {
        let generation = self.generation.load();
        if old & NUMBER != 0 {
            let same = generation | (old & NUMBER);
            // A CPU ran under this number when the generation began, so the space keeps it.
            if self.keep_reserved(old, same) {
                return Ok((same, false));
            }
            // If the number is free, the space keeps it.
            if map.take(old & NUMBER) {
                return Ok((same, false));
            }
        }
        if let Some(number) = map.take_next() {
            return Ok((generation | number, false));
        }
        let generation = generation + FIRST;
        self.generation.store(generation);
        self.begin(map);
        if old & NUMBER != 0 && self.keep_reserved(old, generation | (old & NUMBER)) {
            return Ok((generation | (old & NUMBER), true));
        }
        match map.take_next() {
            Some(number) => Ok((generation | number, true)),
            None => Err(TooFewNumbers),
        }
    }

    /// Begins a generation: every number is free except those in use by CPUs.
    fn begin(&self, map: &mut AsidMap<'_>) {
        map.clear();
        for cpu in self.cpus {
            let active = cpu.active.swap(0);
            if active != 0 {
                cpu.reserved.store(active);
            }
            // A CPU that has entered no space since the last generation began still uses its
            // reserved number.
            map.take(cpu.reserved.load() & NUMBER);
            cpu.stale.store(1);
        }
    }

    /// Replaces `old` by `new` in the reservations of all CPUs. Returns whether any CPU had
    /// reserved it.
    fn keep_reserved(&self, old: u64, new: u64) -> bool {
        let mut found = false;
        for cpu in self.cpus {
            if cpu.reserved.load() == old {
                cpu.reserved.store(new);
                found = true;
            }
        }
        found
    }
}
