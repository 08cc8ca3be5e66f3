//! Tests of TLB conflict aborts, chosen on the command line. Each panics on an error and adds its counts to
//! the boot record.
//!
//! `granule.test=conflict`: splits a large leaf of the linear map live, again and again, each time with
//! another of its splits injected as a conflict. The conflict then occurs on a load, a store, an instruction
//! fetch, the walker's own access to its tables, the stack of the splitting CPU, the stack of a thread that
//! is interrupted, or on other CPUs at work. An old translation must be forgotten too. Each conflict must be
//! handled once, and no data may be lost. `granule.test=conflict-again`: a second conflict while one is
//! handled, which must end in a panic. `granule.test=splits`: splits and reads, for `arm64.inject_conflict=`
//! to choose from.

#![allow(unsafe_code, reason = "stacks and code in the linear map")]

mod stacks;
mod test_memory;

use super::{calls, inject, registers};
use crate::arch::cpu;
use crate::cpu::{ipi, jobs};
use crate::dev::console::println;
use crate::exception::conflict as conflicts;
use crate::mm::kernel_tables::{self, Flush};
use crate::mm::map::Request;
use crate::percpu::{self, PerCpu};
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule::arch::{PhysicalAddress, VirtualAddress};
use granule::table::{Holes, TableError};
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::parameters::Parameters;
use granule_trace::recorder::Counters;
use stacks::{on_stack, wait_on_stack};
use test_memory::{PAGE_AT, READ_ONLY, TestMemory, read, seen_in, write};

/// Distance in pages from the changed page to the other uses: tables, a stack, and the other CPUs' data.
const TABLES_AT: u64 = 160;
const STACK_END_AT: u64 = 96;
const OTHERS_AT: u64 = 128;
/// Calls that interrupt a CPU on a stack in the linear map.
const INTERRUPTIONS: u64 = 20;
/// Seconds that a job may take.
const PATIENCE_S: u64 = 30;

/// Runs the test that the command line requests.
#[inline(never)]
pub(crate) fn run(request: &Request<'_>, parameters: &Parameters<'_>) {
    for test in parameters.test.tests() {
        let work: fn(&TestMemory<'_>) -> Result<(), TableError> = match test {
            b"conflict" => conflicts,
            b"conflict-again" => again,
            b"splits" => splits,
            _ => continue,
        };
        if let Err(error) = TestMemory::prepare(request).and_then(|memory| work(&memory)) {
            panic!("{}: {error}", test.escape_ascii());
        }
    }
}

fn conflicts(memory: &TestMemory<'_>) -> Result<(), TableError> {
    let (page, neighbour) = (memory.page(0), memory.page(1));
    let meets = |name, executable, prepare: &dyn Fn(), act: &dyn Fn()| {
        memory.each_split(name, None, 1, &mut |tables| {
            prepare();
            memory.change(tables, false, executable)?;
            seen_in(|| {
                act();
                Ok(())
            })
        })
    };
    meets("load", false, &|| write(page, 0x6c6f_6164), &|| {
        assert_eq!(read(page), 0x6c6f_6164, "what a load reads");
    })?;
    meets("store", false, &|| write(neighbour, 1), &|| {
        write(neighbour, 0x7374_6f72);
        assert_eq!(read(neighbour), 0x7374_6f72, "what a store wrote");
    })?;
    meets("fetch", true, &|| write_code(page), &|| {
        assert_eq!(run_code(page), 0x6665, "what the code gives");
    })?;
    let distance = memory.request.placement.distance();
    let own = PhysicalAddress(memory.page(TABLES_AT).0.wrapping_sub(distance));
    // The new tables lie in the memory that they translate.
    memory.each_split("tables", Some(own), 1, &mut |tables| {
        write(page, 2);
        let seen = seen_in(|| memory.change(tables, false, false))?;
        assert_eq!(read(page), 2);
        Ok(seen)
    })?;
    let top = memory.page(STACK_END_AT).0;
    memory.each_split("own_stack", None, 1, &mut |tables| {
        write(page, 3);
        let mut result = Ok(0);
        on_stack(top, &mut || {
            result = seen_in(|| memory.change(tables, false, false));
        });
        assert_eq!(read(page), 3);
        result
    })?;
    flush(memory)?;
    let others = percpu::online().without(0);
    if let Some(other) = others.iter().next() {
        let other = CpuSet::one(other);
        interrupted_registers(memory, other);
        interrupted_stack(memory, other)?;
        crowd(memory, others)?;
    }
    Ok(())
}

/// Checks the TLB invalidation as far as an emulator shows it: a translation that was changed without a TLBI
/// is the new one after a conflict was handled.
fn flush(memory: &TestMemory<'_>) -> Result<(), TableError> {
    let distance = memory.request.placement.distance();
    let pages = [memory.page(2), memory.page(3)];
    let [old, new] = pages.map(|page| page.0.wrapping_sub(distance));
    memory.each_split("flush", None, 1, &mut |tables| {
        for (page, number) in pages.into_iter().zip([6, 7]) {
            write(page, number);
        }
        let counters = Counters::new();
        let open = |flush| kernel_tables::open_unlocked(&counters, flush, None);
        calls::point(&mut *open(Flush::Now)?, old)?;
        memory.change(tables, false, false)?;
        let pending = inject::is_pending();
        assert_eq!(calls::read_scratch(), 6, "the scratch page");
        calls::point(&mut *open(Flush::NoCpu)?, new)?;
        let seen = seen_in(|| {
            read(memory.page(0));
            Ok(())
        })?;
        if pending {
            assert_eq!(
                calls::read_scratch(),
                7,
                "the scratch page after a conflict, when the TLB has forgotten the one before"
            );
        }
        Ok(seen)
    })
}

/// Interrupts a CPU whose stack is elsewhere and whose registers all hold known values.
fn interrupted_registers(memory: &TestMemory<'_>, other: CpuSet) {
    let top = memory.page(STACK_END_AT).0;
    let (holding, enough) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = |_: &'static PerCpu| {
        on_stack(top, &mut || {
            holding.store(1, Ordering::Release);
            let lost = registers::hold(&enough);
            assert_eq!(lost, 0, "register lost to an interrupt on another stack");
        });
    };
    jobs::run_while(other, PATIENCE_S, &work, || {
        while holding.load(Ordering::Acquire) == 0 {
            cpu::relax();
        }
        for _ in 0..INTERRUPTIONS {
            ipi::call(other, &|_| ());
        }
        enough.store(1, Ordering::Release);
    });
    println!("@granule test.conflict.interruptions={INTERRUPTIONS}");
}

/// Another CPU waits on a stack in the split memory without touching it. An interrupt arrives and must not
/// touch it either. Then the CPU touches it.
fn interrupted_stack(memory: &TestMemory<'_>, other: CpuSet) -> Result<(), TableError> {
    let top = memory.page(STACK_END_AT).0;
    memory.each_split("interrupted_stack", None, 1, &mut |tables| {
        write(memory.page(0), 4);
        let (ready, go, lost) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let met = AtomicU64::new(0);
        let work = |_: &'static PerCpu| {
            let seen = seen_in(|| {
                let whole = wait_on_stack(top, &ready, &go);
                lost.store(!whole, Ordering::Relaxed);
                Ok(())
            });
            met.store(seen.unwrap_or_default(), Ordering::Relaxed);
        };
        jobs::run_while(other, PATIENCE_S, &work, || {
            while ready.load(Ordering::Acquire) == 0 {
                cpu::relax();
            }
            let changed = memory.change(tables, false, false);
            let before = conflicts::count();
            let pending = inject::is_pending();
            ipi::call(other, &|_| ());
            assert_eq!(
                (conflicts::count(), inject::is_pending()),
                (before, pending),
                "conflicts in an interrupt that has no business with the stack it came to"
            );
            go.store(1, Ordering::Release);
            changed
        })?;
        assert!(
            !lost.load(Ordering::Relaxed),
            "the other CPU's stack is not what it was"
        );
        assert_eq!(read(memory.page(0)), 4);
        Ok(met.load(Ordering::Relaxed))
    })
}

/// All other CPUs write and read in the split memory.
fn crowd(memory: &TestMemory<'_>, others: CpuSet) -> Result<(), TableError> {
    let most = percpu::online().len() as u64;
    memory.each_split("crowd", None, most, &mut |tables| {
        write(memory.page(0), 5);
        let stop = AtomicBool::new(false);
        let (turns, met) = (AtomicU64::new(0), AtomicU64::new(0));
        let work = |this: &'static PerCpu| {
            let mine = memory.page(OTHERS_AT + this.number() as u64);
            let seen = seen_in(|| {
                let mut turn = 0;
                while !stop.load(Ordering::Acquire) {
                    turn += 1;
                    write(mine, turn);
                    assert_eq!(read(mine), turn, "CPU {}", this.number());
                    assert_eq!(read(memory.page(0)), 5, "CPU {}", this.number());
                    turns.fetch_add(1, Ordering::Release);
                    cpu::relax();
                }
                Ok(())
            });
            met.fetch_add(seen.unwrap_or_default(), Ordering::Relaxed);
        };
        jobs::run_while(others, PATIENCE_S, &work, || {
            let wait = || {
                let enough = turns.load(Ordering::Acquire) + 3 * others.len() as u64;
                while turns.load(Ordering::Acquire) < enough {
                    cpu::relax();
                }
            };
            wait();
            let changed = memory.change(tables, false, false);
            wait();
            stop.store(true, Ordering::Release);
            changed
        })?;
        Ok(met.load(Ordering::Relaxed))
    })
}

/// The handler itself accesses the split memory.
fn again(memory: &TestMemory<'_>) -> Result<(), TableError> {
    let counters = Counters::new();
    let mut tables = memory.tables(None, &counters)?;
    inject::set_probe(memory.page(1).0);
    inject::arm(1);
    memory.change(&mut tables, false, false)?;
    read(memory.page(0));
    panic!("the handler met no second conflict");
}

/// Changes one page in each of several parts of the test memory and reads it.
fn splits(memory: &TestMemory<'_>) -> Result<(), TableError> {
    let counters = Counters::new();
    let mut tables = memory.tables(None, &counters)?;
    let page = memory.page_bytes();
    for part in 0..4u64 {
        let start = VirtualAddress(memory.start.0 + part * (100 << 20) + PAGE_AT + page);
        write(start, part);
        tables.protect(start, page, READ_ONLY, Holes::Refuse)?;
        assert_eq!(read(start), part, "page {part}");
    }
    println!("@granule test.splits={}", inject::splits());
    Ok(())
}

/// Writes `mov w0, #0x6665; ret` to a page.
fn write_code(page: VirtualAddress) {
    let code = page.0 as *mut u32;
    // SAFETY: this test owns the page, which is writable. Both instructions are in one line of any cache.
    unsafe {
        code.write_volatile(0x528c_cca0);
        code.add(1).write_volatile(0xd65f_03c0);
        asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", "dsb ish", "isb", in(reg) code);
    }
}

/// Runs what [`write_code`] wrote, once the page is executable.
fn run_code(page: VirtualAddress) -> u64 {
    // SAFETY: the two instructions change x0 and return.
    let code = unsafe { core::mem::transmute::<u64, extern "C" fn() -> u64>(page.0) };
    code()
}
