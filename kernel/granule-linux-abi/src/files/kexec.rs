//! The files `/sys/kernel/kexec_loaded` and `/sys/kernel/kexec_segments`, as text that every load or
//! unload of a next kernel replaces.

use arrayvec::ArrayVec;
use core::fmt;

/// Sixteen segments and the line of the whole take less, unless each has terabytes.
const MOST_BYTES: usize = 1024;

/// The text about the loaded next kernel.
#[derive(Clone, Debug)]
pub struct Kexec {
    segments: ArrayVec<u8, MOST_BYTES>,
}

impl Kexec {
    /// No next kernel is loaded.
    pub const NONE: Self = Self {
        segments: ArrayVec::new_const(),
    };

    /// Takes the text of a loaded kernel.
    pub fn of(loaded: &impl fmt::Display) -> Self {
        let mut text = Self::NONE;
        // A text that is too long is cut.
        let _ = fmt::write(&mut text, format_args!("{loaded}"));
        text
    }

    pub(super) const fn loaded(&self) -> &[u8] {
        if self.segments.is_empty() {
            b"0\n"
        } else {
            b"1\n"
        }
    }

    pub(super) fn segments(&self) -> &[u8] {
        &self.segments
    }
}

impl fmt::Write for Kexec {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.segments.remaining_capacity();
        self.segments.extend(text.bytes().take(room));
        Ok(())
    }
}
