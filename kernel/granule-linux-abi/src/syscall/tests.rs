//! Tests of system calls, made as a program makes them. This file has the fake machine: memory in a
//! vector, and processes as values. The submodules have the tests by subject.

mod exhaustion;
mod files;
mod system;
mod waits;

use super::*;
use crate::abi::file::{FIONBIO, O_CLOEXEC, O_NONBLOCK, PollFd, Stat};
use crate::abi::process::Status;
use crate::abi::signal::{
    SA_RESTART, SIG_IGN, SIGALRM, SIGCHLD, SIGINT, SIGPIPE, SIGUSR1, SigAction,
};
use crate::abi::time::TimeSpec;
use crate::env::{Env, Ram, Slept, Transfer};
use crate::files::Channel;
use crate::files::descriptors::{MOST, OpenId};
use crate::files::source::Source;
use crate::processes::tests::{HostProcesses, Kin, child, ends, processes};
use crate::processes::{Places, ProcessPlace, Processes};
use crate::signals::Signals;
use crate::signals::frame::{FpRegisters, Registers};
use crate::signals::set::SignalSet;
use granule::arch::PageSize;
use granule_boot::sizes::SizeSet;
use proptest::prelude::*;
use std::collections::VecDeque;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The program's memory. The first page behind it is unmapped.
pub(crate) const BASE: u64 = 0x10_0000;
const BYTES: u64 = 0x8000;
/// A page that is readable but not writable.
const READ_ONLY: u64 = BASE + 0x7000;
/// The address for a path.
const PATH: u64 = BASE + 0x6000;
/// An unmapped address.
const NOWHERE: u64 = 0xdead_0000;

type Event = Box<dyn FnOnce(&mut HostProcesses)>;

/// A machine with one running program; the test plays all other processes.
pub(crate) struct Fake {
    pub(crate) processes: HostProcesses,
    pub(crate) place: ProcessPlace,
    pub(crate) registers: Registers,
    pub(crate) fp: FpRegisters,
    memory: Vec<u8>,
    clock: u64,
    seeded: bool,
    console: Vec<u8>,
    disk: Vec<u8>,
    /// Whether the disk fails.
    breaks: bool,
    crashes: u32,
    unknown: Vec<u64>,
    /// Events during sleeps: one for each time that the program finds its condition false.
    pub(crate) events: VecDeque<Event>,
    /// Events between the parts of a call, one for each pause.
    at_pauses: VecDeque<Event>,
    /// Events after the program releases the lock, one for each release.
    pub(crate) at_unlocks: VecDeque<Event>,
}

impl Fake {
    pub(crate) fn new() -> Self {
        Self {
            processes: processes(),
            place: 0,
            registers: Registers {
                x: [0; 31],
                sp: BASE + 0x5000,
                pc: 0x4_0004,
                pstate: 0,
            },
            fp: FpRegisters {
                v: [[0; 2]; 32],
                fpsr: 0,
                fpcr: 0,
            },
            memory: vec![0; BYTES as usize],
            clock: 1_000_000_000,
            seeded: true,
            console: Vec::new(),
            disk: vec![0; 0x1800],
            breaks: false,
            crashes: 0,
            unknown: Vec::new(),
            events: VecDeque::new(),
            at_pauses: VecDeque::new(),
            at_unlocks: VecDeque::new(),
        }
    }

    fn range(&self, at: u64, bytes: usize) -> core::result::Result<core::ops::Range<usize>, Errno> {
        let start = at.checked_sub(BASE).ok_or(Errno::EFAULT)?;
        let end = start.checked_add(bytes as u64).ok_or(Errno::EFAULT)?;
        if end > BYTES {
            return Err(Errno::EFAULT);
        }
        Ok(start as usize..end as usize)
    }

    pub(crate) fn put<T: IntoBytes + Immutable>(&mut self, at: u64, value: T) -> u64 {
        let range = self.range(at, size_of::<T>()).unwrap();
        self.memory[range].copy_from_slice(value.as_bytes());
        at
    }

    pub(crate) fn get<T: FromBytes + IntoBytes>(&self, at: u64) -> T {
        let mut value = T::new_zeroed();
        let range = self.range(at, size_of::<T>()).unwrap();
        value.as_mut_bytes().copy_from_slice(&self.memory[range]);
        value
    }

    fn bytes(&self, at: u64, count: usize) -> &[u8] {
        &self.memory[self.range(at, count).unwrap()]
    }

    fn path(&mut self, path: &str) -> u64 {
        let range = self.range(PATH, path.len() + 1).unwrap();
        self.memory[range].copy_from_slice(format!("{path}\0").as_bytes());
        PATH
    }

    /// Makes a call; missing arguments are 0.
    pub(crate) fn call(&mut self, number: u64, given: &[u64]) -> Result {
        let mut args = [0; 6];
        args[..given.len()].copy_from_slice(given);
        call(self, number, Args(args)).expect("a call of this table")
    }

    #[track_caller]
    fn ok(&mut self, number: u64, given: &[u64]) -> u64 {
        let result = self.call(number, given);
        result.unwrap_or_else(|fail| panic!("{:?}: {fail:?}", n::name(number)))
    }

    #[track_caller]
    fn fails(&mut self, number: u64, given: &[u64], error: Errno) {
        let result = self.call(number, given);
        assert_eq!(result, Err(Fail::Error(error)), "{:?}", n::name(number));
    }

    fn open(&mut self, path: &str, flags: u32) -> u64 {
        let path = self.path(path);
        self.ok(n::OPENAT, &[HERE, path, u64::from(flags)])
    }

    pub(crate) fn act(&mut self, signal: u8, handler: u64, flags: u64) {
        let action = SigAction {
            handler,
            flags,
            ..SigAction::default()
        };
        self.signals().set_action(signal, action).unwrap();
    }

    /// The program's signals.
    pub(crate) fn signals(&mut self) -> &mut Signals {
        &mut self.processes.get_mut(self.place).unwrap().signals
    }

    /// The open file behind one of the program's descriptors.
    fn open_id(&self, fd: u32) -> OpenId {
        let process = self.processes.get(self.place).unwrap();
        process.descriptors.get(fd).unwrap()
    }

    /// Something that happens while the program sleeps.
    fn meanwhile(&mut self, event: impl FnOnce(&mut HostProcesses) + 'static) {
        self.events.push_back(Box::new(event));
    }

    /// Makes a pipe. Returns its ends.
    fn pipe(&mut self, flags: u32) -> [u32; 2] {
        self.ok(n::PIPE2, &[BASE, u64::from(flags)]);
        self.get(BASE)
    }

    pub(crate) fn kill_self_later(&mut self, signal: u8) {
        let event = self.kill_self(signal);
        self.events.push_back(event);
    }

    /// The first process sends the signal to this one.
    pub(crate) fn kill_self(&self, signal: u8) -> Event {
        let pid = self.place as i32 + 1;
        Box::new(move |processes| processes.kill(0, pid, i32::from(signal)).unwrap())
    }
}

/// AT_FDCWD as a register value.
const HERE: u64 = -100_i64 as u64;

impl Env for Fake {
    type Tasks = Kin;

    fn read(&mut self, at: u64, into: &mut [u8]) -> core::result::Result<(), Errno> {
        let range = self.range(at, into.len())?;
        into.copy_from_slice(&self.memory[range]);
        Ok(())
    }
    fn write(&mut self, at: u64, from: &[u8]) -> core::result::Result<(), Errno> {
        self.prepare_write(at, from.len() as u64)?;
        let range = self.range(at, from.len())?;
        self.memory[range].copy_from_slice(from);
        Ok(())
    }
    fn prepare_write(&mut self, at: u64, bytes: u64) -> core::result::Result<(), Errno> {
        let range = self.range(at, bytes as usize)?;
        let may = bytes == 0 || range.end <= (READ_ONLY - BASE) as usize;
        may.then_some(()).ok_or(Errno::EFAULT)
    }
    fn with<R>(&mut self, work: impl FnOnce(&mut Processes<'_, Kin>, ProcessPlace) -> R) -> R {
        let result = work(&mut self.processes, self.place);
        if let Some(event) = self.at_unlocks.pop_front() {
            event(&mut self.processes);
        }
        result
    }
    fn pause(&mut self) -> bool {
        if let Some(event) = self.at_pauses.pop_front() {
            event(&mut self.processes);
        }
        let process = self.processes.get(self.place);
        process.is_ok_and(|process| process.signals.has_work())
    }
    fn sleep(
        &mut self,
        channel: Channel,
        until: Option<u64>,
        mut ready: impl FnMut(&mut Processes<'_, Kin>, ProcessPlace) -> bool,
    ) -> Slept {
        let place = self.place;
        self.processes.set_waits(place, Some(channel));
        let slept = loop {
            if ready(&mut self.processes, place) {
                break Slept::Ready;
            }
            if self.processes.get(place).unwrap().signals.has_work() {
                break Slept::Signal;
            }
            self.processes.woken = Places::new();
            match (self.events.pop_front(), until) {
                (Some(event), _) => {
                    event(&mut self.processes);
                    let woken = core::mem::take(&mut self.processes.woken);
                    let woken = woken.iter().any(|woken| woken == place);
                    assert!(woken, "what was waited for came and woke nobody");
                }
                (None, Some(until)) => {
                    self.clock = self.clock.max(until);
                    break Slept::TimeUp;
                }
                (None, None) => panic!("sleeps for ever, for {channel:?}"),
            }
        };
        self.processes.set_waits(place, None);
        slept
    }
    fn now(&self) -> u64 {
        self.clock
    }
    fn transfer(
        &mut self,
        source: Source,
        at: u64,
        bytes: Transfer<'_>,
    ) -> core::result::Result<(), Errno> {
        let at = at as usize;
        match (source, bytes) {
            _ if self.breaks => return Err(Errno::EIO),
            (Source::Sysrq, _) => self.crashes += 1,
            (Source::Vmcore, Transfer::Read(into)) => into.fill(0xc0),
            (_, Transfer::Read(into)) => into.copy_from_slice(&self.disk[at..][..into.len()]),
            (Source::Vmcore, Transfer::Write(_)) => panic!("a core is read only"),
            (_, Transfer::Write(from)) => self.disk[at..][..from.len()].copy_from_slice(from),
        }
        Ok(())
    }

    fn console(&mut self, bytes: &[u8]) {
        self.console.extend_from_slice(bytes);
    }
    fn random(&mut self, into: &mut [u8]) {
        into.fill(0x5a);
    }
    fn pstate_bits(&self) -> u64 {
        crate::signals::frame::pstate_of_users(0, 0)
    }
    fn is_random_seeded(&self) -> bool {
        self.seeded
    }
    fn ram(&self) -> Ram {
        Ram {
            total: 1 << 30,
            free: 1 << 29,
        }
    }
    fn page_sizes(&self) -> SizeSet {
        SizeSet::NONE.with(PageSize::K4).with(PageSize::K64)
    }
    fn cpu(&self) -> u32 {
        1
    }
    fn log_unknown(&mut self, number: u64) {
        self.unknown.push(number);
    }
    fn registers(&self) -> Registers {
        self.registers
    }
    fn set_registers(&mut self, registers: &Registers) {
        self.registers = *registers;
    }
    fn fp(&self) -> FpRegisters {
        self.fp
    }
    fn set_fp(&mut self, registers: &FpRegisters) {
        self.fp = *registers;
    }
    fn trampoline(&self) -> u64 {
        0x7777_0000
    }
}
