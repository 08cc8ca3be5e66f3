//! Address space numbers: more spaces than numbers, by generations.
//!
//! Every space has the number that it last ran under, and the generation of it ([`SpaceAsid`]). While
//! the generation is the current one, a CPU that goes to the space only says that it is there
//! ([`Asids::enter`]): no lock. Otherwise the space needs a number ([`Asids::renew`], under a lock of
//! the caller's). When there is none left, a new generation begins: all numbers are free but those
//! that CPUs are using at that moment, which stay with their spaces, and every CPU must invalidate
//! all of its own TLB before it uses a number of the new generation.
//!
//! Nothing in here issues a TLBI or writes a TTBR; whoever calls is told to. Number 0 is nobody's,
//! for a TTBR0 that leads nowhere.
//!
//! # Which lock for what
//!
//! TLBIs for a space name its number, so its number must not change while its tables do: a
//! space is renewed only by who may also change its tables. Entering with a current number takes
//! neither.

use core::fmt::Debug;
use core::sync::atomic::{AtomicU64, Ordering};

/// A word that several CPUs load and change: an atomic, or another in tests of interleavings.
pub trait Word: Debug {
    /// A word that holds `value`.
    fn new(value: u64) -> Self;
    /// Loads.
    fn load(&self) -> u64;
    /// Stores.
    fn store(&self, value: u64);
    /// Stores and gives back what was there, in one step that is ordered with all others.
    fn swap(&self, value: u64) -> u64;
    /// Stores `new` if `old` is there, in one step that is ordered with all others; whether it was.
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

/// The bits of a number; above are those of its generation.
const NUMBER_BITS: u32 = 16;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// The first generation: a space that has no number yet has generation 0.
const FIRST: u64 = 1 << NUMBER_BITS;

/// The number of one space, with its generation.
#[derive(Debug)]
pub struct SpaceAsid<W = AtomicU64>(W);

impl<W: Word> SpaceAsid<W> {
    /// No number yet.
    #[must_use]
    pub fn new() -> Self {
        Self(W::new(0))
    }

    /// The number that TLBIs for the space must name, if it ever had one. It may be of an old
    /// generation: then nothing of it is in the TLB of a CPU that runs anything newer.
    #[must_use]
    pub fn number(&self) -> Option<u16> {
        match self.0.load() & NUMBER {
            0 => None,
            number => Some(number as u16),
        }
    }
}

impl SpaceAsid {
    /// No number yet, for statics.
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

/// What one CPU has to do with numbers.
#[derive(Debug)]
pub struct AsidCpu<W = AtomicU64> {
    /// What it runs under; 0 from the beginning of a generation until it enters a space again.
    active: W,
    /// What it ran under when the current generation began. Changed under the lock only.
    reserved: W,
    /// Its TLB may hold something of an older generation. Changed under the lock only.
    stale: W,
}

impl<W: Word> AsidCpu<W> {
    /// A CPU that ran nothing yet.
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
    /// A CPU that ran nothing yet, for statics.
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

/// Which numbers are taken in the current generation: what the caller's lock is round.
#[derive(Debug)]
pub struct AsidMap<'m> {
    /// A bit a number.
    taken: &'m mut [u64],
    /// The first number that there is not.
    numbers: u64,
    /// Where the search goes on.
    next: u64,
}

/// The words of memory that an [`AsidMap`] takes for this many bits of ASID.
#[must_use]
pub const fn map_words(bits: u32) -> usize {
    1 << (bits - u64::BITS.trailing_zeros())
}

impl<'m> AsidMap<'m> {
    /// No number taken. `words` are [`map_words`]; fewer make fewer numbers.
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

    /// Takes a number; false if it was taken already.
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

    /// The next free number, taken.
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
    /// This CPU must invalidate all of its own TLB (TLBI VMALLE1, DSB NSH, ISB) before it runs under
    /// the number.
    pub flush: bool,
    /// A new generation began. All other CPUs will be told to flush when they enter a space next.
    pub rolled_over: bool,
}

/// There are no more numbers than CPUs that use one: they cannot be given to more spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewNumbers;

impl core::fmt::Display for TooFewNumbers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("every address space number is in use by a CPU: there must be more than CPUs")
    }
}

impl core::error::Error for TooFewNumbers {}

/// The numbers of a system.
#[derive(Debug)]
pub struct Asids<'c, W = AtomicU64> {
    generation: W,
    cpus: &'c [AsidCpu<W>],
}

impl<'c> Asids<'c> {
    /// For statics: numbers for these CPUs.
    #[must_use]
    pub const fn of(cpus: &'c [AsidCpu]) -> Self {
        Self {
            generation: AtomicU64::new(FIRST),
            cpus,
        }
    }
}

impl<'c, W: Word> Asids<'c, W> {
    /// Numbers for these CPUs.
    #[must_use]
    pub fn new(cpus: &'c [AsidCpu<W>]) -> Self {
        Self {
            generation: W::new(FIRST),
            cpus,
        }
    }

    /// CPU `cpu` goes to a space: its number, if it can be used as it is. Without a lock; between
    /// this and the write of TTBR0 the CPU must not go to another space. What it ran before must be
    /// what it entered before: it no longer uses that space's number after the write.
    #[must_use]
    pub fn enter(&self, cpu: usize, space: &SpaceAsid<W>) -> Option<u16> {
        let active = &self.cpus.get(cpu)?.active;
        let before = active.load();
        let number = space.0.load();
        // With 0 a generation has begun since: whoever began it has not counted on this CPU, and
        // this CPU's TLB must be invalidated first. If it begins between here and the exchange,
        // the exchange finds the 0.
        let current = before != 0 && (number ^ self.generation.load()) >> NUMBER_BITS == 0;
        (current && active.replace(before, number)).then_some((number & NUMBER) as u16)
    }

    /// As [`enter`](Self::enter), with a new number if it takes one. The caller holds the lock that
    /// `map` is behind, and the space's, since its number may change.
    ///
    /// # Errors
    ///
    /// [`TooFewNumbers`] when there is none; nothing may run under the space's old one.
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

    /// A number of the current generation, or of the next one, for a space that had `old`.
    fn new_number(&self, map: &mut AsidMap<'_>, old: u64) -> Result<(u64, bool), TooFewNumbers> {
        let generation = self.generation.load();
        if old & NUMBER != 0 {
            let same = generation | (old & NUMBER);
            // Some CPU was running under it when the generation began: it stays the space's.
            if self.keep_reserved(old, same) {
                return Ok((same, false));
            }
            // Nobody else may have it, and then the space need not change its number.
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

    /// Begins a generation: every number is free but those that CPUs are running under.
    fn begin(&self, map: &mut AsidMap<'_>) {
        map.clear();
        for cpu in self.cpus {
            let active = cpu.active.swap(0);
            if active != 0 {
                cpu.reserved.store(active);
            }
            // A CPU that has entered nothing since the last generation began still runs what it ran
            // then.
            map.take(cpu.reserved.load() & NUMBER);
            cpu.stale.store(1);
        }
    }

    /// If CPUs have `old` reserved, they have `new` from now on; whether any had.
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
