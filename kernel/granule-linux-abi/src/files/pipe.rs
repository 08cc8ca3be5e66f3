//! A pipe: bytes in order of arrival, in a buffer of frames, and the owner counts of both ends.
//!
//! [`files`](super) decides who waits for a pipe and what a closed end means.

use crate::abi::file::PIPE_BUF;
use crate::owned::{Array, Frames};

/// The capacity if memory allows. Programs that write before a reader exists rely on this size.
const BYTES: usize = 65536;

#[derive(Debug)]
pub(crate) struct Pipe<F: Frames> {
    buffer: Array<u8, F>,
    start: usize,
    used: usize,
    /// Open files that are its reading end.
    pub(super) readers: u32,
    /// Open files that are its writing end.
    pub(super) writers: u32,
}

impl<F: Frames> Pipe<F> {
    /// An empty pipe, with one owner of each end. Short memory halves it, down to `PIPE_BUF`.
    pub(super) fn new() -> Option<Self> {
        let mut bytes = BYTES;
        let buffer = loop {
            match Array::new(bytes, |_| 0) {
                Some(buffer) => break buffer,
                None if bytes / 2 < PIPE_BUF => return None,
                None => bytes /= 2,
            }
        };
        Some(Self {
            buffer,
            start: 0,
            used: 0,
            readers: 1,
            writers: 1,
        })
    }

    /// The capacity in bytes.
    #[cfg(test)]
    fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// The bytes in the pipe.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// The bytes that can be written now.
    pub(super) fn room(&self) -> usize {
        self.buffer.len() - self.used
    }

    /// Moves out as many bytes as the pipe has and `into` can hold.
    pub(super) fn read(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.used);
        let (wrapped, first) = self.buffer.split_at(self.start.min(self.buffer.len()));
        for (to, from) in into.iter_mut().zip(first.iter().chain(wrapped)).take(count) {
            *to = *from;
        }
        self.start = (self.start + count) % self.buffer.len();
        self.used -= count;
        count
    }

    /// Moves in as many bytes of `from` as fit.
    pub(super) fn write(&mut self, from: &[u8]) -> usize {
        let count = from.len().min(self.room());
        let end = (self.start + self.used) % self.buffer.len();
        let (wrapped, first) = self.buffer.split_at_mut(end);
        for (to, from) in first.iter_mut().chain(wrapped).zip(from).take(count) {
            *to = *from;
        }
        self.used += count;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned::host::{self, HostFrames};
    use granule_testing::cases::config;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #![proptest_config(config(256, 1))]

        #[test]
        fn bytes_come_out_as_they_went_in(
            steps in proptest::collection::vec(
                (any::<bool>(), 0usize..9000),
                1..if cfg!(miri) { 6 } else { 60 },
            )
        ) {
            // A small buffer, so that the data wraps around.
            host::run_out_after(usize::MAX);
            let mut pipe = Pipe::<HostFrames>::new().unwrap();
            pipe.buffer = Array::new(PIPE_BUF, |_| 0xee).unwrap();
            let mut model = VecDeque::new();
            let mut next = 0u8;
            for (write, count) in steps {
                if write {
                    let bytes: Vec<u8> = (0..count).map(|_| { next = next.wrapping_add(1); next }).collect();
                    let fits = count.min(PIPE_BUF - model.len());
                    prop_assert_eq!(pipe.room(), PIPE_BUF - model.len());
                    prop_assert_eq!(pipe.write(&bytes), fits);
                    model.extend(&bytes[..fits]);
                } else {
                    let mut bytes = vec![0; count];
                    let there = count.min(model.len());
                    prop_assert_eq!(pipe.read(&mut bytes), there);
                    let expected: Vec<u8> = model.drain(..there).collect();
                    prop_assert_eq!(&bytes[..there], &expected[..]);
                }
                prop_assert_eq!(pipe.used(), model.len());
            }
        }
    }

    #[test]
    fn it_is_as_large_as_memory_allows() {
        let pipe = Pipe::<HostFrames>::new().unwrap();
        assert_eq!(pipe.capacity(), 65536);
        host::run_out_after(0);
        assert!(Pipe::<HostFrames>::new().is_none());
        host::run_out_after(usize::MAX);
    }
}
