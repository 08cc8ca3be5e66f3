//! The trait by which system calls reach the machine and the calling process. The kernel implements it
//! for the task that made the call, tests for a fake one. Also here: copies of structures and texts
//! from and to the caller's memory.

use crate::abi::Errno;
use crate::files::Channel;
use crate::processes::{Place, Processes, TaskTable};
use crate::signals::frame::{FpRegisters, Registers};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// The condition came true.
    Ready,
    /// A signal must be handled first.
    Signal,
    /// Time was up.
    TimeUp,
}

/// Memory of the whole machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ram {
    /// All of it.
    pub total: u64,
    /// What nobody uses.
    pub free: u64,
}

/// The machine, seen from the process that makes a system call.
pub trait Env {
    /// The kernel's table of tasks.
    type Tasks: TaskTable;

    /// Copies from the caller's memory. After an error some bytes may have been copied.
    ///
    /// # Errors
    ///
    /// `EFAULT` where the caller may not read; `ENOMEM`.
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Copies to the caller's memory. After an error some bytes may have been copied.
    ///
    /// # Errors
    ///
    /// `EFAULT` where the caller may not write; `ENOMEM`.
    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Errno>;

    /// Makes `bytes` bytes at `at` writable without writing them, so that nothing is taken out of a
    /// pipe that cannot be delivered.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    fn prepare_write(&mut self, at: u64, bytes: u64) -> Result<(), Errno>;

    /// Calls `work` with the process table under its lock, then wakes the processes that the table
    /// collected. `work` must neither sleep nor touch the caller's memory.
    fn with<R>(&mut self, work: impl FnOnce(&mut Processes<'_, Self::Tasks>, Place) -> R) -> R;

    /// Sleeps until `ready` is true, which is asked whenever `channel` is woken; until the caller has a
    /// signal to handle; or until the time `until`, by [`now`](Self::now).
    fn sleep(
        &mut self,
        channel: Channel,
        until: Option<u64>,
        ready: impl FnMut(&mut Processes<'_, Self::Tasks>, Place) -> bool,
    ) -> Slept;

    /// Lets other tasks run between two parts of a long call. True if the call should return what it has
    /// done so far, because the caller has a signal to handle.
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

    /// Tells, once a number, that a system call is missing.
    fn log_unknown(&mut self, number: u64);

    /// The caller's general registers.
    fn registers(&self) -> Registers;

    /// Sets the caller's general registers.
    fn set_registers(&mut self, registers: &Registers);

    /// The caller's floating-point and SIMD registers.
    fn fp(&self) -> FpRegisters;

    /// Sets the caller's floating-point and SIMD registers.
    fn set_fp(&mut self, registers: &FpRegisters);

    /// The address, in the caller's memory, of code that calls `rt_sigreturn`. Programs that bring no
    /// such code return there from a handler.
    fn trampoline(&self) -> u64;
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

/// Writes a structure unless the pointer is null.
pub(crate) fn put_if<T: IntoBytes + Immutable>(
    env: &mut impl Env,
    at: u64,
    value: &T,
) -> Result<(), Errno> {
    if at == 0 { Ok(()) } else { put(env, at, value) }
}

/// The smallest page there is. A piece that ends at such a boundary touches no page behind the one in
/// which the text ends.
const SMALLEST_PAGE: u64 = granule::arch::PageSize::MIN.bytes();

/// Reads a text up to its NUL, which is not part of the result; fails with `too_long` if `into` is too
/// small.
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
        // Most texts are short.
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
