//! The numbers of processes: which place has a number, and which number is next.

use super::{MOST_PROCESSES, ProcessPlace};
use crate::owned::{Array, Frames};

/// Numbers for each place. A process takes up to two, its own and that of a group that has outlived the
/// process it was named after, so most numbers are free and the next one is found soon.
const FOR_EACH_PLACE: usize = 8;

/// The users of a number.
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    /// One more than the place of the process, or 0.
    process: u16,
    /// Members of the group with this number.
    members: u16,
}

const _: () = assert!(MOST_PROCESSES < u16::MAX as usize);

/// The numbers of processes and groups, from 1 on.
#[derive(Debug)]
pub struct Numbers<F: Frames> {
    numbers: Array<Number, F>,
    last: u32,
}

impl<F: Frames> Numbers<F> {
    /// Numbers for the processes at `places` places. `None` if memory is exhausted.
    #[must_use]
    pub fn new(places: usize) -> Option<Self> {
        let count = places.checked_mul(FOR_EACH_PLACE)?;
        Some(Self {
            numbers: Array::new(count, |_| Number::default())?,
            last: 0,
        })
    }

    /// Gives the process at `place` a number that no process and no group has.
    pub fn give(&mut self, place: ProcessPlace) -> Option<u32> {
        let count = self.numbers.len() as u32;
        for _ in 1..count {
            self.last = if self.last + 1 < count {
                self.last + 1
            } else {
                1
            };
            let number = self.numbers.get_mut(self.last as usize)?;
            if number.process == 0 && number.members == 0 {
                number.process = place as u16 + 1;
                return Some(self.last);
            }
        }
        None
    }

    /// Takes a process's number back.
    pub fn take(&mut self, pid: u32) {
        if let Some(number) = self.numbers.get_mut(pid as usize) {
            number.process = 0;
        }
    }

    /// The place of the process with this number.
    #[must_use]
    pub fn place(&self, pid: u32) -> Option<ProcessPlace> {
        let number = self.numbers.get(pid as usize)?;
        usize::from(number.process).checked_sub(1)
    }

    /// Counts a process in a group.
    pub fn join(&mut self, group: u32) {
        if let Some(number) = self.numbers.get_mut(group as usize) {
            number.members += 1;
        }
    }

    /// Counts a process in a group no more.
    pub fn leave(&mut self, group: u32) {
        if let Some(number) = self.numbers.get_mut(group as usize) {
            number.members = number.members.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::owned::host::HostFrames;

    type Numbers = super::Numbers<HostFrames>;

    #[test]
    fn numbers_go_up_and_none_is_used_twice() {
        let mut numbers = Numbers::new(2).unwrap();
        assert_eq!((numbers.give(0), numbers.give(1)), (Some(1), Some(2)));
        assert_eq!((numbers.place(1), numbers.place(2)), (Some(0), Some(1)));
        assert_eq!((numbers.place(0), numbers.place(3)), (None, None));
        assert_eq!(numbers.place(u32::MAX), None);
        // The second one's group outlives it.
        numbers.join(2);
        numbers.join(2);
        numbers.take(2);
        numbers.leave(2);
        for expected in 3..16 {
            assert_eq!(numbers.give(1), Some(expected));
            numbers.take(expected);
        }
        assert_eq!(numbers.give(1), Some(3), "1 is a process's, 2 a group's");
        numbers.take(3);
        numbers.leave(2);
        numbers.take(1);
        for _ in 4..16 {
            let number = numbers.give(1).unwrap();
            numbers.take(number);
        }
        assert_eq!((numbers.give(0), numbers.give(1)), (Some(1), Some(2)));
        for number in 3..16 {
            assert_eq!(numbers.give(0), Some(number));
        }
        assert_eq!(numbers.give(0), None);
    }
}
