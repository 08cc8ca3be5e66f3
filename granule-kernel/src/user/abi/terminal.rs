//! Terminals: the requests of `ioctl`, settings and window sizes.

use super::layout;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) const TCGETS: u32 = 0x5401;
pub(crate) const TCSETS: u32 = 0x5402;
pub(crate) const TCSETSW: u32 = 0x5403;
pub(crate) const TCSETSF: u32 = 0x5404;
pub(crate) const TCSBRK: u32 = 0x5409;
pub(crate) const TCFLSH: u32 = 0x540b;
pub(crate) const TIOCSCTTY: u32 = 0x540e;
pub(crate) const TIOCGPGRP: u32 = 0x540f;
pub(crate) const TIOCSPGRP: u32 = 0x5410;
pub(crate) const TIOCGWINSZ: u32 = 0x5413;
pub(crate) const TIOCSWINSZ: u32 = 0x5414;
pub(crate) const FIONREAD: u32 = 0x541b;
pub(crate) const FIONBIO: u32 = 0x5421;
pub(crate) const TIOCGSID: u32 = 0x5429;

/// Input: a carriage return becomes a newline.
pub(crate) const ICRNL: u32 = 0o400;
/// Input: carriage returns are ignored.
pub(crate) const IGNCR: u32 = 0o200;
/// Input: a newline becomes a carriage return.
pub(crate) const INLCR: u32 = 0o100;
/// Output is processed.
pub(crate) const OPOST: u32 = 0o1;
/// Output: a newline becomes a carriage return and a newline.
pub(crate) const ONLCR: u32 = 0o4;
/// Control characters send signals.
pub(crate) const ISIG: u32 = 0o1;
/// Input comes in lines.
pub(crate) const ICANON: u32 = 0o2;
pub(crate) const ECHO: u32 = 0o10;
/// Erasing is shown.
pub(crate) const ECHOE: u32 = 0o20;
/// Killing the line is shown.
pub(crate) const ECHOK: u32 = 0o40;
/// A newline is shown even without ECHO.
pub(crate) const ECHONL: u32 = 0o100;
/// Control characters are shown as `^X`.
pub(crate) const ECHOCTL: u32 = 0o1000;
/// Signals leave input and output as they are.
pub(crate) const NOFLSH: u32 = 0o200;
/// 8 bits, receiver on, 115200 baud.
pub(crate) const CFLAG: u32 = 0o60 | 0o200 | 0o10002;

pub(crate) const VINTR: usize = 0;
pub(crate) const VQUIT: usize = 1;
pub(crate) const VERASE: usize = 2;
pub(crate) const VKILL: usize = 3;
pub(crate) const VEOF: usize = 4;
pub(crate) const VMIN: usize = 6;
pub(crate) const VSUSP: usize = 10;
pub(crate) const VEOL: usize = 11;

/// The kernel's `struct termios`: 19 control characters, unlike libc's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub(crate) struct Termios {
    pub(crate) input: u32,
    pub(crate) output: u32,
    pub(crate) control: u32,
    pub(crate) local: u32,
    pub(crate) line: u8,
    pub(crate) characters: [u8; 19],
}
layout!(Termios, 36, line at 16, characters at 17);

impl Termios {
    /// How a terminal begins.
    pub(crate) const NEW: Self = Self {
        input: ICRNL,
        output: OPOST | ONLCR,
        control: CFLAG,
        local: ISIG | ICANON | ECHO | ECHOE | ECHOK | ECHOCTL,
        line: 0,
        // Interrupt ^C, quit ^\, erase DEL, kill ^U, end ^D, time 0, at least 1, no switch,
        // start ^Q, stop ^S, suspend ^Z, no further end of line; the rest serve IEXTEN.
        characters: [
            3, 28, 127, 21, 4, 0, 1, 0, 17, 19, 26, 0, 18, 15, 23, 22, 0, 0, 0,
        ],
    };

    /// The control character of an index, if it is there: 0 turns one off.
    pub(crate) fn is(&self, index: usize, byte: u8) -> bool {
        byte != 0 && self.characters.get(index) == Some(&byte)
    }

    /// Whether one of the local flags is set.
    pub(crate) const fn has(&self, local: u32) -> bool {
        self.local & local != 0
    }
}

/// `struct winsize`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub(crate) struct WindowSize {
    pub(crate) rows: u16,
    pub(crate) columns: u16,
    pub(crate) pixels: [u16; 2],
}
layout!(WindowSize, 8);
