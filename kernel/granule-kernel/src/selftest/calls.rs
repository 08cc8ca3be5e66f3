//! Tests of several CPUs together, chosen on the command line. Each panics on an error and adds its counts to
//! the boot record.
//!
//! `granule.test=ipi`: calls from one CPU, then from every CPU at once, each answered exactly once; and calls
//! that interrupt CPUs while all their registers hold known values. `granule.test=park`: parks all other CPUs
//! while they work and changes a translation meanwhile without a TLBI on them; they must return to the new
//! translation. `granule.test=lines`: all CPUs print at once, and each line must come out whole.
//! `granule.test=mute`: CPU 1 does not answer, which must end in a panic that names it.
//! `granule.test=secondary-panic` and `secondary-overflow`: failures on CPU 1.

#![allow(unsafe_code, reason = "a page that the test maps")]

use super::{failures, registers};
use crate::arch::cpu;
use crate::cpu::{ipi, jobs, parking};
use crate::dev::console::println;
use crate::mm::kernel_tables::{self, Flush, Tree};
use crate::mm::map::Request;
use crate::mm::pages::Pages;
use crate::mm::walker;
use crate::percpu::{self, Local, PerCpu, per_cpu};
use crate::trace::bring_up;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule::arch::{Attributes, Permissions, VirtualAddress};
use granule::table::{Leaves, TableError};
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::frames::tables::Tables;
use granule_kcore::layout;
use granule_kcore::parameters::Parameters;
use granule_trace::recorder::Counters;

/// Rounds of calls by one CPU, times the number of CPUs: an emulator with fewer threads than CPUs needs that
/// many turns of its scheduler for a round.
const ROUNDS: u64 = 800;
/// Rounds of calls by every CPU at once, times the number of CPUs squared.
const CROSS_ROUNDS: u64 = 400;
/// Calls that interrupt each CPU while it holds its registers.
const INTERRUPTIONS: u64 = 20;
/// The number of times that all other CPUs are parked.
const PARKINGS: u64 = 10;
/// Seconds that a job may take.
const PATIENCE_S: u64 = 30;

per_cpu! {
    /// The running test's counter on the CPU.
    static COUNT: AtomicU64 = AtomicU64::new(0);
}

per_cpu! {
    /// A count of the CPU at an earlier time, kept by the boot CPU.
    static BEFORE: AtomicU64 = AtomicU64::new(0);
}

per_cpu! {
    /// The CPU's turns at an earlier time.
    static TURNS: AtomicU64 = AtomicU64::new(0);
}

/// Begins to count on all CPUs.
fn reset() {
    for count in COUNT.all() {
        count.store(0, Ordering::Relaxed);
    }
}

fn add() {
    COUNT.this().fetch_add(1, Ordering::Relaxed);
}

fn get(cpu: usize) -> u64 {
    value(&COUNT, cpu)
}

fn keep(values: &'static Local<AtomicU64>, now: impl Fn(usize) -> u64) {
    for (cpu, before) in values.all().enumerate() {
        before.store(now(cpu), Ordering::Relaxed);
    }
}

fn value(values: &'static Local<AtomicU64>, cpu: usize) -> u64 {
    values
        .of(cpu)
        .map_or(0, |value| value.load(Ordering::Relaxed))
}

/// Runs the tests that the command line requests.
#[inline(never)]
pub(crate) fn run(request: &Request<'_>, parameters: &Parameters<'_>) {
    for test in parameters.test.tests() {
        match test {
            b"ipi" => calls(),
            b"park" => match park(request) {
                Ok(()) => {}
                Err(error) => panic!("granule.test=park: {error}"),
            },
            b"lines" => lines(),
            b"mute" => mute(),
            b"secondary-panic" => on_cpu_1(&|_| panic!("granule.test asked CPU 1 for this")),
            b"secondary-overflow" => on_cpu_1(&|_| {
                failures::overflow(1);
            }),
            _ => {}
        }
    }
}

fn calls() {
    let online = percpu::online();
    let others = online.without(0);
    keep(&BEFORE, ipi::answered);
    reset();
    let rounds = ROUNDS / online.len() as u64;
    for round in 1..=rounds {
        ipi::call(online, &|_| add());
        for cpu in online.iter() {
            assert_eq!(get(cpu), round, "calls that CPU {cpu} ran");
        }
    }
    for cpu in others.iter() {
        assert_eq!(
            ipi::answered(cpu) - value(&BEFORE, cpu),
            rounds,
            "calls that CPU {cpu} counted"
        );
    }
    println!("@granule test.ipi.calls={}", rounds * others.len() as u64);

    // Every CPU calls every other at the same time. One call starts the job on each.
    let rounds = CROSS_ROUNDS / (online.len() * online.len()) as u64;
    keep(&BEFORE, ipi::answered);
    reset();
    let call_all = |this: &'static PerCpu| {
        for _ in 0..rounds {
            ipi::call(online.without(this.number()), &|_| add());
        }
    };
    if !others.is_empty() {
        jobs::run_while(others, PATIENCE_S, &call_all, || call_all(percpu::this()));
    }
    let each = rounds * others.len() as u64;
    let mut total = 0;
    for cpu in online.iter() {
        assert_eq!(get(cpu), each, "cross calls that CPU {cpu} ran");
        let waking = u64::from(cpu != 0);
        assert_eq!(
            ipi::answered(cpu) - value(&BEFORE, cpu),
            each + waking,
            "cross calls that CPU {cpu} counted"
        );
        total += each;
    }
    println!("@granule test.ipi.cross_calls={total}");
    interruptions();
}

/// Makes calls while the other CPUs hold known values in all registers.
fn interruptions() {
    let others = percpu::online().without(0);
    if others.is_empty() {
        return;
    }
    let (holding, enough) = (AtomicU64::new(0), AtomicU64::new(0));
    reset();
    let work = |this: &'static PerCpu| {
        holding.fetch_add(1, Ordering::Release);
        let lost = registers::hold(&enough);
        assert_eq!(
            lost,
            0,
            "register that CPU {} lost to an interrupt",
            this.number()
        );
    };
    let interrupt = || {
        while holding.load(Ordering::Acquire) < others.len() as u64 {
            cpu::relax();
        }
        for _ in 0..INTERRUPTIONS {
            ipi::call(others, &|_| add());
        }
        enough.store(1, Ordering::Release);
    };
    jobs::run_while(others, PATIENCE_S, &work, interrupt);
    for cpu in others.iter() {
        assert_eq!(get(cpu), INTERRUPTIONS, "interruptions of CPU {cpu}");
    }
    println!(
        "@granule test.ipi.interruptions={}",
        INTERRUPTIONS * others.len() as u64
    );
}

/// Points the scratch page at `output`.
pub(crate) fn point(tables: &mut Tree<'_>, output: u64) -> Result<(), TableError> {
    let page = tables.geometry().page_size().bytes();
    let scratch = VirtualAddress(layout::SCRATCH_VADDR);
    walker::unmap(tables, scratch, page)?;
    let output = granule::arch::PhysicalAddress(output);
    let read = Attributes::normal(Permissions::READ);
    tables.map(scratch, output, page, read, Leaves::PAGES)
}

pub(crate) fn read_scratch() -> u64 {
    // SAFETY: the boot CPU maps the page before any CPU reads it.
    unsafe { (layout::SCRATCH_VADDR as *const u64).read_volatile() }
}

fn park(request: &Request<'_>) -> Result<(), TableError> {
    // SAFETY: as for tables, although these pages hold data.
    let mut frames = unsafe { Tables::new(Pages) };
    let mut allocate = || {
        let exhausted = TableError::OutOfTables { needed: 1 };
        Ok(frames.allocate_run(1).ok_or(exhausted)?.first.0)
    };
    let pages = [allocate()?, allocate()?];
    for (number, page) in (0..).zip(pages) {
        let address = page.wrapping_add(request.placement.distance()) as *mut u64;
        // SAFETY: the page was just allocated, and the linear map shows it.
        unsafe { address.write_volatile(number) };
    }
    let [first, _] = pages;
    let counters = Counters::new();
    let open = |flush| kernel_tables::open_unlocked(&counters, flush, None);
    point(&mut *open(Flush::Now)?, first)?;
    // From here on the changes use no broadcast TLBI, because parked CPUs must not need one.
    let mut tables = open(Flush::ThisCpu)?;

    let online = percpu::online();
    let others = online.without(0);
    keep(&BEFORE, parking::parkings);
    reset();
    let (stop, expected) = (AtomicBool::new(false), AtomicU64::new(0));
    // Reads the page all the time, so that its translation is cached when the CPU is parked. Each read must
    // find the old or the new page, and the last one the new page.
    let work = |this: &'static PerCpu| {
        while !stop.load(Ordering::Acquire) {
            let wanted = expected.load(Ordering::Acquire);
            let seen = read_scratch();
            let again = expected.load(Ordering::Acquire);
            assert!(
                seen == wanted || seen == again,
                "CPU {} reads page {seen} after it was parked, expected page {wanted}",
                this.number()
            );
            add();
            cpu::relax();
        }
    };
    let mut rounds = || {
        let result = rounds(&mut tables, pages, &expected);
        stop.store(true, Ordering::Release);
        result
    };
    if others.is_empty() {
        rounds()?;
    } else {
        jobs::run_while(others, PATIENCE_S, &work, rounds)?;
    }
    let mut parkings = 0;
    for cpu in others.iter() {
        assert_eq!(
            parking::parkings(cpu) - value(&BEFORE, cpu),
            PARKINGS,
            "times that CPU {cpu} was parked"
        );
        parkings += PARKINGS;
    }
    println!("@granule test.park.parkings={parkings}");
    println!("@granule test.park.changes={PARKINGS}");
    Ok(())
}

/// Parks the other CPUs, changes the page and releases them, `PARKINGS` times.
fn rounds(tables: &mut Tree<'_>, pages: [u64; 2], expected: &AtomicU64) -> Result<(), TableError> {
    let others = percpu::online().without(0);
    for round in 1..=PARKINGS {
        wait_for_a_turn();
        let number = round & 1;
        let [even, odd] = pages;
        let output = if number == 0 { even } else { odd };
        parking::with_others_parked(|| {
            keep(&TURNS, get);
            let start = cpu::counter_now();
            let result = point(tables, output);
            bring_up::tlbi_vmalle1_local();
            expected.store(number, Ordering::Release);
            // One millisecond, in which a running CPU would count thousands of turns.
            while cpu::counter_now().wrapping_sub(start) < cpu::cntfrq_el0() / 1000 {
                cpu::relax();
            }
            for cpu in others.iter() {
                assert_eq!(
                    get(cpu),
                    value(&TURNS, cpu),
                    "turns of CPU {cpu}, which is parked"
                );
            }
            result
        })?;
        let page = tables.geometry().page_size().bytes();
        walker::assume_visible(tables, VirtualAddress(layout::SCRATCH_VADDR), page);
        assert_eq!(read_scratch(), number, "the page that the boot CPU reads");
    }
    wait_for_a_turn();
    Ok(())
}

/// Waits until every other CPU has begun and ended a turn.
fn wait_for_a_turn() {
    keep(&TURNS, get);
    let mut timeout = cpu::timeout(PATIENCE_S);
    for cpu in percpu::online().without(0).iter() {
        while get(cpu) < value(&TURNS, cpu) + 2 {
            assert!(
                !timeout.is_over(cpu::counter_now()),
                "CPU {cpu} does not go on after it was parked"
            );
            cpu::relax();
        }
    }
}

fn on_cpu_1(work: &(dyn Fn(&'static PerCpu) + Sync)) {
    let one = CpuSet::one(1);
    if percpu::online().contains(1) {
        jobs::run_while(one, PATIENCE_S, work, || ());
    }
}

/// Lines that each CPU prints.
const LINES: u64 = 40;

fn lines() {
    let print = |this: &'static PerCpu| {
        for line in 0..LINES {
            // Several pieces, between which another CPU could print.
            println!(
                "granule: line {line} of CPU {} {:016x} ends",
                this.number(),
                line
            );
        }
    };
    let others = percpu::online().without(0);
    if !others.is_empty() {
        jobs::run_while(others, PATIENCE_S, &print, || print(percpu::this()));
    }
}

/// CPU 1 masks interrupts and never unmasks them.
fn mute() {
    let one = CpuSet::one(1);
    let deaf = AtomicBool::new(false);
    let work = |_: &'static PerCpu| {
        let _ = cpu::mask_interrupts();
        deaf.store(true, Ordering::Release);
        cpu::halt();
    };
    if percpu::online().contains(1) {
        jobs::run_while(one, PATIENCE_S, &work, || {
            while !deaf.load(Ordering::Acquire) {
                cpu::relax();
            }
            ipi::call(one, &|_| ());
        });
    }
}
