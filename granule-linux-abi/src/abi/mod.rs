//! The arm64 Linux system-call interface as types and numbers: what user programs were compiled
//! against and what therefore cannot be chosen here.
//!
//! Only layouts, numbers and their names live here; what is done with them lives in
//! [`files`](super::files), [`signals`](super::signals) and [`syscall`](super::syscall). Each
//! structure has its size, and each offset that a C compiler padded has its field, checked at
//! compile time: a wrong one corrupts a program's memory without a word.

pub mod auxv;
pub mod errno;
pub mod file;
pub mod number;
pub mod process;
pub mod signal;
pub mod time;

pub use errno::Errno;

/// Checks the size of a structure of the interface, and that fields lie where they must.
macro_rules! layout {
    ($type:ty, $size:literal $(, $field:ident at $offset:literal)* $(,)?) => {
        const _: () = assert!(size_of::<$type>() == $size);
        $(const _: () = assert!(core::mem::offset_of!($type, $field) == $offset);)*
    };
}

use layout;
