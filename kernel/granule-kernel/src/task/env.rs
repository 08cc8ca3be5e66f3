//! The calling process as system calls see it: its memory and registers, sleeping, the clock, the console.

#![allow(unsafe_code, reason = "EL0's registers of the calling process")]

use super::process_table::{self, Tasks};
use super::task_table::Current;
use super::{exec, platform, random, sources, syscall};
use crate::arch::cpu;
use crate::dev::{console, timer};
use crate::mm::pages::Pages;
use crate::mm::sized;
use crate::sched::switch::{FpState, load_fp, save_fp};
use crate::{percpu, sched};
use core::sync::atomic::Ordering;
use granule_boot::sizes::SizeSet;
use granule_kcore::frames::tables::Source;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::abi::time::NANOSECONDS;
use granule_linux_abi::env::{Env, Ram, Slept, Transfer};
use granule_linux_abi::files::Channel;
use granule_linux_abi::files::source::Source as Moved;
use granule_linux_abi::processes::{ProcessPlace, Processes};
use granule_linux_abi::signals::frame::{FpRegisters, Registers, pstate_of_users};

/// The most bytes written to the console at once.
const CONSOLE_BYTES: usize = 256;

/// Converts ticks of the counter to nanoseconds.
fn to_ns(ticks: u64) -> u64 {
    let frequency = cpu::cntfrq_el0().max(1);
    let (seconds, rest) = (ticks / frequency, ticks % frequency);
    seconds
        .saturating_mul(NANOSECONDS)
        .saturating_add(rest.saturating_mul(NANOSECONDS) / frequency)
}

/// Converts nanoseconds to ticks of the counter, rounded up.
fn to_ticks(ns: u64) -> u64 {
    let frequency = cpu::cntfrq_el0().max(1);
    let (seconds, rest) = (ns / NANOSECONDS, ns % NANOSECONDS);
    seconds
        .saturating_mul(frequency)
        .saturating_add((rest * frequency).div_ceil(NANOSECONDS))
}

impl Current<'_> {
    /// Sleeps until `look` returns a value, or until `until` in ticks of the counter.
    fn sleep_while(
        &mut self,
        until: Option<u64>,
        mut look: impl FnMut() -> Option<Slept>,
    ) -> Slept {
        let slept = match until {
            Some(until) => self.task.sleep_until_time(until, &mut look),
            None => self.task.sleep_until(&mut look).map(Some),
        };
        match slept {
            Ok(Some(slept)) => slept,
            Ok(None) => Slept::TimeUp,
            // A task that is about to end is treated as if it had a signal.
            Err(_) => Slept::Signal,
        }
    }
}

impl Env for Current<'_> {
    type Tasks = Tasks;

    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.memory().ok_or(Errno::EFAULT)?.read(at, into)
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Errno> {
        self.memory().ok_or(Errno::EFAULT)?.write(at, from)
    }

    fn prepare_write(&mut self, at: u64, bytes: u64) -> Result<(), Errno> {
        self.memory().ok_or(Errno::EFAULT)?.make_writable(at, bytes)
    }

    fn with<R>(&mut self, work: impl FnOnce(&mut Processes<'_, Tasks>, ProcessPlace) -> R) -> R {
        let place = self.task.place();
        process_table::with(|processes| work(processes, place))
    }

    fn sleep(
        &mut self,
        channel: Channel,
        until: Option<u64>,
        mut ready: impl FnMut(&mut Processes<'_, Tasks>, ProcessPlace) -> bool,
    ) -> Slept {
        let place = self.task.place();
        let waits = |channel| {
            process_table::with(|processes| processes.set_waits(place, channel));
        };
        waits(Some(channel));
        let slept = self.sleep_while(until.map(to_ticks), || {
            process_table::with(|processes| {
                if ready(processes, place) {
                    return Some(Slept::Ready);
                }
                let signalled = processes
                    .get(place)
                    .is_ok_and(|process| process.signals.has_work());
                signalled.then_some(Slept::Signal)
            })
        });
        waits(None);
        slept
    }

    fn pause(&mut self) -> bool {
        if sched::take_reschedule() {
            sched::yield_now(self.task.place());
        }
        self.task.killed().is_some() || self.task.notified.load(Ordering::Acquire)
    }

    fn now(&self) -> u64 {
        to_ns(timer::now())
    }

    fn transfer(&mut self, source: Moved, at: u64, bytes: Transfer<'_>) -> Result<(), Errno> {
        if source == Moved::Sysrq {
            panic!("sysrq: crash requested by process {}", self.task.pid());
        }
        sources::transfer(source, at, bytes)
    }

    fn console(&mut self, bytes: &[u8]) {
        // Interrupts stay masked for each part, and the UART may be slow.
        for part in bytes.chunks(CONSOLE_BYTES) {
            console::write_user(part);
        }
    }

    fn random(&mut self, into: &mut [u8]) {
        random::fill(into);
    }

    fn is_random_seeded(&self) -> bool {
        random::is_seeded()
    }

    fn ram(&self) -> Ram {
        Ram {
            total: Pages.with(|frames| frames.total() << frames.page_size().shift()),
            free: sized::free_bytes(),
        }
    }

    fn page_sizes(&self) -> SizeSet {
        platform::page_sizes()
    }

    fn cpu(&self) -> u32 {
        percpu::this().number() as u32
    }

    fn log_unknown(&mut self, number: u64) {
        syscall::report_unknown(self.task.pid(), number);
    }

    fn registers(&self) -> Registers {
        Registers {
            x: self.frame.x,
            sp: self.frame.sp,
            pc: self.frame.elr,
            pstate: self.frame.spsr,
        }
    }

    fn set_registers(&mut self, registers: &Registers) {
        self.frame.x = registers.x;
        self.frame.sp = registers.sp;
        self.frame.elr = registers.pc;
        self.frame.spsr = registers.pstate;
    }

    fn pstate_bits(&self) -> u64 {
        // Of this CPU. On another one a bit that it lacks is reserved and has no effect.
        pstate_of_users(cpu::id_aa64pfr0_el1(), cpu::id_aa64pfr1_el1())
    }

    fn fp(&self) -> FpRegisters {
        let mut state = FpState::ZERO;
        // SAFETY: FP does not trap, and the registers hold the calling process's state.
        unsafe { save_fp(&raw mut state) };
        let mut v = [[0; 2]; 32];
        v.as_flattened_mut().copy_from_slice(&state.v);
        FpRegisters {
            v,
            fpsr: state.fpsr as u32,
            fpcr: state.fpcr as u32,
        }
    }

    fn set_fp(&mut self, registers: &FpRegisters) {
        let mut state = FpState::ZERO;
        state.v.copy_from_slice(registers.v.as_flattened());
        state.fpsr = registers.fpsr.into();
        state.fpcr = registers.fpcr.into();
        // SAFETY: FP does not trap, and the registers belong to the calling process.
        unsafe { load_fp(&raw const state) };
    }

    fn trampoline(&self) -> u64 {
        exec::trampoline()
    }
}
