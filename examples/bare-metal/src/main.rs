//! A kernel for QEMU's machine `virt` with any page size: from MMU off to on, then live changes.
//!
//! `cargo run --release -- -append page=16k` boots it. It maps itself and all RAM, turns the MMU on, changes
//! permissions, splits a block and unmaps a page while the CPU walks the tables, and survives the faults
//! that follow.

#![no_std]
#![no_main]

use board::{Counted, Counters, RAM, UART, finish, println, reported};
use core::arch::global_asm;
use granule::arch::bbm_policy::SystemLimits;
use granule::arch::{Attributes, Geometry, Permissions, PhysicalAddress, Regime, VaRange, VirtualAddress};
use granule::hw;
use granule::table::{AnyPageTables, Holes, Leaves, Piece};

const RAM_END: u64 = 0x8000_0000;
/// The upper half of RAM, in which mappings change.
const TEST: u64 = 0x6000_0000;

global_asm!(
    // With the MMU off stores bypass the caches, so the caches must hold nothing of the data.
    ".global _start; _start: msr daifset, #0xf",
    "adrp x0, __data_start; adrp x1, __data_end",
    "bl granule_cache_clean_and_invalidate",
    "adrp x0, __bss_start; adrp x1, __bss_end",
    "1: stp xzr, xzr, [x0], #16; cmp x0, x1; b.lo 1b",
    "adrp x0, __stack_top; mov sp, x0",
    "adr x0, vectors; msr vbar_el1, x0; isb",
    "adrp x0, __text_start; adrp x1, __rodata_start; adrp x2, __data_start",
    "adrp x3, __pool_start; adrp x4, __data_end; b kernel",
    // TLB conflict aborts are resolved without a stack. A fault in a probe returns from the probe with
    // the syndrome. Every other exception is reported.
    ".balign 2048; vectors: .rept 4; b other_exception; .balign 128; .endr",
    granule::tlb_conflict_vector!(el1, "tpidrro_el0", "synchronous"),
    ".rept 11; .balign 128; b other_exception; .endr",
    "synchronous: mrs x2, elr_el1; mrs x0, esr_el1",
    "adr x1, probe_read; cmp x2, x1; b.lo other_exception",
    "adr x1, probes_end; cmp x2, x1; b.hs other_exception",
    "msr elr_el1, x30; eret",
    "other_exception: mrs x0, esr_el1; mrs x1, elr_el1; b unexpected_exception",
    "probe_read: ldr x1, [x0]; mov x0, xzr; ret",
    "probe_write: str xzr, [x0]; mov x0, xzr; ret",
    "probes_end:",
);

unsafe extern "C" {
    fn probe_read(address: u64) -> u64;
    fn probe_write(address: u64) -> u64;
}

/// A range that is mapped to its own address.
fn piece(start: u64, end: u64, attributes: Attributes, leaves: Leaves) -> Piece {
    let (from, output) = (VirtualAddress(start), PhysicalAddress(start));
    Piece { start: from, output, bytes: end - start, attributes, leaves }
}

/// Prints the status of the fault that an access had, if it had one: the low bits of its syndrome.
fn probe(what: &str, access: unsafe extern "C" fn(u64) -> u64, at: u64) {
    // SAFETY: the access is to the upper half of RAM, which nothing uses, and a fault returns its syndrome.
    match unsafe { access(at) } {
        0 => println!("{what}: no fault"),
        syndrome => println!("{what}: fault status {:#04x}", syndrome & 0x3f),
    }
}

/// Runs with the addresses where text, constants, data and pool of the image begin, and its end.
fn run([text, rodata, data, pool, end]: [u64; 5]) -> Option<()> {
    // The page size after `page=` on the command line if the CPU has it, else the CPU's smallest.
    let cpu = hw::cpu_features();
    let shape = |size| Geometry::new(&cpu, size, 39, VaRange::Lower, Regime::El1And0).ok();
    let geometry = board::page_sizes().find_map(shape)?;
    let size = geometry.page_size();

    // SAFETY: nothing else uses the pool. RAM is mapped to its own address, with the MMU on as with it off.
    let environment = unsafe { hw::environment(&cpu, size, pool..end) };
    let counters = Counters::new();
    let environment = Counted::new(environment, &counters);
    let count = |what: &str| println!("{what}: {:?}", counters.get());

    // What the CPU allows decides whether memory whose permissions change may be mapped in blocks.
    let policy = SystemLimits::HANDLES_CONFLICTS.decide([(0, cpu)]);
    let large = Leaves::LARGEST;
    let changing = if policy.splits_blocks() { large } else { Leaves::PAGES };
    println!("{size} pages, {policy}");

    // No CPU walks these tables yet.
    let mut tables = reported(AnyPageTables::new(geometry, environment))?;
    let [read, execute, write] = [Permissions::READ, Permissions::READ_EXECUTE, Permissions::READ_WRITE];
    // One call maps all regions or none.
    reported(tables.map_pieces(&[
        piece(UART, UART + 0x1_0000, Attributes::device(), large),
        piece(RAM, text, Attributes::normal(read), large),
        piece(text, rodata, Attributes::normal(execute), large),
        piece(rodata, data, Attributes::normal(read), large),
        piece(data, TEST, Attributes::normal(write), large),
        piece(TEST, RAM_END, Attributes::normal(write), changing),
    ]))?;

    // SAFETY: this is the only CPU, and walks the tables with the registers below. The vectors resolve TLB conflict
    // aborts without data and stack, and their code is in a mapping of its own.
    let mut live = unsafe {
        tables.set_bbm(policy.level);
        tables.make_live()
    };
    // SAFETY: the MMU was off until here, so no line of the data is dirty. The tables map code, data and stack to
    // their own addresses.
    reported(unsafe {
        hw::cache::invalidate(data..end);
        hw::enable(&cpu, Some((&geometry, live.ttbr(0))), None)
    })?;
    count("MMU on");
    // SAFETY: only the upper half of RAM changes from here on, and nothing uses it.
    let tables = unsafe { live.changes() };
    let (test, bytes, page) = (VirtualAddress(TEST), RAM_END - TEST, size.bytes());
    probe("write", probe_write, TEST);
    reported(tables.modify(test, bytes, Holes::Refuse, |leaf| leaf.permissions.writable = false))?;
    count("read-only");
    probe("write", probe_write, TEST);

    // A page in the middle of a leaf: the leaf is split, if the CPU allows that while it is live.
    let middle = TEST + bytes / 2 + page;
    let at = VirtualAddress(middle);
    reported(tables.modify(at, page, Holes::Refuse, |leaf| leaf.permissions.writable = true))?;
    count("split");
    probe("write", probe_write, middle);
    probe("write beside", probe_write, middle - 8);
    reported(tables.unmap(at, page))?;
    count("unmapped");
    probe("read", probe_read, middle);
    probe("read beside", probe_read, middle - 8);
    Some(())
}

#[unsafe(no_mangle)]
extern "C" fn kernel(text: u64, rodata: u64, data: u64, pool: u64, end: u64) -> ! {
    finish(run([text, rodata, data, pool, end]))
}
