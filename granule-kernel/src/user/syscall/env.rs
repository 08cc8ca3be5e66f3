//! What system calls need of the machine and of the process that makes them: the kernel is one such,
//! tests are another.

use crate::user::abi::Errno;
use crate::user::files::Channel;
use crate::user::world::{Family, Place, World};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// What was waited for is there.
    Ready,
    /// There is a signal to be dealt with first.
    Signal,
    /// Time was up.
    TimeUp,
}

/// Memory of the whole machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ram {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

/// See the module.
pub(crate) trait Env {
    type Family: Family;

    /// Copies from the caller's memory. On an error some bytes may have been copied.
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Copies to the caller's memory. On an error some bytes may have been copied.
    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Errno>;

    /// Sees to it that `bytes` bytes at `at` can be written, so that nothing is taken out of a pipe
    /// for nobody.
    fn prepare_write(&mut self, at: u64, bytes: u64) -> Result<(), Errno>;

    /// Calls `work` with what all share, under its lock, then wakes whom that is to wake. `work`
    /// must neither sleep nor touch the caller's memory.
    fn with<R>(&mut self, work: impl FnOnce(&mut World<'_, Self::Family>, Place) -> R) -> R;

    /// Sleeps until `ready` says so, which is asked whenever `channel` is woken; until there is a
    /// signal for the caller; or until `until`, by [`now`](Self::now).
    fn sleep(
        &mut self,
        channel: Channel,
        until: Option<u64>,
        ready: impl FnMut(&mut World<'_, Self::Family>, Place) -> bool,
    ) -> Slept;

    /// Between two parts of a call that may have many: lets others run if it is their turn. Whether
    /// the call is to be content with what it has done, since there is a signal to be dealt with.
    fn pause(&mut self) -> bool;

    /// Nanoseconds since the machine was started.
    fn now(&self) -> u64;

    /// Sends bytes to the console.
    fn console(&mut self, bytes: &[u8]);

    /// Fills with random bytes.
    fn random(&mut self, into: &mut [u8]);

    /// Memory of the machine.
    fn ram(&self) -> Ram;

    /// The number of the CPU that the caller runs on.
    fn cpu(&self) -> u32;

    /// Someone made a call that there is not; told once a number.
    fn log_unknown(&mut self, number: u64);
}

/// Reads a structure.
pub(crate) fn get<T: FromBytes + IntoBytes>(env: &mut impl Env, at: u64) -> Result<T, Errno> {
    let mut value = T::new_zeroed();
    env.read(at, value.as_mut_bytes())?;
    Ok(value)
}

/// Writes a structure.
pub(crate) fn put<T: IntoBytes + Immutable>(
    env: &mut impl Env,
    at: u64,
    value: &T,
) -> Result<(), Errno> {
    env.write(at, value.as_bytes())
}

/// Writes a structure where the caller may have given no place for it.
pub(crate) fn put_if<T: IntoBytes + Immutable>(
    env: &mut impl Env,
    at: u64,
    value: &T,
) -> Result<(), Errno> {
    if at == 0 { Ok(()) } else { put(env, at, value) }
}

/// The smallest page there is: what is read in pieces that end where one does touches no page
/// beyond the one that ends the text.
const SMALLEST_PAGE: u64 = granule::arch::PageSize::MIN.bytes();

/// Reads a text that ends with a NUL, which is not part of what is given. `too_long` if it does not
/// fit.
pub(crate) fn text<'b>(
    env: &mut impl Env,
    at: u64,
    into: &'b mut [u8],
    too_long: Errno,
) -> Result<&'b [u8], Errno> {
    let mut used = 0;
    loop {
        let from = at.checked_add(used as u64).ok_or(Errno::EFAULT)?;
        let piece = (SMALLEST_PAGE - from % SMALLEST_PAGE) as usize;
        // Short ones are the rule.
        let piece = piece.min(64.max(used)).min(into.len() - used);
        if piece == 0 {
            return Err(too_long);
        }
        let room = into.get_mut(used..used + piece).unwrap_or_default();
        env.read(from, room)?;
        if let Some(end) = room.iter().position(|byte| *byte == 0) {
            return Ok(into.get(..used + end).unwrap_or_default());
        }
        used += piece;
    }
}
