//! Leaving: the steps from a program's call to the jump, taken by the boot CPU in its own loop.
//!
//! The calling task sleeps ([`execute`]), and CPUs take up no more tasks ([`request`]). The boot CPU
//! finds the call in its loop ([`serve`]) and waits until no task runs on any CPU. The boot CPU then
//! verifies the list, the tables and the code, switches the other CPUs off, quiesces the devices, and
//! jumps. Every step before the jump can be undone: the caller then gets the reason as an error, and the
//! kernel goes on unchanged.

#![allow(unsafe_code, reason = "the note's page, and the jump")]

use super::hook::KEXEC;
use super::loaded::Loaded;
use super::pages::{self, Words};
use super::verify_tables::{TableMismatch, TableVerification};
use super::{Busy, begin, crash, quiesce};
use crate::arch::{boot_stack, cpu};
use crate::dev::console::{self, println};
use crate::handover::boot_record;
use crate::lock::Lock;
use crate::mm::kernel_tables;
use crate::sched::registers;
use crate::smp::off;
use crate::task::task_table::{self, Task};
use crate::trace::{leaving, recorder};
use crate::{report, sched};
use granule::arch::{PhysicalAddress, VirtualAddress};
use granule::hw::cache;
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::kexec::handoff_note::{self as note, HandoffNote};
use granule_kcore::kexec::request::{self, Outcome, Request, Requester};
use granule_kexec::{EL2, InstructionCounts, ListError, ListHeader, UNCACHED, relocate, verify};
use granule_linux_abi::abi::Errno;
use thiserror::Error;

/// Seconds that a task may take to leave its CPU.
const PATIENCE_S: u64 = 10;

/// Why this kernel goes on.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum Stays {
    #[error("no next kernel is loaded: load one first (kexec load IMAGE)")]
    NothingLoaded,
    #[error("another process has asked for the next kernel already")]
    Busy,
    #[error("the process that asked for the next kernel is to end")]
    Interrupted,
    /// The list differs from the list that was sealed.
    #[error("{0}")]
    RelocationList(ListError),
    /// The tables differ from the tables that were made.
    #[error("{0}")]
    Tables(TableMismatch),
    #[error("the copy of the relocation code was written over: load the next kernel again")]
    Code,
    #[error("process {pid} has not left CPU {cpu} within {PATIENCE_S} s: end it, and ask again")]
    Runs { cpu: usize, pid: u32 },
    /// A CPU does not switch off.
    #[error("{0}")]
    Cpu(off::StillOn),
    /// An interrupt stays enabled.
    #[error("{0}")]
    Interrupt(crate::dev::intc::StillOn),
}

impl Stays {
    /// The error that the program gets.
    pub(crate) const fn errno(&self) -> Errno {
        match self {
            Self::Interrupted => Errno::EINTR,
            Self::Busy | Self::Runs { .. } | Self::Cpu(_) | Self::Interrupt(_) => Errno::EBUSY,
            Self::NothingLoaded | Self::RelocationList(_) | Self::Tables(_) | Self::Code => {
                Errno::EINVAL
            }
        }
    }
}

static REQUEST: Lock<Request<Stays>> = Lock::new(Request::Nothing);

/// Leaves for the next kernel, in a system call. Returns only if leaving is refused.
pub(crate) fn execute(_busy: &Busy) -> Stays {
    let call = cpu::counter_now();
    let Some(task) = sched::current().and_then(task_table::at) else {
        return Stays::Interrupted;
    };
    match request::ask(&Caller(task), call) {
        Outcome::Refused(why) => why,
        Outcome::Busy => Stays::Busy,
        Outcome::Withdrawn => Stays::Interrupted,
    }
}

struct Caller(&'static Task);

impl Requester for Caller {
    type Why = Stays;

    fn place(&self) -> usize {
        self.0.place()
    }

    fn with<R>(&self, work: impl FnOnce(&mut Request<Stays>) -> R) -> R {
        REQUEST.with(work)
    }

    fn freeze(&self) {
        sched::freeze();
    }

    fn thaw(&self) {
        sched::thaw();
    }

    fn wake_boot_cpu(&self) {
        // This call only ends the time slices of running tasks; the boot CPU waits for them.
        let _ = sched::still_runs();
        sched::wake_boot_cpu();
    }

    fn sleep_until<R>(&self, ready: impl FnMut() -> Option<R>) -> Option<R> {
        self.0.sleep_until(ready).ok()
    }

    fn yield_now(&self) {
        sched::yield_now(self.0.place());
    }
}

/// Whether a process waits for the boot CPU to leave.
pub(crate) fn is_asked() -> bool {
    REQUEST.with(|request| request.is_asked())
}

/// Leaves if a process has requested it. The boot CPU's loop calls this.
pub(crate) fn serve() {
    let Some((call, by)) = REQUEST.with(Request::accept) else {
        return;
    };
    let why = begin(|loaded| leave(loaded, call)).unwrap_or(Stays::NothingLoaded);
    crash::allow_stop();
    REQUEST.with(|request| request.refuse(by, why, sched::thaw));
    sched::wake(by);
}

/// Leaves for the next kernel; returns only with the reason against leaving.
fn leave(loaded: &mut Loaded, call: u64) -> Stays {
    // Stop all tasks before any check, so that no program can change what was checked.
    let stood = match stand_still() {
        Ok(()) => sched::switches(),
        Err(why) => return why,
    };
    match prepare(loaded) {
        Ok(gone) => match quiesce(loaded) {
            Ok(header) => go(loaded, &header, call, stood),
            Err(why) => {
                off::bring_back(gone);
                why
            }
        },
        Err(why) => why,
    }
}

/// Does every check that can fail while this kernel still has all CPUs and devices.
fn prepare(loaded: &Loaded) -> Result<CpuSet, Stays> {
    let kernel = kernel_tables::kernel().ok_or(Stays::NothingLoaded)?;
    loaded.verify().map_err(Stays::RelocationList)?;
    if let Some(hook) = KEXEC.get() {
        (hook.before_check)(kernel, loaded);
    }
    TableVerification::new(kernel, loaded)
        .run(|records| {
            // The list was just verified, so this pass cannot fail.
            let _ = verify(&Words, loaded.list.head(), records);
        })
        .map_err(Stays::Tables)?;
    if !pages::is_code(loaded.way.code) {
        return Err(Stays::Code);
    }
    off::all_others().map_err(Stays::Cpu)
}

/// Waits until no task runs on any CPU.
fn stand_still() -> Result<(), Stays> {
    let mut timeout = cpu::timeout(PATIENCE_S);
    let runs = |(cpu, place): (usize, usize)| Stays::Runs {
        cpu,
        pid: task_table::at(place).map_or(0, Task::pid),
    };
    while let Some(still) = sched::still_runs() {
        if timeout.is_over(cpu::counter_now()) {
            return Err(runs(still));
        }
        cpu::relax();
    }
    Ok(())
}

/// Quiesces interrupts, takes program state out of this CPU's registers and reseals the list for the
/// resulting TCR. Undoes all of it on failure.
fn quiesce(loaded: &mut Loaded) -> Result<ListHeader, Stays> {
    let masked = cpu::mask_interrupts();
    let quiesced = quiesce::devices().map_err(Stays::Interrupt);
    let sealed = quiesced.and_then(|()| {
        registers::close();
        let header = loaded.seal_again(cpu::tcr_el1());
        header.map_err(|error| {
            registers::open();
            quiesce::undo();
            Stays::RelocationList(error)
        })
    });
    if sealed.is_err() {
        cpu::restore_interrupts(masked);
    }
    sealed
}

/// Bytes of the smallest data cache line: CTR_EL0.DminLine is log2 of words.
fn data_line() -> u64 {
    4 << (cpu::ctr_el0() >> 16 & 0xf)
}

/// The point of no return. `stood` is the count of task switches when all tasks stood still.
fn go(loaded: &Loaded, header: &ListHeader, call: u64, stood: u64) -> ! {
    if let Some(hook) = KEXEC.get() {
        (hook.before_jump)(loaded);
    }
    let uncached = header.flags & UNCACHED != 0;
    let counts = InstructionCounts::of(&Words, loaded.list.head(), header, data_line());
    let note = HandoffNote {
        call,
        hz: cpu::cntfrq_el0(),
        bytes_total: loaded.segments().map(|it| it.bytes).sum(),
        bytes_copied: header.bytes_copied,
        lines_cleaned: counts.lines,
        dsb: counts.dsb,
        tlbi: counts.tlbi,
        uncached,
        el2: header.flags & EL2 != 0,
        payload: named(loaded),
    };
    print_summary(loaded, &note, sched::switches().wrapping_sub(stood));
    let running = loaded.list.page();
    let header_at = virtual_address(loaded, loaded.list.head());
    let note_at = loaded.note.map(|note| virtual_address(loaded, note).0);
    if let Some(at) = note_at {
        // SAFETY: the page was taken for the note, and the linear map covers it; nothing else runs.
        note.write(running, unsafe { &mut *(at as *mut [u8; note::BYTES]) });
        cache::clean(at..at + note::BYTES as u64);
    }
    boot_record::finished(None);
    leaving::leaves(
        header,
        loaded.list.head(),
        &Words,
        cpu::tcr_el1(),
        data_line(),
    );
    recorder::finish(true);
    console::flush();
    if let Some(at) = note_at {
        last_count(at);
    }
    // SAFETY: all other CPUs are off and interrupts are masked. The list was verified, its tables were
    // made for this kernel's linear map, and nothing has changed since. The code is where the header has
    // it, cleaned and in no instruction cache; the list's pages are cleaned too if the code runs
    // uncached. The vectors of EL2 are `head::el2`'s, which serve hypervisor call 0.
    unsafe { relocate::leave(header_at) }
}

/// The segments that have names, as the note has them.
fn named(loaded: &Loaded) -> [note::PayloadSegment; note::NAMES.len()] {
    let mut payload = [note::PayloadSegment::default(); note::NAMES.len()];
    for segment in loaded.segments() {
        let index = note::NAMES.iter().position(|name| *name == segment.name);
        if let Some(slot) = index.and_then(|index| payload.get_mut(index)) {
            *slot = note::PayloadSegment {
                start: segment.place.start,
                bytes: segment.bytes,
                digest: segment.digest,
            };
        }
    }
    payload
}

fn virtual_address(loaded: &Loaded, at: PhysicalAddress) -> VirtualAddress {
    VirtualAddress(at.0.wrapping_add(loaded.tables.distance()))
}

/// Stores the counter as the last step, and cleans it for a reader without caches.
fn last_count(note_at: u64) {
    let at = note_at + note::LEAVE as u64;
    let words = note::leave_words(cpu::counter_now());
    // SAFETY: the words lie behind the note's data, in the note's page.
    unsafe { (at as *mut [u64; 2]).write_volatile(words) };
    cache::clean(at..at + 16);
}

/// Prints the end of this kernel's record.
// A frame of its own keeps the caller's stack small.
#[inline(never)]
fn print_summary(loaded: &Loaded, note: &HandoffNote, taken_up: u64) {
    report::exceptions();
    report::boot_stack(boot_stack::most_used(), boot_stack::bytes());
    let say = |key: &str, value: u64| println!("@granule kexec.leaving.{key}={value}");
    say("bytes_total", note.bytes_total);
    say("bytes_copied", note.bytes_copied);
    say("lines_cleaned", note.lines_cleaned);
    say("dsb", note.dsb);
    say("tlbi", note.tlbi);
    say("taken_up", taken_up);
    println!("@granule kexec.leaving.uncached={}", note.uncached);
    // Names where to find the next kernel's boot record if that kernel parks silently.
    for segment in loaded.segments() {
        let (name, start) = (segment.name, segment.place.start);
        println!("@granule kexec.leaving.segment.{name}.start={start:#x}");
    }
    println!("@granule outcome=ok\n@granule end");
}
