//! Error numbers.

use core::fmt;

/// Why a system call failed, as its caller is told.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(u16);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// The name in C, without which a number says little.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($number => stringify!($name),)*
                    _ => "E?",
                }
            }
        }
    };
}

errnos! {
    /// The caller may not.
    EPERM = 1;
    /// There is nothing of that name.
    ENOENT = 2;
    /// There is no such process.
    ESRCH = 3;
    /// A signal came first.
    EINTR = 4;
    /// The argument list is too long.
    E2BIG = 7;
    /// Not a program that can run here.
    ENOEXEC = 8;
    /// The descriptor is not open, or not for this.
    EBADF = 9;
    /// There are no children to wait for.
    ECHILD = 10;
    /// It would block, or there is no room now.
    EAGAIN = 11;
    /// No memory.
    ENOMEM = 12;
    /// The file's permissions do not allow it.
    EACCES = 13;
    /// A pointer leads nowhere.
    EFAULT = 14;
    /// Somebody else is at it.
    EBUSY = 16;
    /// There is something of that name.
    EEXIST = 17;
    /// The device has no such driver.
    ENODEV = 19;
    /// A part of the path is not a directory.
    ENOTDIR = 20;
    /// It is a directory.
    EISDIR = 21;
    /// An argument makes no sense.
    EINVAL = 22;
    /// The system has too many open files.
    ENFILE = 23;
    /// The process has too many open files.
    EMFILE = 24;
    /// Not a terminal.
    ENOTTY = 25;
    /// No space is left.
    ENOSPC = 28;
    /// The file cannot seek.
    ESPIPE = 29;
    /// The file system cannot be written.
    EROFS = 30;
    /// Nobody reads the pipe.
    EPIPE = 32;
    /// The result does not fit.
    ERANGE = 34;
    /// A name is too long.
    ENAMETOOLONG = 36;
    /// There is no such system call.
    ENOSYS = 38;
    /// Too many symbolic links.
    ELOOP = 40;
    /// The value does not fit the type.
    EOVERFLOW = 75;
    /// Not supported by this file.
    EOPNOTSUPP = 95;
    /// There is no such address to be had.
    EADDRNOTAVAIL = 99;
    /// Time is up.
    ETIMEDOUT = 110;
}

impl Errno {
    /// What the system call returns in x0.
    pub const fn as_result(self) -> u64 {
        (self.0 as u64).wrapping_neg()
    }

    /// The number, as `siginfo` carries it.
    #[cfg_attr(not(test), allow(dead_code, reason = "tests name what they expect"))]
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_small_negative_number() {
        assert_eq!(Errno::ENOSYS.as_result() as i64, -38);
        assert_eq!(Errno::EPERM.as_result(), u64::MAX);
        assert_eq!(format!("{:?}", Errno::ENAMETOOLONG), "ENAMETOOLONG");
        assert_eq!(Errno::ETIMEDOUT.number(), 110);
    }
}
