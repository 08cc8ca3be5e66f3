//! What leaving for the next kernel decides without touching a page: its device tree, the note that
//! it is handed, the options of the command line, and the request to the boot CPU.

pub mod handoff_note;
pub mod next_tree;
pub mod request;
#[cfg(any(test, feature = "test-image"))]
pub mod test_words;

/// Bytes of a command line at most, with the NUL, as in Linux.
pub const MOST_COMMAND_LINE: usize = 2048;
