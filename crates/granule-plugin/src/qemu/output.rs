//! The stream of a watched machine: the tracker's events, encoded, and written when there are enough.

use super::KEPT;
use super::ram::Ram;
use crate::stream;
use crate::track::Tracker;
use std::io::Write;
use std::os::unix::net::UnixStream;

/// The state under the lock.
pub(super) struct Output {
    pub(super) tracker: Tracker<'static, Ram>,
    pub(super) bytes: Vec<u8>,
    pub(super) stream: Option<UnixStream>,
    pub(super) most_table_bytes: u64,
}

impl Output {
    /// Encodes the tracker's new events, and writes them when the buffer is full.
    pub(super) fn collect(&mut self) {
        let Self { tracker, bytes, .. } = self;
        for (by, seen) in tracker.take() {
            for word in stream::encode(by.cpu, by.pc, &seen) {
                bytes.extend(word.to_le_bytes());
            }
        }
        if self.bytes.len() >= KEPT {
            self.most_table_bytes = self.most_table_bytes.max(self.tracker.table_bytes());
            self.write();
        }
    }

    pub(super) fn push(&mut self, words: [u64; stream::WORDS]) {
        self.bytes
            .extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    pub(super) fn write(&mut self) {
        // The reader has ended, and will end QEMU.
        if let Some(stream) = &mut self.stream
            && stream.write_all(&self.bytes).is_err()
        {
            self.stream = None;
        }
        self.bytes.clear();
    }
}
