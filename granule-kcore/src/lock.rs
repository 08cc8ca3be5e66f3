//! The lock for what interrupts, calls between CPUs and parking come near: whoever holds it has
//! interrupts masked, whoever waits for it lets them in.
//!
//! Three things follow. A holder is never interrupted, so what an interrupt runs may take the lock
//! too. A holder is never parked, so who parked all others finds every lock free. And a waiter with
//! interrupts let in answers calls, so nobody who calls or parks waits for a waiter.
//!
//! A waiter whose interrupts were masked already does *not* answer: it may hold another of these
//! locks, half way through a change, or be answering a call. It need not, since holders wait for
//! nobody but the holder of a further lock: locks are taken in one order, `memory::live` before
//! `memory::pages` before the trace's and the console's.
//!
//! First come is not first served: a place in a queue could come up while its owner is parked, and
//! all would wait for it.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The CPU that takes a lock; another one in tests.
pub trait Cpu {
    /// Its number.
    fn number() -> usize;
    /// Masks interrupts; what [`restore`](Self::restore) needs to undo it.
    fn mask() -> u64;
    /// Goes back to what was before.
    fn restore(before: u64);
    /// Whether interrupts were let in then.
    fn were_let_in(before: u64) -> bool;
    /// Once round the loop of a waiter, with interrupts as they were when it came.
    fn wait(let_in: bool);
    /// Any time.
    fn now() -> u64;
    /// Whether it is so long ago that nobody will ever release the lock.
    fn is_too_long_ago(time: u64) -> bool;
}

/// A value for one CPU at a time.
pub struct Lock<T, C> {
    /// One more than the holder's number; 0 for nobody.
    holder: AtomicUsize,
    value: UnsafeCell<T>,
    cpu: PhantomData<fn() -> C>,
}

// SAFETY: `value` is reached only by who holds the lock, one CPU at a time and, as interrupts are
// masked and `with` refuses to be entered twice, by one call on it.
unsafe impl<T: Send, C> Sync for Lock<T, C> {}

impl<T, C> Lock<T, C> {
    /// Free, round `value`.
    pub const fn new(value: T) -> Self {
        Self {
            holder: AtomicUsize::new(0),
            value: UnsafeCell::new(value),
            cpu: PhantomData,
        }
    }
}

impl<T, C: Cpu> Lock<T, C> {
    /// Calls `work` with the value, once nobody else has it. `work` runs with interrupts masked,
    /// must be short, and must wait for no other CPU.
    ///
    /// Panics when this CPU holds the lock already, and when it does not come free for ten seconds.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let before = C::mask();
        if !self.take() {
            self.wait(before);
        }
        // SAFETY: just taken, by one or the other.
        unsafe { self.run(before, work) }
    }

    /// Takes it, with interrupts masked, when it comes free. `before` is how they were.
    // Not in each place that takes a lock.
    #[cold]
    #[inline(never)]
    fn wait(&self, before: u64) {
        let start = C::now();
        loop {
            C::restore(before);
            self.check(start);
            C::wait(C::were_let_in(before));
            C::mask();
            if self.take() {
                return;
            }
        }
    }

    /// As [`with`](Self::with), but only if nobody has the value now.
    pub fn try_with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let before = C::mask();
        if self.take() {
            // SAFETY: just taken.
            return Some(unsafe { self.run(before, work) });
        }
        C::restore(before);
        None
    }

    /// Interrupts must be masked: between taking and masking the holder could be parked.
    fn take(&self) -> bool {
        let this = C::number() + 1;
        self.holder
            .compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// # Safety
    ///
    /// This CPU must hold the lock, with interrupts masked, and `before` be how they were.
    unsafe fn run<R>(&self, before: u64, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: whoever holds the lock is the only one that reaches the value.
        let result = work(unsafe { &mut *self.value.get() });
        self.holder.store(0, Ordering::Release);
        C::restore(before);
        result
    }

    #[cold]
    fn check(&self, start: u64) {
        let holder = self.holder.load(Ordering::Relaxed);
        let this = C::number();
        assert!(
            holder != this + 1,
            "CPU {this} takes a lock that it holds already"
        );
        assert!(
            holder == 0 || !C::is_too_long_ago(start),
            "CPU {this} waits for a lock that CPU {} does not release",
            holder.wrapping_sub(1)
        );
    }
}

impl<T, C> fmt::Debug for Lock<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holder.load(Ordering::Relaxed) {
            0 => write!(f, "Lock(free)"),
            holder => write!(f, "Lock(CPU {})", holder - 1),
        }
    }
}

#[cfg(test)]
mod tests;
