//! A set of tasks that wait for the same event, a bit for each task.
//!
//! A waiter adds itself before it checks its condition. A waker makes the condition true, then wakes
//! every task in the set. Spurious wakeups are allowed, so a stale entry or a reused place does no harm.

use core::sync::atomic::{AtomicU64, Ordering};

/// The places of tasks in a table of `64 * WORDS` places.
#[derive(Debug)]
pub struct Waiters<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Waiters<WORDS> {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Adds the task at `place`.
    pub fn add(&self, place: usize) {
        if let Some(word) = self.0.get(place / 64) {
            word.fetch_or(1 << (place % 64), Ordering::SeqCst);
        }
    }

    /// Removes the task at `place`.
    pub fn remove(&self, place: usize) {
        if let Some(word) = self.0.get(place / 64) {
            word.fetch_and(!(1 << (place % 64)), Ordering::SeqCst);
        }
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// Calls `what` with each place and leaves the set unchanged.
    pub fn each(&self, mut what: impl FnMut(usize)) {
        for (index, word) in self.0.iter().enumerate() {
            bits(word.load(Ordering::SeqCst)).for_each(|bit| what(index * 64 + bit));
        }
    }
}

impl<const WORDS: usize> Default for Waiters<WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

fn bits(word: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| word >> bit & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST_TASKS: usize = 256;

    #[test]
    fn a_task_is_in_the_set_until_removed() {
        let waiters = Waiters::<{ MOST_TASKS / 64 }>::new();
        assert!(waiters.is_empty());
        for place in [0, 63, 64, 130, MOST_TASKS - 1] {
            waiters.add(place);
            waiters.add(place);
        }
        // A place outside the table.
        waiters.add(MOST_TASKS);
        waiters.remove(130);
        let mut seen = Vec::new();
        waiters.each(|place| seen.push(place));
        assert_eq!(seen, [0, 63, 64, MOST_TASKS - 1]);
        assert!(!waiters.is_empty());
        for place in seen {
            waiters.remove(place);
        }
        assert!(waiters.is_empty());
    }
}
