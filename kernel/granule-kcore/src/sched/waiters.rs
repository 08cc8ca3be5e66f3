//! A set of tasks that wait for the same event, a bit for each task.
//!
//! A waiter adds itself before it checks its condition. A waker makes the condition true, then wakes
//! every task in the set. Spurious wakeups are allowed, so a stale entry or a reused place does no harm.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The places of tasks in a table of `64 * WORDS` places.
#[derive(Debug)]
pub struct Waiters<const WORDS: usize> {
    words: [AtomicU64; WORDS],
    /// The words up to the last one that was ever used.
    used: AtomicUsize,
    /// The tasks in the set.
    count: AtomicUsize,
}

impl<const WORDS: usize> Waiters<WORDS> {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; WORDS],
            used: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
        }
    }

    /// Adds the task at `place`.
    pub fn add(&self, place: usize) {
        if let Some(word) = self.words.get(place / 64) {
            self.used.fetch_max(place / 64 + 1, Ordering::SeqCst);
            let bit = 1 << (place % 64);
            // Counted first: another CPU may remove the task at once, and the count must never be too small for
            // those that wait.
            self.count.fetch_add(1, Ordering::SeqCst);
            if word.fetch_or(bit, Ordering::SeqCst) & bit != 0 {
                self.count.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Removes the task at `place`.
    pub fn remove(&self, place: usize) {
        if let Some(word) = self.words.get(place / 64) {
            let bit = 1 << (place % 64);
            if word.fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
                self.count.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Whether the set is empty. Never true while a task is in the set; a task that is being added or removed on
    /// another CPU may count already, or still.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Calls `what` with each place and leaves the set unchanged.
    pub fn each(&self, mut what: impl FnMut(usize)) {
        let used = self.used.load(Ordering::SeqCst);
        for (index, word) in self.words.iter().take(used).enumerate() {
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
