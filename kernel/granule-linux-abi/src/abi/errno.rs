//! Error numbers.

use core::fmt;

/// The largest number that a system call can return as an error.
const MOST_ERRNO: i32 = 4095;

/// The error number of a failed system call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(u16);

macro_rules! errnos {
    ($($name:ident = $number:literal;)*) => {
        impl Errno {
            $(pub const $name: Self = Self($number);)*

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
    EPERM = 1;
    ENOENT = 2;
    ESRCH = 3;
    EINTR = 4;
    EIO = 5;
    ENXIO = 6;
    E2BIG = 7;
    ENOEXEC = 8;
    EBADF = 9;
    ECHILD = 10;
    EAGAIN = 11;
    ENOMEM = 12;
    EACCES = 13;
    EFAULT = 14;
    EBUSY = 16;
    EEXIST = 17;
    ENODEV = 19;
    ENOTDIR = 20;
    EISDIR = 21;
    EINVAL = 22;
    ENFILE = 23;
    EMFILE = 24;
    ENOTTY = 25;
    ENOSPC = 28;
    ESPIPE = 29;
    EROFS = 30;
    EPIPE = 32;
    ERANGE = 34;
    ENAMETOOLONG = 36;
    ENOSYS = 38;
    ELOOP = 40;
    EOVERFLOW = 75;
    EOPNOTSUPP = 95;
    EADDRNOTAVAIL = 99;
    ETIMEDOUT = 110;
}

impl Errno {
    /// The error with this number, if it is one.
    pub const fn of(number: i32) -> Option<Self> {
        if number > 0 && number <= MOST_ERRNO {
            Some(Self(number as u16))
        } else {
            None
        }
    }

    /// The value that the system call returns in x0.
    pub const fn as_result(self) -> u64 {
        (self.0 as u64).wrapping_neg()
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
        assert_eq!(Errno::ETIMEDOUT.as_result() as i64, -110);
    }
}
