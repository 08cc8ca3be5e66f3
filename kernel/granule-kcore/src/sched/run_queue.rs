//! The queue of ready tasks: first come, first served.

/// Places of tasks in a table of `N` places. A place is in the queue at most once, so there is always room.
#[derive(Debug)]
pub struct RunQueue<const N: usize> {
    places: [u16; N],
    first: usize,
    count: usize,
}

impl<const N: usize> RunQueue<N> {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(N > 0 && N <= u16::MAX as usize, "a place has 16 bits") };
        Self {
            places: [0; N],
            first: 0,
            count: 0,
        }
    }

    /// Whether no task waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends the task at `place`; false if the queue is full.
    pub fn push(&mut self, place: usize) -> bool {
        let end = (self.first + self.count) % N;
        let room = self.count < N;
        if let Some(slot) = self.places.get_mut(end).filter(|_| room) {
            *slot = place as u16;
            self.count += 1;
        }
        room
    }

    /// Removes the first task.
    pub fn pop(&mut self) -> Option<usize> {
        self.count = self.count.checked_sub(1)?;
        let place = self.places.get(self.first).copied();
        self.first = (self.first + 1) % N;
        place.map(usize::from)
    }
}

impl<const N: usize> Default for RunQueue<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const MOST_TASKS: usize = 256;

    #[test]
    fn first_come_first_served_round_and_round() {
        let mut queue = RunQueue::<MOST_TASKS>::new();
        let mut model = VecDeque::new();
        let mut next = 0;
        for round in 0..2000 {
            let pushes = round * 7 % 11;
            for _ in 0..pushes {
                let place = next % MOST_TASKS;
                next += 1;
                let room = model.len() < MOST_TASKS;
                assert_eq!(queue.push(place), room);
                if room {
                    model.push_back(place);
                }
            }
            for _ in 0..round * 5 % 11 {
                assert_eq!(queue.pop(), model.pop_front());
            }
            assert_eq!(queue.is_empty(), model.is_empty());
        }
    }
}
