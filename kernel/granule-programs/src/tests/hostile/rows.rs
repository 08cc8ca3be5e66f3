//! The system calls that take pointers, as a table: which arguments are pointers, what for, and what a
//! call gives when all of them are good.

use granule_programs::calls::{self, HERE, NANOSLEEP, PIPE2, READ};

/// The purpose of a pointer.
#[derive(Clone, Copy)]
pub(super) enum For {
    /// So many bytes are read, at least.
    In(u64),
    /// So many bytes are written.
    Out(u64),
    /// The path of a file.
    Path,
    /// The path of a link.
    Link,
}
use For::{In, Link, Out, Path};

impl For {
    pub(super) const fn path(self) -> &'static [u8] {
        match self {
            Link => b"/proc/self/exe\0",
            _ => b"/init\0",
        }
    }
}

/// A pointer of a call: the number of the argument, and what for.
pub(super) struct Pointer {
    pub(super) argument: usize,
    pub(super) is_for: For,
    pub(super) null: Null,
}

/// The validity of null for a pointer.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Null {
    /// As bad as any other that leads nowhere.
    Bad,
    Good,
    /// The call would wait for ever.
    Waits,
}

pub(super) const fn must(argument: usize, is_for: For) -> Pointer {
    Pointer {
        argument,
        is_for,
        null: Null::Bad,
    }
}

const fn time(argument: usize) -> Pointer {
    Pointer {
        argument,
        is_for: In(16),
        null: Null::Waits,
    }
}

const fn may(argument: usize, is_for: For) -> Pointer {
    Pointer {
        argument,
        is_for,
        null: Null::Good,
    }
}

/// A call: its number and arguments, those of pointers made good before.
pub(super) struct Row {
    pub(super) number: u64,
    pub(super) arguments: [u64; 6],
    pub(super) pointers: &'static [Pointer],
    /// The result with good pointers: at least 0, or this error.
    pub(super) error: i64,
}

/// Descriptors that are open: `/init`, `/`, `/dev/null`, `/dev/console`.
pub(super) const FILE: u64 = 3;
pub(super) const FOLDER: u64 = 4;
pub(super) const NULL: u64 = 5;
pub(super) const CONSOLE: u64 = 6;

const fn row(number: u64, arguments: [u64; 6], pointers: &'static [Pointer], error: i64) -> Row {
    Row {
        number,
        arguments,
        pointers,
        error,
    }
}

/// Where the text of a good path is: `/init` for all.
pub(super) const ROWS: &[Row] = &[
    row(17, [0, 64, 0, 0, 0, 0], &[must(0, Out(2))], 0),
    row(29, [NULL, 0x5421, 0, 0, 0, 0], &[must(2, In(4))], 0),
    // It is not a directory.
    row(49, [0; 6], &[must(0, Path)], -20),
    row(56, [HERE, 0, 0, 0, 0, 0], &[must(1, Path)], 0),
    row(PIPE2, [0; 6], &[must(0, Out(8))], 0),
    row(61, [FOLDER, 0, 512, 0, 0, 0], &[must(1, Out(512))], 0),
    row(READ, [FILE, 0, 64, 0, 0, 0], &[must(1, Out(64))], 0),
    row(READ, [FILE, 0, 3000, 0, 0, 0], &[must(1, Out(3000))], 0),
    row(calls::WRITE, [NULL, 0, 64, 0, 0, 0], &[must(1, In(64))], 0),
    row(
        calls::WRITE,
        [NULL, 0, 3000, 0, 0, 0],
        &[must(1, In(3000))],
        0,
    ),
    row(
        73,
        [0, 1, 0, 0, 8, 0],
        &[must(0, Out(8)), time(2), may(3, In(8))],
        0,
    ),
    row(
        78,
        [HERE, 0, 0, 64, 0, 0],
        &[must(1, Link), must(2, Out(5))],
        0,
    ),
    row(
        79,
        [HERE, 0, 0, 0, 0, 0],
        &[must(1, Path), must(2, Out(128))],
        0,
    ),
    row(80, [FILE, 0, 0, 0, 0, 0], &[must(1, Out(128))], 0),
    row(NANOSLEEP, [0; 6], &[must(0, In(16))], 0),
    row(113, [1, 0, 0, 0, 0, 0], &[must(1, Out(16))], 0),
    row(115, [1, 0, 0, 0, 0, 0], &[must(2, In(16))], 0),
    row(132, [0; 6], &[may(1, Out(24))], 0),
    // A stack of 0 bytes is too small.
    row(132, [0; 6], &[may(0, In(24))], -12),
    row(
        134,
        [10, 0, 0, 8, 0, 0],
        &[may(1, In(32)), may(2, Out(32))],
        0,
    ),
    row(135, [0, 0, 0, 8, 0, 0], &[may(1, In(8)), may(2, Out(8))], 0),
    row(137, [0, 0, 0, 8, 0, 0], &[must(0, In(8)), time(2)], -11),
    row(160, [0; 6], &[must(0, Out(390))], 0),
    // A text, which ends soon here.
    row(167, [15, 0, 0, 0, 0, 0], &[must(1, Path)], 0),
    row(167, [16, 0, 0, 0, 0, 0], &[must(1, Out(16))], 0),
    row(168, [0; 6], &[may(0, Out(4)), may(1, Out(4))], 0),
    row(179, [0; 6], &[must(0, Out(112))], 0),
    row(261, [0, 3, 0, 0, 0, 0], &[may(3, Out(16))], 0),
    row(278, [0, 64, 0, 0, 0, 0], &[must(0, Out(64))], 0),
    row(278, [0, 1000, 0, 0, 0, 0], &[must(0, Out(1000))], 0),
];
