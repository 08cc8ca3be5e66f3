//! A hypervisor for QEMU's machine `virt` at EL2, with any page size: stage 2 for a tiny guest at EL1.
//!
//! `cargo run --release -- -append page=16k` boots it. A page that the guest touches without a mapping is
//! mapped on demand, made read-only and taken away, while the guest's VMID is in use.

#![no_std]
#![no_main]

use board::{Counted, Counters, RAM, UART, finish, println, reported};
use core::arch::{asm, global_asm};
use granule::arch::*;
use granule::hw;
use granule::table::*;

/// Where the guest sees its memory, and the page that it does not have at first.
const GUEST: IntermediateAddress = IntermediateAddress(0x1_0000_0000);
const MORE: IntermediateAddress = IntermediateAddress(0x2_0000_0000);
/// The bytes of the guest's memory, and of the room for that page: the largest page size.
const ROOM: u64 = 64 << 10;

global_asm!(
    // With the MMU off stores bypass the caches, so the caches must hold nothing of the data.
    ".global _start; _start: msr daifset, #0xf",
    "adrp x0, __data_start; adrp x1, __data_end",
    "bl granule_cache_clean_and_invalidate",
    "adrp x0, __bss_start; adrp x1, __bss_end",
    "1: stp xzr, xzr, [x0], #16; cmp x0, x1; b.lo 1b",
    "adrp x0, __stack_top; mov sp, x0; adr x0, vectors; msr vbar_el2, x0; isb",
    // EL1 is AArch64 (HCR_EL2.RW).
    "mov x0, #(1 << 31); msr hcr_el2, x0; adrp x0, __text_start; adrp x1, __rodata_start",
    "adrp x2, __data_start; adrp x3, __pool_start; adrp x4, __data_end; b hypervisor",
    ".balign 2048; vectors: .rept 8; b exception; .balign 128; .endr",
    // The state of the guest goes where `run_guest` got it from.
    "msr tpidr_el2, x0; ldp x0, x30, [sp], #16; str x1, [x0, #8]; mrs x1, tpidr_el2; str x1, [x0]",
    "mrs x1, elr_el2; str x1, [x0, #16]; mrs x1, hpfar_el2; str x1, [x0, #24]; mrs x0, esr_el2; ret",
    ".rept 7; .balign 128; b exception; .endr",
    "exception: mrs x0, esr_el2; mrs x1, elr_el2; b unexpected_exception",
    "run_guest: stp x0, x30, [sp, #-16]!; ldr x1, [x0, #16]; msr elr_el2, x1; ldp x0, x1, [x0]; eret",
    // The guest, whose MMU is off, and behind it the page that it gets later.
    ".pushsection .guest, \"ax\"; adr x1, 1f; mov x0, #7; str x0, [x1]; ldr x0, [x1]; hvc #1",
    "mov x1, #0x200000000; ldr x0, [x1]; hvc #2; str x1, [x1]; ldr x0, [x1]; hvc #3",
    "ldr x0, [x1]; hvc #4; .balign 8; 1: .quad 0; .balign 65536; .quad 42; .popsection",
);

unsafe extern "C" {
    /// Runs the guest until its next exception and returns the syndrome. The state is x0, x1, the address
    /// of the next instruction, and after a fault HPFAR_EL2.
    fn run_guest(state: &mut [u64; 4]) -> u64;
}

/// The page size after `page=` on the command line if the CPU has it, else the CPU's smallest.
fn choose(cpu: &CpuFeatures) -> Option<PageSize> {
    let has =
        |size: &PageSize| cpu.page_size(*size) != Support::No && cpu.stage2_page_size(*size) != Support::No;
    board::page_sizes().find(has)
}

/// A range that the hypervisor maps to its own address.
fn piece(start: u64, end: u64, attributes: Attributes) -> Piece {
    let (from, output) = (VirtualAddress(start), PhysicalAddress(start));
    Piece { start: from, output, bytes: end - start, attributes, leaves: Leaves::LARGEST }
}

/// The boot CPU, and the addresses where text, constants, data and pool of the image begin, and its end.
struct Hypervisor(CpuFeatures, [u64; 5]);

impl Dispatch for Hypervisor {
    type Output = Option<()>;

    /// From here on the page size is a type.
    fn run<P: Page>(self) -> Option<()> {
        let Self(cpu, [text, rodata, data, pool, end]) = self;
        let (page, half) = (P::SIZE.bytes(), (pool + end) / 2);
        // SAFETY: nothing else uses the pool, of which each tree has a half. RAM is mapped to its own address, with
        // the MMU on as with it off.
        let tables = |start, end| unsafe { hw::environment(&cpu, P::SIZE, start..end) };
        // Its own tables.
        let geometry = reported(Geometry::new(&cpu, P::SIZE, 36, VaRange::Lower, Regime::El2))?;
        let mut own = reported(PageTables::<P, _>::new(geometry, tables(pool, half)))?;
        reported(own.map_pieces(&[
            piece(UART, UART + 0x1_0000, Attributes::device()),
            piece(RAM, text, Attributes::normal(Permissions::READ)),
            piece(text, rodata, Attributes::normal(Permissions::READ_EXECUTE)),
            piece(rodata, data, Attributes::normal(Permissions::READ)),
            piece(data, end, Attributes::normal(Permissions::READ_WRITE)),
        ]))?;
        // SAFETY: this CPU alone walks the tables, with the registers below.
        let own = unsafe { own.make_live() };
        // SAFETY: the MMU was off until here, so no line of the data is dirty.
        unsafe { hw::cache::invalidate(data..end) };
        // SAFETY: the tables map code, data and stack to their own addresses.
        reported(unsafe { hw::enable(&cpu, Some((&geometry, own.ttbr(0))), None) })?;

        // The guest's tables. Its memory is the first part of the data.
        let geometry = reported(Stage2Geometry::new(&cpu, P::SIZE, 36))?;
        let counters = Counters::new();
        let environment = Counted::new(tables(half, end), &counters);
        let mut guest = reported(PageTables::<P, _, Stage2>::new(geometry, environment))?;
        let all = Stage2Attributes::normal(Stage2Permissions::ALL);
        reported(guest.map(GUEST, PhysicalAddress(data), ROOM, all, Leaves::LARGEST))?;
        // SAFETY: this CPU alone walks the tables, with the registers below.
        let mut guest = unsafe { guest.make_live() };
        // SAFETY: the guest gets no memory but its own, and VMID 1 is nobody else's.
        unsafe { hw::enable_stage2(&geometry, Vtcr::new(&cpu, &geometry), guest.vttbr(1)) };
        println!("{} pages: {:?}", P::SIZE, counters.get());
        let (sctlr, el1h) = (Sctlr::off(Regime::El1And0).0, 0x3c5_u64);
        // SAFETY: the guest begins at EL1 with its MMU off.
        unsafe { asm!("msr sctlr_el1, {}", "msr spsr_el2, {}", "isb", in(reg) sctlr, in(reg) el1h) };
        let mut state = [0, 0, GUEST.0, 0];
        loop {
            // SAFETY: the guest can touch its own memory only, and comes back by the vector.
            let esr = unsafe { run_guest(&mut state) };
            // SAFETY: no memory of the guest is used by anybody else.
            let tables = unsafe { guest.changes() };
            if let Some(status) = FaultStatus::of_esr(esr) {
                let address = IntermediateAddress(state[3] >> 4 << 12);
                println!("fault at {address}: status {:#04x}", status.0);
                if state[0] != 7 {
                    state[2] += 4; // The guest goes on without the instruction.
                    continue;
                }
                // The guest tries again, and finds the page.
                let attributes = Stage2Attributes::normal(Stage2Permissions::READ_WRITE);
                reported(tables.map(address, PhysicalAddress(data + ROOM), page, attributes, Leaves::PAGES))?;
            } else {
                println!("call {}: {}", esr & 0xffff, state[0]);
                let read_only =
                    Stage2PermissionChange { writable: Some(false), ..Stage2PermissionChange::NONE };
                match esr & 0xffff {
                    1 => continue,
                    2 => reported(tables.protect(MORE, page, read_only, Holes::Refuse))?,
                    3 => reported(tables.unmap(MORE, page))?,
                    _ => return Some(()),
                }
            }
            println!("changed: {:?}", counters.get());
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn hypervisor(text: u64, rodata: u64, data: u64, pool: u64, end: u64) -> ! {
    let (cpu, image) = (hw::cpu_features(), [text, rodata, data, pool, end]);
    let done = choose(&cpu).and_then(|size| size.dispatch(Hypervisor(cpu, image)));
    finish(done)
}
