//! Panics in the worst places once a crash kernel is loaded: `granule.crash=`, whose words are in [`CrashAt`].

#![allow(unsafe_code, reason = "a byte of the crash kernel")]

use crate::arch::cpu;
use crate::cpu::ipi;
use crate::dev::console::println;
use crate::kexec::machine::machine;
use crate::kexec::pages::Words;
use crate::mm::kernel_tables::{self, Flush, pointer};
use crate::mm::{pageattr, pages};
use crate::percpu;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::VirtualAddress;
use granule_kcore::cpus::set::CpuSet;
use granule_kcore::parameters::Parameters;
use granule_kcore::parameters::test::CrashAt;
use granule_kexec::ListMemory;

static AT: spin::Once<CrashAt> = spin::Once::new();

/// Stores to live tables until the panic; 0 if they are not counted.
static STORES: AtomicU64 = AtomicU64::new(0);

/// Keeps the word of the command line.
pub(super) fn note(parameters: &Parameters<'_>) {
    if let Some(at) = parameters.test.crash {
        AT.call_once(|| at);
    }
}

/// Whether stores to live tables are counted.
pub(super) fn counts_stores() -> bool {
    STORES.load(Ordering::Relaxed) > 0
}

/// Counts a store to a live table, and panics before the chosen one.
pub(super) fn before_store() {
    if counts_stores() {
        assert!(
            STORES.fetch_sub(1, Ordering::Relaxed) > 1,
            "granule.crash=store"
        );
    }
}

/// Panics where the word says.
pub(super) fn run() {
    match AT.get() {
        None => {}
        Some(CrashAt::Call) => panic!("granule.crash=call"),
        Some(CrashAt::Console) => println!("{}", PanicsWhenShown),
        Some(CrashAt::Tables) => {
            kernel_tables::change(Flush::Now, |_, _, _| panic!("granule.crash=tables"));
        }
        Some(CrashAt::Store(number)) => change(*number),
        Some(CrashAt::Cpu(number)) => ipi::call(one(*number), &|_| panic!("granule.crash=cpu")),
        Some(CrashAt::Masked(number)) => ipi::call_while(other(*number), &|_| cpu::halt(), || {
            // The other CPU needs time to be in its handler.
            let mut timeout = cpu::timeout(1);
            while !timeout.is_over(cpu::counter_now()) {
                cpu::relax();
            }
            panic!("granule.crash=masked")
        }),
        Some(CrashAt::Damage) => {
            let memory = machine().and_then(|machine| machine.crash);
            let at = memory.map_or(0, |memory| memory.start + 0x320);
            if let Some(word) = Words.load(at) {
                // SAFETY: the word is of the crash kernel, which is to be damaged.
                unsafe { Words.store(at, !word) };
            }
            panic!("granule.crash=damage")
        }
    }
}

/// That CPU, or CPU 0 if the task runs there.
fn other(number: u64) -> CpuSet {
    let is_this = percpu::this().number() as u64 == number;
    one(if is_this { 0 } else { number })
}

fn one(number: u64) -> CpuSet {
    CpuSet::one(number as usize)
}

struct PanicsWhenShown;

impl fmt::Display for PanicsWhenShown {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("granule.crash=console")
    }
}

/// Splits the leaf of a page in the linear map, which stores to live tables.
fn change(number: u64) {
    let page = pages::allocate_one().and_then(pointer);
    let Some(page) = page.map(|page| VirtualAddress(page.as_ptr() as u64)) else {
        return;
    };
    STORES.store(number, Ordering::Relaxed);
    let done = pageattr::set_memory_ro(page, 1);
    let left = STORES.swap(0, Ordering::Relaxed);
    println!(
        "granule: granule.crash=store@{number}: {} stores were made, {done:?}",
        number - left
    );
}
