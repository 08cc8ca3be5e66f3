//! The queue of tasks that wait for their turn: first come, first served. Pure.

use super::MOST_TASKS;

/// Places of tasks, each of which is in it once at most, so there is room.
#[derive(Debug)]
pub(crate) struct Queue {
    places: [u16; MOST_TASKS],
    first: usize,
    count: usize,
}

impl Queue {
    /// Nobody waits.
    pub(crate) const fn new() -> Self {
        Self {
            places: [0; MOST_TASKS],
            first: 0,
            count: 0,
        }
    }

    /// How many wait.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Puts a task at the end; false if there is no room.
    pub(crate) fn push(&mut self, place: usize) -> bool {
        let end = (self.first + self.count) % MOST_TASKS;
        let room = self.count < MOST_TASKS;
        if let Some(slot) = self.places.get_mut(end).filter(|_| room) {
            *slot = place as u16;
            self.count += 1;
        }
        room
    }

    /// Takes the first out.
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
