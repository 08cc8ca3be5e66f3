//! The spinlock, and its policies: what its holder and its waiters do with interrupts.
//!
//! [`RawLock`] is the lock alone; [`Lock`] has the value that it protects. A policy is a type:
//!
//! | policy | the holder | a waiter | a holder is stuck |
//! | --- | --- | --- | --- |
//! | [`AnswersCalls`] | has interrupts masked | has them as they were, and answers calls between CPUs | after ten seconds |
//! | [`Masked`] | has interrupts masked | has them masked | after ten seconds |
//! | [`Unmasked`] | has them as they were | has them as they were, and answers calls between CPUs | never |
//!
//! Code that may not wait at all, as in a panic, uses [`RawLock::try_acquire`], or takes the lock away
//! ([`RawLock::seize`]).
//!
//! Three things follow from [`AnswersCalls`], the policy of most locks. A holder is never interrupted,
//! so code that an interrupt runs may take the lock too. A holder is never parked, so a CPU that parked
//! all others finds every lock free. And a waiter answers calls, so no CPU that calls or parks waits for
//! a waiter. A waiter whose interrupts were masked before does *not* answer: it may hold another of these
//! locks, half way through a change, or be answering a call. It need not, since holders wait for nothing
//! but a further lock, and locks are taken in one order: `memory::live` before `memory::pages` before
//! those of the trace and the console.
//!
//! There is no queue: a place in it could come up while its owner is parked, and all would wait.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The CPU that takes a lock; another one in tests.
pub trait Cpu {
    /// Its number.
    fn number() -> usize;
    /// Masks interrupts; what [`restore`](Self::restore) needs to undo that.
    fn mask() -> u64;
    /// Makes interrupts as they were before [`mask`](Self::mask).
    fn restore(before: u64);
    /// The state of interrupts, as `mask` returns it.
    fn interrupts() -> u64;
    /// Whether interrupts are let in in that state.
    fn are_let_in(state: u64) -> bool;
    /// Answers calls from other CPUs, sooner than their interrupt would.
    fn answer_calls();
    /// Once round the loop of a waiter.
    fn relax();
    /// The time, in ticks of any clock.
    fn now() -> u64;
    /// Whether that is so long ago that the lock will never be released.
    fn is_too_long_ago(time: u64) -> bool;
}

/// What a lock's holder and waiters do with interrupts.
pub trait Policy {
    /// Whether the holder has interrupts masked.
    const HOLDER_MASKS: bool;
    /// Whether a waiter has interrupts as they were when it came, and answers calls if they are let in.
    const WAITER_ANSWERS: bool;
    /// Whether a holder is stuck that does not release the lock for ten seconds.
    const HELD_FOR_SHORT: bool;
}

/// The holder has interrupts masked; a waiter answers calls.
#[derive(Clone, Copy, Debug)]
pub enum AnswersCalls {}

impl Policy for AnswersCalls {
    const HOLDER_MASKS: bool = true;
    const WAITER_ANSWERS: bool = true;
    const HELD_FOR_SHORT: bool = true;
}

/// Holder and waiters have interrupts masked: for a lock that is held for a few instructions.
#[derive(Clone, Copy, Debug)]
pub enum Masked {}

impl Policy for Masked {
    const HOLDER_MASKS: bool = true;
    const WAITER_ANSWERS: bool = false;
    const HELD_FOR_SHORT: bool = true;
}

/// Interrupts stay as they are: for a lock that no interrupt takes, and that is held for long.
#[derive(Clone, Copy, Debug)]
pub enum Unmasked {}

impl Policy for Unmasked {
    const HOLDER_MASKS: bool = false;
    const WAITER_ANSWERS: bool = true;
    const HELD_FOR_SHORT: bool = false;
}

/// A waiter gave up: the holder does not release the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The state of interrupts, for [`RawLock::seize`].
    pub before: u64,
}

/// A spinlock without a value.
pub struct RawLock<C, P = AnswersCalls> {
    /// One more than the holder's number; 0 while the lock is free.
    holder: AtomicUsize,
    kind: PhantomData<fn() -> (C, P)>,
}

impl<C, P> Default for RawLock<C, P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C, P> RawLock<C, P> {
    /// A free lock.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            holder: AtomicUsize::new(0),
            kind: PhantomData,
        }
    }

    /// The number of the CPU that holds the lock.
    pub fn holder(&self) -> Option<usize> {
        self.holder.load(Ordering::Relaxed).checked_sub(1)
    }
}

impl<C: Cpu, P: Policy> RawLock<C, P> {
    /// Takes the lock once it is free; the state of interrupts before, for
    /// [`release`](Self::release).
    ///
    /// Panics when this CPU holds the lock already, and when the holder is stuck.
    pub fn acquire(&self) -> u64 {
        let before = Self::enter();
        if !self.take() && !self.wait(before) {
            self.complain();
        }
        before
    }

    /// As [`acquire`](Self::acquire), for code that goes on without the lock rather than panic.
    ///
    /// # Errors
    ///
    /// When the holder is stuck, or this CPU holds the lock already.
    pub fn acquire_or_give_up(&self) -> Result<u64, Stuck> {
        let before = Self::enter();
        if self.take() || self.wait(before) {
            Ok(before)
        } else {
            Err(Stuck { before })
        }
    }

    /// Takes the lock if it is free now.
    pub fn try_acquire(&self) -> Option<u64> {
        let before = Self::enter();
        if self.take() {
            return Some(before);
        }
        Self::leave(before);
        None
    }

    /// Releases the lock, and makes interrupts as they were.
    ///
    /// # Safety
    ///
    /// This CPU must hold the lock, and `before` come from taking it.
    pub unsafe fn release(&self, before: u64) {
        self.holder.store(0, Ordering::Release);
        Self::leave(before);
    }

    /// Takes the lock away from its holder, if it has one.
    ///
    /// # Safety
    ///
    /// The holder must not come back to what the lock protects, or the caller must put up with that.
    pub unsafe fn seize(&self) {
        self.holder.store(C::number() + 1, Ordering::Relaxed);
    }

    fn enter() -> u64 {
        if P::HOLDER_MASKS {
            C::mask()
        } else {
            C::interrupts()
        }
    }

    fn leave(before: u64) {
        if P::HOLDER_MASKS {
            C::restore(before);
        }
    }

    /// For a policy that masks interrupts they must be masked: between taking and masking the holder
    /// could be parked.
    fn take(&self) -> bool {
        let this = C::number() + 1;
        self.holder
            .compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the lock when it comes free; false if it does not. Interrupts are as a holder has them,
    /// before and after.
    // Not in each place that takes a lock.
    #[cold]
    #[inline(never)]
    fn wait(&self, before: u64) -> bool {
        let start = C::now();
        loop {
            if P::WAITER_ANSWERS {
                Self::leave(before);
            }
            if self.holder() == Some(C::number()) || self.is_stuck(start) {
                let _ = Self::enter();
                return false;
            }
            if P::WAITER_ANSWERS && C::are_let_in(before) {
                C::answer_calls();
            }
            C::relax();
            if P::WAITER_ANSWERS {
                let _ = Self::enter();
            }
            if self.take() {
                return true;
            }
        }
    }

    fn is_stuck(&self, start: u64) -> bool {
        P::HELD_FOR_SHORT && self.holder().is_some() && C::is_too_long_ago(start)
    }

    #[cold]
    fn complain(&self) -> ! {
        let this = C::number();
        match self.holder() {
            Some(holder) if holder == this => {
                panic!("CPU {this} takes a lock that it holds already")
            }
            holder => panic!(
                "CPU {this} waits for a lock that CPU {} does not release",
                holder.unwrap_or(this)
            ),
        }
    }
}

impl<C, P> fmt::Debug for RawLock<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holder() {
            None => write!(f, "Lock(free)"),
            Some(holder) => write!(f, "Lock(CPU {holder})"),
        }
    }
}

/// A value for one CPU at a time.
pub struct Lock<T: ?Sized, C, P = AnswersCalls> {
    raw: RawLock<C, P>,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only by the CPU that holds the lock, and by one call on it, as a CPU that
// holds the lock does not get it a second time.
unsafe impl<T: ?Sized + Send, C, P> Sync for Lock<T, C, P> {}

impl<T, C, P> Lock<T, C, P> {
    /// A free lock round `value`.
    pub const fn new(value: T) -> Self {
        Self {
            raw: RawLock::new(),
            value: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized, C: Cpu, P: Policy> Lock<T, C, P> {
    /// Calls `work` with the value, once no other CPU has it. `work` must wait for no other CPU, and
    /// be short if the policy masks interrupts.
    ///
    /// Panics as [`RawLock::acquire`] does.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let before = self.raw.acquire();
        // SAFETY: just taken.
        unsafe { self.run(before, work) }
    }

    /// As [`with`](Self::with), but only if no CPU has the value now.
    pub fn try_with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let before = self.raw.try_acquire()?;
        // SAFETY: just taken.
        Some(unsafe { self.run(before, work) })
    }

    /// The value, for code that has the lock to itself.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value, without the lock: for a part of it that never changes.
    pub const fn get(&self) -> *mut T {
        self.value.get()
    }

    /// # Safety
    ///
    /// This CPU must hold the lock, and `before` come from taking it.
    unsafe fn run<R>(&self, before: u64, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the CPU that holds the lock is the only one that reaches the value.
        let result = work(unsafe { &mut *self.value.get() });
        // SAFETY: the caller's promise.
        unsafe { self.raw.release(before) };
        result
    }
}

impl<T: ?Sized, C, P> fmt::Debug for Lock<T, C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

#[cfg(test)]
mod tests;
