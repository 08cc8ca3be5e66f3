//! The trait through which system calls access the machine and the calling process. The kernel
//! implements it for the calling task; tests implement it for a fake one. This file also copies
//! structures and strings from and to the caller's memory.

use crate::abi::Errno;
use crate::files::Channel;
use crate::files::source::Source;
use crate::processes::{ProcessPlace, Processes, TaskTable};
use crate::signals::frame::{FpRegisters, Registers};
use granule_boot::sizes::SizeSet;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// The condition came true.
    Ready,
    /// A signal must be handled first.
    Signal,
    /// Time was up.
    TimeUp,
}

/// The memory of the whole machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ram {
    /// All memory.
    pub total: u64,
    /// Unused memory.
    pub free: u64,
}

/// The machine, seen from the process that makes a system call.
pub trait Env {
    /// The kernel's table of tasks.
    type Tasks: TaskTable;

    /// Copies from the caller's memory. After an error some bytes may have been copied. Errors: `EFAULT` where the
    /// caller may not read; `ENOMEM`.
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Copies to the caller's memory. After an error some bytes may have been copied. Errors: `EFAULT` where the
    /// caller may not write; `ENOMEM`.
    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Errno>;

    /// Makes `bytes` bytes at `at` writable without writing them. A read from a pipe then never takes
    /// bytes out that it cannot deliver. Errors: as for [`write`](Self::write).
    fn prepare_write(&mut self, at: u64, bytes: u64) -> Result<(), Errno>;

    /// Calls `work` with the process table under its lock, then wakes the processes that the table
    /// collected. `work` must neither sleep nor touch the caller's memory.
    fn with<R>(
        &mut self,
        work: impl FnOnce(&mut Processes<'_, Self::Tasks>, ProcessPlace) -> R,
    ) -> R;

    /// Sleeps until `ready` returns true (checked at each wake-up of `channel`), until the caller has a
    /// signal to handle, or until the time `until` on the clock of [`now`](Self::now).
    fn sleep(
        &mut self,
        channel: Channel,
        until: Option<u64>,
        ready: impl FnMut(&mut Processes<'_, Self::Tasks>, ProcessPlace) -> bool,
    ) -> Slept;

    /// Lets other tasks run between two parts of a long call. True if the caller has a signal to handle,
    /// so that the call should return its partial result.
    fn pause(&mut self) -> bool;

    /// Nanoseconds since the machine started.
    fn now(&self) -> u64;

    /// Moves bytes between the memory of the caller of this function and a source that the process has open, from
    /// byte `at` of the source on. The bytes lie in the source. A request to crash does not return. Errors: `EIO`
    /// if the device fails; then any of the bytes may have been moved.
    fn transfer(&mut self, source: Source, at: u64, bytes: Transfer<'_>) -> Result<(), Errno>;

    /// Writes bytes to the console.
    fn console(&mut self, bytes: &[u8]);

    /// Fills `into` with random bytes.
    fn random(&mut self, into: &mut [u8]);

    /// Whether nobody can guess what [`random`](Self::random) gives.
    fn is_random_seeded(&self) -> bool;

    /// The memory of the machine.
    fn ram(&self) -> Ram;

    /// The page sizes that programs can have on this boot.
    fn page_sizes(&self) -> SizeSet;

    /// The number of the CPU that the caller runs on.
    fn cpu(&self) -> u32;

    /// Reports a missing system call, once for each number.
    fn log_unknown(&mut self, number: u64);

    /// The caller's general registers.
    fn registers(&self) -> Registers;

    /// Sets the caller's general registers.
    fn set_registers(&mut self, registers: &Registers);

    /// The bits of PSTATE that the caller may set, [`pstate_of_users`](crate::signals::frame::pstate_of_users).
    fn pstate_bits(&self) -> u64;

    /// The caller's floating-point and SIMD registers.
    fn fp(&self) -> FpRegisters;

    /// Sets the caller's floating-point and SIMD registers.
    fn set_fp(&mut self, registers: &FpRegisters);

    /// The address, in the caller's memory, of code that calls `rt_sigreturn`. A handler without a
    /// restorer of its own returns there.
    fn trampoline(&self) -> u64;
}

/// The bytes of a transfer between memory and a source, and its direction.
#[derive(Debug)]
pub enum Transfer<'a> {
    /// From the source.
    Read(&'a mut [u8]),
    /// To the source.
    Write(&'a [u8]),
}

/// Reads a structure from the caller's memory.
pub(crate) fn get<T: FromBytes + IntoBytes>(env: &mut impl Env, at: u64) -> Result<T, Errno> {
    let mut value = T::new_zeroed();
    env.read(at, value.as_mut_bytes())?;
    Ok(value)
}

/// Writes a structure to the caller's memory.
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

/// A piece that ends at a multiple of it touches no page behind the end of the text.
const SMALLEST_PAGE: u64 = granule::arch::PageSize::MIN.bytes();

/// Reads a string up to its NUL, without it. Fails with `too_long` if `into` is too small.
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
        // Most strings are short.
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
