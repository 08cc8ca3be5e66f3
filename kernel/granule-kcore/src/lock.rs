//! The spinlock and its policies: whether holders and waiters mask interrupts.
//!
//! [`RawLock`] is the lock alone; [`Lock`] contains the value that it protects. A policy is a type:
//!
//! | policy | a holder's interrupts | a waiter's interrupts | a holder counts as stuck |
//! | --- | --- | --- | --- |
//! | [`AnswersCalls`] | masked | unchanged; answers calls between CPUs | after ten seconds |
//! | [`Masked`] | masked | masked | after ten seconds |
//! | [`Unmasked`] | unchanged | unchanged; answers calls between CPUs | never |
//!
//! The ten seconds are time in which the waiter itself ran ([`Timeout`]) and the lock changed hands in no
//! round. A host that runs other programs instead of the guest cannot make a holder look stuck.
//!
//! Code that must not wait, such as a panic, uses [`RawLock::try_acquire`], or takes the lock away
//! from its holder ([`RawLock::seize`]).
//!
//! Most locks have the policy [`AnswersCalls`], with three consequences. A holder is never
//! interrupted, so interrupt handlers may take the lock too. A holder is never parked, so a CPU that
//! parked all others finds every lock free. A waiter answers calls, so a CPU that calls or parks
//! others never waits for a waiter.
//!
//! A waiter whose interrupts were already masked does *not* answer: it may hold another of these locks
//! half way through a change, or be answering a call. It need not answer either, because a holder
//! waits for nothing but a further lock, and locks are taken in one order: `mm::kernel_tables`,
//! then `mm::sized`, then `mm::pages`, then the locks of the trace and the console.
//!
//! The lock has no queue: a parked CPU could reach its front, and all others would wait for it.

#![allow(unsafe_code, reason = "a lock gives access by its state")]

use crate::timeout::Timeout;
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The seconds that a waiter waits for one holder. Holders take microseconds.
const PATIENCE_S: u64 = 10;

/// The CPU that takes a lock; tests have their own.
pub trait Cpu {
    /// The CPU's number.
    fn number() -> usize;
    /// Masks interrupts, and returns the previous state for [`restore`](Self::restore).
    fn mask() -> u64;
    /// Restores the state of interrupts from before [`mask`](Self::mask).
    fn restore(before: u64);
    /// The present state of interrupts, in the form that `mask` returns.
    fn interrupts() -> u64;
    /// Whether interrupts are unmasked in that state.
    fn are_let_in(state: u64) -> bool;
    /// Answers calls from other CPUs now, before their interrupt is taken.
    fn answer_calls();
    /// One round of a waiting loop.
    fn relax();
    /// The time in ticks of any clock.
    fn now() -> u64;
    /// The ticks in a second.
    fn frequency() -> u64;
}

/// Interrupt handling of a lock's holder and waiters.
pub trait Policy {
    /// Whether a holder masks interrupts.
    const HOLDER_MASKS: bool;
    /// Whether a waiter leaves interrupts unchanged, and answers calls if they are unmasked.
    const WAITER_ANSWERS: bool;
    /// Whether a holder counts as stuck after ten seconds.
    const HELD_FOR_SHORT: bool;
}

/// A holder masks interrupts; a waiter answers calls.
#[derive(Clone, Copy, Debug)]
pub enum AnswersCalls {}

impl Policy for AnswersCalls {
    const HOLDER_MASKS: bool = true;
    const WAITER_ANSWERS: bool = true;
    const HELD_FOR_SHORT: bool = true;
}

/// Holder and waiters mask interrupts: for a lock that is held for a few instructions.
#[derive(Clone, Copy, Debug)]
pub enum Masked {}

impl Policy for Masked {
    const HOLDER_MASKS: bool = true;
    const WAITER_ANSWERS: bool = false;
    const HELD_FOR_SHORT: bool = true;
}

/// Interrupts stay unchanged: for a lock that no interrupt handler takes, and that is held for long.
#[derive(Clone, Copy, Debug)]
pub enum Unmasked {}

impl Policy for Unmasked {
    const HOLDER_MASKS: bool = false;
    const WAITER_ANSWERS: bool = true;
    const HELD_FOR_SHORT: bool = false;
}

/// The holder does not release the lock, and the waiter gave up.
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
    /// Waits until the lock is free and takes it. Returns the previous state of interrupts, for
    /// [`release`](Self::release).
    ///
    /// Panics if this CPU holds the lock already, or if the holder is stuck.
    pub fn acquire(&self) -> u64 {
        let before = Self::enter();
        if !self.take() && !self.wait(before) {
            self.complain();
        }
        before
    }

    /// As [`acquire`](Self::acquire), for code that continues without the lock instead of panicking. Errors: the
    /// holder is stuck, or this CPU holds the lock already.
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

    /// Releases the lock, and restores the state of interrupts.
    ///
    /// # Safety
    ///
    /// This CPU must hold the lock, and `before` must come from taking it.
    pub unsafe fn release(&self, before: u64) {
        self.holder.store(0, Ordering::Release);
        Self::leave(before);
    }

    /// Takes the lock away from its holder, if it has one.
    ///
    /// # Safety
    ///
    /// The holder must never again use the protected value, or the caller must tolerate that it does.
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

    /// If the policy masks interrupts, they must be masked already: a holder must not be parked.
    fn take(&self) -> bool {
        let this = C::number() + 1;
        self.holder
            .compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Waits for the lock and takes it; false if it does not come free. Interrupts are in the holder's
    /// state before and after.
    // Out of line, so that the code exists once and not in each place that takes a lock.
    #[cold]
    #[inline(never)]
    fn wait(&self, before: u64) -> bool {
        let mut timeout = Timeout::new(PATIENCE_S, C::frequency(), C::now());
        let mut holder = self.holder();
        loop {
            if P::WAITER_ANSWERS {
                Self::leave(before);
            }
            let previous = core::mem::replace(&mut holder, self.holder());
            if holder != previous {
                timeout.restart();
            }
            let stuck = P::HELD_FOR_SHORT && holder.is_some() && timeout.is_over(C::now());
            if stuck || holder == Some(C::number()) {
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

/// A value that one CPU at a time may use.
pub struct Lock<T: ?Sized, C, P = AnswersCalls> {
    raw: RawLock<C, P>,
    value: UnsafeCell<T>,
}

// SAFETY: only the CPU that holds the lock reaches `value`, and only from one call, because a holder
// cannot take the lock a second time.
unsafe impl<T: ?Sized + Send, C, P> Sync for Lock<T, C, P> {}

impl<T, C, P> Lock<T, C, P> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            raw: RawLock::new(),
            value: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized, C: Cpu, P: Policy> Lock<T, C, P> {
    /// Takes the lock and calls `work` with the value. `work` must not wait for another CPU, and must
    /// be short if the policy masks interrupts.
    ///
    /// Panics as [`RawLock::acquire`] does.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let before = self.raw.acquire();
        // SAFETY: this CPU has just taken the lock.
        unsafe { self.run(before, work) }
    }

    /// As [`with`](Self::with), but only if the lock is free now.
    pub fn try_with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let before = self.raw.try_acquire()?;
        // SAFETY: this CPU has just taken the lock.
        Some(unsafe { self.run(before, work) })
    }

    /// The value, for code with exclusive access to the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// A pointer to the value, without taking the lock: for a part of the value that never changes.
    pub const fn get(&self) -> *mut T {
        self.value.get()
    }

    /// Calls `work` with the value, then releases the lock.
    ///
    /// # Safety
    ///
    /// This CPU must hold the lock, and `before` must come from taking it.
    unsafe fn run<R>(&self, before: u64, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: this CPU holds the lock, so no other CPU reaches the value.
        let result = work(unsafe { &mut *self.value.get() });
        // SAFETY: the caller holds the lock, and `before` is from taking it.
        unsafe { self.raw.release(before) };
        result
    }
}

impl<T: ?Sized, C, P> fmt::Debug for Lock<T, C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

// Shuttle switches stacks in assembly, which Miri does not run.
#[cfg(test)]
#[cfg(not(miri))]
mod tests;
#[cfg(test)]
mod threads;
