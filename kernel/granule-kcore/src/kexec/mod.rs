//! The decisions of a kexec that touch no page: the next kernel's device tree, the handoff note, the
//! command-line options, and the request to the boot CPU.

pub mod handoff_note;
pub mod next_tree;
pub mod request;
pub mod segments;
#[cfg(any(test, feature = "test-image"))]
pub mod test_words;

/// The longest command line in bytes, with the NUL, as in Linux.
pub const MOST_COMMAND_LINE: usize = 2048;
