//! The types and numbers of the arm64 Linux system-call interface. User programs were compiled against
//! these values, so nothing here is a free choice.
//!
//! Only layouts, numbers and names live here; the behaviour lives in [`files`](super::files),
//! [`signals`](super::signals) and [`syscall`](super::syscall). The size of each structure is checked at
//! compile time, and so are the offsets where C inserts padding: a wrong layout would corrupt a
//! program's memory silently.

pub mod auxv;
pub mod errno;
pub mod file;
pub mod number;
pub mod process;
pub mod signal;
pub mod time;

pub use errno::Errno;

/// Checks the size of an interface structure and the offsets of its fields.
macro_rules! layout {
    ($type:ty, $size:literal $(, $field:ident at $offset:literal)* $(,)?) => {
        const _: () = assert!(size_of::<$type>() == $size);
        $(const _: () = assert!(core::mem::offset_of!($type, $field) == $offset);)*
    };
}

use layout;
