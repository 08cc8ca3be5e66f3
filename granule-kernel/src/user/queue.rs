//! The queue of ready tasks: first come, first served. Pure.

use super::MOST_TASKS;

/// Places of tasks. Each place is in the queue at most once, so there is always room.
#[derive(Debug)]
pub(crate) struct Queue {
    places: [u16; MOST_TASKS],
    first: usize,
    count: usize,
}

impl Queue {
    /// An empty queue.
    pub(crate) const fn new() -> Self {
        Self {
            places: [0; MOST_TASKS],
            first: 0,
            count: 0,
        }
    }

    /// The number of waiting tasks.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Appends a task; false if the queue is full.
    pub(crate) fn push(&mut self, place: usize) -> bool {
        let end = (self.first + self.count) % MOST_TASKS;
        let room = self.count < MOST_TASKS;
        if let Some(slot) = self.places.get_mut(end).filter(|_| room) {
            *slot = place as u16;
            self.count += 1;
        }
        room
    }

    /// Removes the first task.
    pub(crate) fn pop(&mut self) -> Option<usize> {
        self.count = self.count.checked_sub(1)?;
        let place = self.places.get(self.first).copied();
        self.first = (self.first + 1) % MOST_TASKS;
        place.map(usize::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn first_come_first_served_round_and_round() {
        let mut queue = Queue::new();
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
            assert_eq!(queue.len(), model.len());
        }
    }
}
