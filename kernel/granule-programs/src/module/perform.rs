//! Performs the commands.

use core::fmt::{self, Write};
use granule_programs::calls::{
    CLOSE, DELETE_MODULE, FINIT_MODULE, HERE, OPENAT, StandardError, call,
};
use granule_programs::start::Start;

/// The errors that the calls of this program can end with.
const NAMES: [(i64, &str); 11] = [
    (-2, "ENOENT: there is no such file, module or function"),
    (-8, "ENOEXEC: it is not a module of this kernel"),
    (-9, "EBADF: it cannot be read"),
    (-11, "EAGAIN: it is in use"),
    (-12, "ENOMEM: there is no memory for it"),
    (-16, "EBUSY: another has what it wants"),
    (-17, "EEXIST: it is loaded"),
    (-20, "ENOTDIR: its path leads through a file"),
    (-21, "EISDIR: it is a directory"),
    (-22, "EINVAL: it is not as it must be"),
    (-38, "ENOSYS: this kernel loads no modules"),
];

/// The error of a call.
struct Error(i64);

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => to.write_str(name),
            None => write!(to, "error {}", self.0),
        }
    }
}

fn done(result: i64) -> Result<u64, Error> {
    u64::try_from(result).map_err(|_| Error(result))
}

/// Loads a file. An argument ends with a NUL, as a path must.
fn load(path: &[u8]) -> Result<(), Error> {
    let descriptor = done(call(OPENAT, [HERE, path.as_ptr() as u64]))?;
    let parameters = c"".as_ptr() as u64;
    let loaded = done(call(FINIT_MODULE, [descriptor, parameters]));
    call(CLOSE, [descriptor]);
    loaded.map(drop)
}

fn unload(name: &[u8]) -> Result<(), Error> {
    done(call(DELETE_MODULE, [name.as_ptr() as u64])).map(drop)
}

/// One line on standard error; the exit status.
fn fail(what: fmt::Arguments<'_>) -> i32 {
    // Never fails.
    let _ = writeln!(StandardError, "granule-user-module: {what}");
    1
}

pub(crate) fn run(start: Start) -> i32 {
    let mut at = 1;
    while at < start.count() {
        let (word, what) = (start.argument(at), start.argument(at + 1));
        let (name, shown) = (word.escape_ascii(), what.escape_ascii());
        let result = match word {
            b"load" | b"unload" if what.is_empty() => {
                return fail(format_args!(
                    "{name}: nothing behind it: expected load FILE or unload NAME"
                ));
            }
            b"load" => load(what),
            b"unload" => unload(what),
            _ => {
                return fail(format_args!(
                    "{name}: no such command: expected load FILE or unload NAME"
                ));
            }
        };
        if let Err(error) = result {
            return fail(format_args!(
                "{name} {shown}: {error}; see the kernel's log"
            ));
        }
        at += 2;
    }
    0
}
