//! The kernel of `bare-metal` on the crate `aarch64-paging`, for comparison: the same steps with the same
//! console, as far as that crate goes.
//!
//! It has 4K pages only. The crate takes tables from the global allocator, and splits no live block, so the
//! half of RAM that changes is mapped in pages. It leaves ID registers, TCR, cache maintenance, the switch
//! of the MMU and conflict aborts to its user, and counts nothing.

#![no_std]
#![no_main]

use aarch64_paging::descriptor::El1Attributes;
use aarch64_paging::idmap::IdMap;
use aarch64_paging::mair::{Mair, MairAttribute, NormalMemory};
use aarch64_paging::paging::{Constraints, El1And0, MemoryRegion};
use board::{finish, println, reported};
use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::cell::Cell;

const UART: usize = 0x0900_0000;
const RAM: usize = 0x4000_0000;
const RAM_END: usize = 0x8000_0000;
/// The upper half of RAM, in which mappings change.
const TEST: usize = 0x6000_0000;
const PAGE: usize = 4096;

global_asm!(
    // With the MMU off stores bypass the caches, so the caches must hold nothing of the data.
    ".global _start; _start: msr daifset, #0xf",
    "adrp x0, __data_start; adrp x1, __data_end",
    "mrs x2, ctr_el0; ubfx x2, x2, #16, #4; mov x3, #4; lsl x2, x3, x2",
    "1: dc civac, x0; add x0, x0, x2; cmp x0, x1; b.lo 1b; dsb sy",
    "adrp x0, __bss_start; adrp x1, __bss_end",
    "1: stp xzr, xzr, [x0], #16; cmp x0, x1; b.lo 1b",
    "adrp x0, __stack_top; mov sp, x0",
    "adr x0, vectors; msr vbar_el1, x0; isb",
    "adrp x0, __text_start; adrp x1, __rodata_start; adrp x2, __data_start",
    "adrp x3, __pool_start; adrp x4, __data_end; b kernel",
    // A fault in a probe returns from the probe with the syndrome. Every other exception is reported.
    ".balign 2048; vectors: .rept 4; b other_exception; .balign 128; .endr",
    "mrs x2, elr_el1; mrs x0, esr_el1",
    "adr x1, probe_read; cmp x2, x1; b.lo other_exception",
    "adr x1, probes_end; cmp x2, x1; b.hs other_exception",
    "msr elr_el1, x30; eret",
    ".rept 11; .balign 128; b other_exception; .endr",
    "other_exception: mrs x0, esr_el1; mrs x1, elr_el1; b unexpected_exception",
    "probe_read: ldr x1, [x0]; mov x0, xzr; ret",
    "probe_write: str xzr, [x0]; mov x0, xzr; ret",
    "probes_end:",
);

unsafe extern "C" {
    fn probe_read(address: usize) -> u64;
    fn probe_write(address: usize) -> u64;
}

/// The heap, which tables come from: what is freed is lost.
struct Heap(Cell<(usize, usize)>);

// SAFETY: there is one CPU, and no exception handler allocates.
unsafe impl Sync for Heap {}

// SAFETY: each part of the pool is given out once.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (next, end) = self.0.get();
        let start = next.next_multiple_of(layout.align());
        if start + layout.size() > end {
            return core::ptr::null_mut();
        }
        self.0.set((start + layout.size(), end));
        start as *mut u8
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static HEAP: Heap = Heap(Cell::new((0, 0)));

const MAIR: Mair = {
    let cached = NormalMemory::WriteBackNonTransientReadWriteAllocate;
    Mair::EMPTY
        .with_attribute(0, MairAttribute::normal(cached, cached))
        .with_attribute(1, MairAttribute::DEVICE_NGNRE)
};

/// Prints the status of the fault that an access had, if it had one.
fn probed(what: &str, esr: u64) {
    match esr {
        0 => println!("{what}: no fault"),
        esr => println!("{what}: fault status {:#04x}", esr & 0x3f),
    }
}

fn run([text, rodata, data, pool, end]: [usize; 5]) -> Option<()> {
    HEAP.0.set((pool, end));
    println!("4k pages");
    let base = El1Attributes::VALID | El1Attributes::ACCESSED;
    let normal = base | El1Attributes::ATTRIBUTE_INDEX_0 | El1Attributes::INNER_SHAREABLE;
    let never = El1Attributes::PXN | El1Attributes::UXN;
    let constant = normal | El1Attributes::READ_ONLY;
    let mut map = IdMap::with_asid(0, 1, El1And0);
    for (start, end, attributes, constraints) in [
        (UART, UART + 0x1_0000, base | El1Attributes::ATTRIBUTE_INDEX_1 | never, Constraints::empty()),
        (RAM, text, constant | never, Constraints::empty()),
        (text, rodata, constant | El1Attributes::UXN, Constraints::empty()),
        (rodata, data, constant | never, Constraints::empty()),
        (data, TEST, normal | never, Constraints::empty()),
        (TEST, RAM_END, normal | never, Constraints::NO_BLOCK_MAPPINGS),
    ] {
        let region = MemoryRegion::new(start, end);
        reported(map.map_range_with_constraints(&region, attributes, constraints))?;
    }
    let (mmfr0, ctr): (u64, usize);
    // SAFETY: reads two registers.
    unsafe { asm!("mrs {}, id_aa64mmfr0_el1", "mrs {}, ctr_el0", out(reg) mmfr0, out(reg) ctr) };
    // IPS, no walks from TTBR1, inner shareable write-back walks, T0SZ of 39 bits.
    let tcr = (mmfr0 & 0b111).min(5) << 32 | 1 << 23 | 3 << 12 | 1 << 10 | 1 << 8 | 25;
    // SAFETY: the MMU was off until here, so no line of the data is dirty; the tables map code, data and
    // stack to their own addresses.
    unsafe {
        for address in (data..end).step_by(4 << (ctr >> 16 & 0b1111)) {
            asm!("dc ivac, {}", in(reg) address);
        }
        asm!("dsb sy", "msr mair_el1, {}", "msr tcr_el1, {}", in(reg) MAIR.0, in(reg) tcr);
        map.activate();
        asm!("tlbi vmalle1", "dsb nsh", "isb", "msr sctlr_el1, {}", "isb", in(reg) 0x30d0_180d_u64);
        asm!("ic iallu", "dsb nsh", "isb");
    }
    println!("MMU on");

    // SAFETY: only the upper half of RAM is probed, and nothing uses it.
    let (read, write) = (|at| unsafe { probe_read(at) }, |at| unsafe { probe_write(at) });
    probed("write", write(TEST));
    let test = MemoryRegion::new(TEST, RAM_END);
    let (read_only, nothing) = (El1Attributes::READ_ONLY, El1Attributes::empty());
    reported(map.modify_range(&test, &|_, entry| entry.modify_flags(read_only, nothing)))?;
    println!("read-only");
    probed("write", write(TEST));
    let middle = TEST + (RAM_END - TEST) / 2 + PAGE;
    let page = MemoryRegion::new(middle, middle + PAGE);
    reported(map.modify_range(&page, &|_, entry| entry.modify_flags(nothing, read_only)))?;
    println!("writable");
    probed("write", write(middle));
    probed("write beside", write(middle - 8));
    reported(map.modify_range(&page, &|_, entry| entry.modify_flags(nothing, El1Attributes::VALID)))?;
    println!("unmapped");
    probed("read", read(middle));
    probed("read beside", read(middle - 8));
    // The map ends with this function, and would take the translation with it.
    core::mem::forget(map);
    Some(())
}

#[unsafe(no_mangle)]
extern "C" fn kernel(text: usize, rodata: usize, data: usize, pool: usize, end: usize) -> ! {
    let done = run([text, rodata, data, pool, end]);
    finish(done)
}
