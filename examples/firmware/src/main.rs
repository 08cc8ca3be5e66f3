//! Firmware for QEMU's machine `virt` at EL3, or at EL2: an identity map with any page size.
//!
//! `cargo run --release -- -append page=16k` boots it at EL3, and with `-M virt,secure=off,virtualization=on`
//! added at EL2. It maps each region of the board with its own memory type and permissions, turns the MMU on,
//! and checks that constants cannot be written and that nothing else is mapped.

#![no_std]
#![no_main]

use board::{Counted, Counters, RAM, UART, finish, println, reported};
use core::arch::global_asm;
use granule::arch::*;
use granule::hw;
use granule::table::*;

const RAM_END: u64 = 0x8000_0000;
/// The configuration space of PCI, and behind RAM's end nothing.
const PCI: (u64, u64) = (0x3f00_0000, 0x4000_0000);

global_asm!(
    // With the MMU off stores bypass the caches, so the caches must hold nothing of the data.
    ".global _start; _start: msr daifset, #0xf",
    "adrp x0, __data_start; adrp x1, __data_end",
    "bl granule_cache_clean_and_invalidate",
    "adrp x0, __bss_start; adrp x1, __bss_end",
    "1: stp xzr, xzr, [x0], #16; cmp x0, x1; b.lo 1b",
    "adrp x0, __stack_top; mov sp, x0",
    "adr x0, vectors; mrs x1, CurrentEL; tbnz x1, #2, 2f",
    "msr vbar_el2, x0; b 3f",
    "2: msr vbar_el3, x0",
    "3: isb; adrp x0, __text_start; adrp x1, __rodata_start; adrp x2, __data_start",
    "adrp x3, __pool_start; adrp x4, __data_end; b firmware",
    // A fault in the probe returns from the probe with the syndrome; every other exception is reported.
    ".balign 2048; vectors: .rept 16; b exception; .balign 128; .endr",
    "exception: mrs x2, CurrentEL; tbnz x2, #2, 1f",
    "mrs x0, esr_el2; mrs x1, elr_el2; msr elr_el2, x30; b 2f",
    "1: mrs x0, esr_el3; mrs x1, elr_el3; msr elr_el3, x30",
    "2: adr x2, probe_write; cmp x1, x2; b.ne unexpected_exception",
    "eret",
    "probe_write: str xzr, [x0]; mov x0, xzr; ret",
);

unsafe extern "C" {
    fn probe_write(address: u64) -> u64;
}

/// The page size after `page=` on the command line if the CPU has it, else the CPU's smallest.
fn choose(cpu: &CpuFeatures) -> Option<PageSize> {
    board::page_sizes().find(|size| cpu.page_size(*size) != Support::No)
}

/// A range that is mapped to its own address.
fn piece(start: u64, end: u64, attributes: Attributes) -> Piece {
    let (from, output) = (VirtualAddress(start), PhysicalAddress(start));
    Piece { start: from, output, bytes: end - start, attributes, leaves: Leaves::LARGEST }
}

/// Prints the status of the fault that a write had, if it had one.
fn probe(what: &str, address: u64) {
    // SAFETY: the callers name memory that nothing uses, or that cannot be written.
    match FaultStatus::of_esr(unsafe { probe_write(address) }) {
        None => println!("write to {what}: no fault"),
        Some(status) => println!("write to {what}: fault status {:#04x}", status.0),
    }
}

/// The boot CPU, and the addresses where text, constants, data and pool of the image begin, and its end.
struct Firmware(CpuFeatures, [u64; 5]);

impl Dispatch for Firmware {
    type Output = Option<()>;

    /// From here on the page size is a type.
    fn run<P: Page>(self) -> Option<()> {
        let Self(cpu, [text, rodata, data, pool, end]) = self;
        let regime = if hw::exception_level() == 3 { Regime::El3 } else { Regime::El2 };
        // An identity map needs as many bits as the last physical address.
        let geometry = reported(Geometry::new(&cpu, P::SIZE, 36, VaRange::Lower, regime))?;
        // SAFETY: nothing else uses the pool. It is mapped to its own address, with the MMU on as with it off.
        let identity = unsafe { hw::environment(&cpu, P::SIZE, pool..end) };
        let counters = Counters::new();
        let environment = Counted::new(identity, &counters);

        let mut tables = reported(PageTables::<P, _>::new(geometry, environment))?;
        let [read, execute, write] = [Permissions::READ, Permissions::READ_EXECUTE, Permissions::READ_WRITE];
        // One call maps all regions or none. At EL3 a leaf is in the Secure address space.
        let pieces = [
            piece(UART, UART + 0x1_0000, Attributes::device()),
            // A configuration write reaches the device before the next access: no early acknowledgement.
            piece(PCI.0, PCI.1, Attributes { memory: MemoryType::DeviceStrict, ..Attributes::device() }),
            piece(RAM, text, Attributes::normal(read)),
            piece(text, rodata, Attributes::normal(execute)),
            piece(rodata, data, Attributes::normal(read)),
            piece(data, end, Attributes::normal(write)),
            // Shared with a device that does not see the caches.
            piece(
                end,
                RAM_END - (1 << 30) / 2,
                Attributes { memory: MemoryType::NormalNonCacheable, ..Attributes::normal(write) },
            ),
        ];
        reported(tables.map_pieces(&pieces))?;
        // A mistake in the description of the board is an error, and changes nothing.
        if let Err(error) = tables.map_pieces(&pieces[1..2]) {
            println!("twice: {error}");
        }
        // SAFETY: this CPU alone walks the tables, with the registers below.
        let live = unsafe { tables.make_live() };
        // SAFETY: the MMU was off until here, so no line of the data is dirty.
        unsafe { hw::cache::invalidate(data..end) };
        // SAFETY: the tables map code, data and stack to their own addresses.
        let written = reported(unsafe { hw::enable(&cpu, Some((&geometry, live.ttbr(0))), None) })?;
        println!("{regime:?}, {} pages, TCR {:#x}", P::SIZE, written.tcr);
        println!("MMU on: {:?}", counters.get());
        probe("data", end);
        probe("constants", rodata);
        probe("nothing", RAM_END);
        Some(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn firmware(text: u64, rodata: u64, data: u64, pool: u64, end: u64) -> ! {
    let (cpu, image) = (hw::cpu_features(), [text, rodata, data, pool, end]);
    let done = choose(&cpu).and_then(|size| size.dispatch(Firmware(cpu, image)));
    finish(done)
}
