//! What programs can read of the next kernel: `/sys/kernel/kexec_loaded` and
//! `/sys/kernel/kexec_segments`, as text that whoever loads or unloads one replaces.

use super::tree::Status;
use arrayvec::ArrayVec;
use core::fmt;

/// Three segments and a line for all of it take 400 bytes at most.
const MOST_BYTES: usize = 512;

/// See the module.
#[derive(Clone, Debug)]
pub struct Kexec {
    segments: ArrayVec<u8, MOST_BYTES>,
}

impl Kexec {
    /// Nothing is loaded.
    pub const NONE: Self = Self {
        segments: ArrayVec::new_const(),
    };

    /// What is loaded says this of itself.
    pub fn of(loaded: &impl fmt::Display) -> Self {
        let mut text = Self::NONE;
        // What does not fit is cut off.
        let _ = fmt::write(&mut text, format_args!("{loaded}"));
        text
    }

    pub(super) fn text(&self, status: Status) -> &[u8] {
        match status {
            Status::KexecLoaded if self.segments.is_empty() => b"0\n",
            Status::KexecLoaded => b"1\n",
            Status::KexecSegments => &self.segments,
        }
    }
}

impl fmt::Write for Kexec {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.segments.remaining_capacity();
        self.segments.extend(text.bytes().take(room));
        Ok(())
    }
}
