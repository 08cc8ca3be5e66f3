//! Error numbers.

use core::fmt;

/// The error number of a failed system call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(u16);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            /// The name in C, for messages.
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
    /// The caller lacks permission.
    EPERM = 1;
    /// No such file.
    ENOENT = 2;
    /// No such process.
    ESRCH = 3;
    /// A signal interrupted the call.
    EINTR = 4;
    /// The argument list is too long.
    E2BIG = 7;
    /// The file is not a program that can run here.
    ENOEXEC = 8;
    /// The descriptor is not open, or not open for this operation.
    EBADF = 9;
    /// No such children.
    ECHILD = 10;
    /// The call would block, or a resource is exhausted for now.
    EAGAIN = 11;
    /// Out of memory.
    ENOMEM = 12;
    /// The file's permissions do not allow it.
    EACCES = 13;
    /// A bad address.
    EFAULT = 14;
    /// The resource is in use.
    EBUSY = 16;
    /// The file exists already.
    EEXIST = 17;
    /// The device has no such driver.
    ENODEV = 19;
    /// A part of the path is not a directory.
    ENOTDIR = 20;
    /// The file is a directory.
    EISDIR = 21;
    /// An invalid argument.
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
    /// The pipe has no reader.
    EPIPE = 32;
    /// The result does not fit.
    ERANGE = 34;
    /// A name is too long.
    ENAMETOOLONG = 36;
    /// No such system call.
    ENOSYS = 38;
    /// Too many symbolic links.
    ELOOP = 40;
    /// The value does not fit the type.
    EOVERFLOW = 75;
    /// Not supported by this file.
    EOPNOTSUPP = 95;
    /// The requested address is not available.
    EADDRNOTAVAIL = 99;
    /// The time is up.
    ETIMEDOUT = 110;
}

impl Errno {
    /// The value that the system call returns in x0.
    pub const fn as_result(self) -> u64 {
        (self.0 as u64).wrapping_neg()
    }

    /// The number, as `siginfo` has it.
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
