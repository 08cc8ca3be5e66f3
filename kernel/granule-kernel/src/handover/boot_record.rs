//! The boot record: 256 bytes in the image's data by which a kernel that cannot print reports how
//! far it came.
//!
//! Little endian; found in the image file by its magic, which occurs once.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 16 | `GRANULE-BOOTREC` and a NUL |
//! | 16 | 4 | version, 1 |
//! | 20 | 4 | state: 0 not entered, 1 MMU off, 2 MMU on, 3 parked, 4 finished |
//! | 24 | 4 | reason, see [`Reason`]; 0 for none |
//! | 28 | 4 | bytes of message |
//! | 32 | 224 | message, ASCII |
//!
//! The reader looks at memory past this CPU's caches, so every change is cleaned to the point of
//! coherency. The state is written last. `head::park` writes the record too, in assembly.

#![allow(unsafe_code, reason = "the boot record is read from outside")]

use core::cell::UnsafeCell;
use core::ops::Range;
use granule::hw::cache;

/// `state` once `mmu_off_main` runs.
pub(crate) const STATE_MMU_OFF: u32 = 1;
/// `state` once the boot tables are ready, right before the MMU is turned on.
pub(crate) const STATE_MMU_ON: u32 = 2;
/// `state` of a CPU that refused to continue and waits for ever.
pub(crate) const STATE_PARKED: u32 = 3;
/// `state` of a kernel that ended by itself.
pub(crate) const STATE_FINISHED: u32 = 4;

/// The reason why a kernel parked or failed. The message gives it in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Reason {
    /// Entered at EL3.
    EnteredAtEl3 = 1,
    /// Entered with the MMU on.
    EnteredWithMmuOn = 2,
    /// Not loaded at a 2 MiB aligned address.
    Misaligned = 3,
    /// A relocation of a kind that the entry code does not support.
    Relocation = 4,
    /// An exception while the MMU was off.
    Exception = 5,
    /// The device tree is missing or broken.
    DeviceTree = 6,
    /// The CPU supports no page size of this kernel.
    PageSize = 7,
    /// The boot tables could not be built.
    Tables = 8,
    /// A panic or an exception with the MMU on.
    Panic = 9,
    /// The kernel refused to continue, with the MMU on.
    Refused = 10,
    /// The kernel found its own tables wrong.
    SelfCheck = 11,
    /// There is no console. The kernel goes on without one.
    NoConsole = 12,
    /// There is no memory for the requested trace.
    Trace = 13,
    /// The device tree lies in the memory of the image.
    Overlap = 14,
    /// Memory that must be mapped shares a page with memory that must not be.
    NoMap = 15,
}

const MESSAGE_BYTES: usize = 224;

#[repr(C, align(2048))]
struct BootRecord {
    magic: [u8; 16],
    version: u32,
    state: UnsafeCell<u32>,
    reason: UnsafeCell<u32>,
    length: UnsafeCell<u32>,
    message: UnsafeCell<[u8; MESSAGE_BYTES]>,
}

// SAFETY: written only through `write`, by the boot CPU's boot code and the fatal report. The
// readers are outside the program.
unsafe impl Sync for BootRecord {}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".boot_record")]
static BOOT_RECORD: BootRecord = BootRecord {
    magic: *b"GRANULE-BOOTREC\0",
    version: 1,
    state: UnsafeCell::new(0),
    reason: UnsafeCell::new(0),
    length: UnsafeCell::new(0),
    message: UnsafeCell::new([0; MESSAGE_BYTES]),
};

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(BootRecord, version) == 16);
    assert!(offset_of!(BootRecord, state) == 20);
    assert!(offset_of!(BootRecord, reason) == 24);
    assert!(offset_of!(BootRecord, length) == 28);
    assert!(offset_of!(BootRecord, message) == 32);
    assert!(32 + MESSAGE_BYTES == 256);
};

fn write(state: u32, reason: u32, message: &[u8]) {
    let record = &BOOT_RECORD;
    let mut length = 0;
    for (offset, byte) in message.iter().take(MESSAGE_BYTES).enumerate() {
        // SAFETY: `take` keeps the offset inside the message field. Volatile, because the reader is
        // outside the program.
        unsafe {
            record
                .message
                .get()
                .cast::<u8>()
                .add(offset)
                .write_volatile(*byte)
        };
        length = offset as u32 + 1;
    }
    // SAFETY: fields of a static, accessed through their cells; only one CPU writes.
    unsafe {
        record.length.get().write_volatile(length);
        record.reason.get().write_volatile(reason);
    }
    // The state is written last, in memory and not only in program order.
    clean();
    write_state(state);
}

fn write_state(state: u32) {
    // SAFETY: as in `write`.
    unsafe { BOOT_RECORD.state.get().write_volatile(state) };
    clean();
}

/// The record's bytes, at the current addresses.
pub(crate) fn range() -> Range<u64> {
    let start = &raw const BOOT_RECORD as u64;
    start..start + 256
}

fn clean() {
    cache::clean(range());
}

/// Records that the image was entered and Rust runs.
pub(crate) fn entered() {
    write(STATE_MMU_OFF, 0, b"");
}

/// Records why there is no console. The reason stays unless the boot fails for another one.
pub(crate) fn no_console(message: &[u8]) {
    write(STATE_MMU_OFF, Reason::NoConsole as u32, message);
}

/// Records that the boot tables are ready.
pub(crate) fn mmu_on() {
    write_state(STATE_MMU_ON);
}

/// Records that the CPU refuses to continue.
pub(crate) fn parked(reason: Reason, message: &[u8]) {
    write(STATE_PARKED, reason as u32, message);
}

/// Whether the CPU has parked. A later event is then not the cause.
pub(crate) fn is_parked() -> bool {
    // SAFETY: as in `write`.
    unsafe { BOOT_RECORD.state.get().read_volatile() == STATE_PARKED }
}

/// Records that the kernel ended, well or with a reason. The first failure is kept: a failure while
/// printing it must not hide it.
pub(crate) fn finished(failure: Option<(Reason, &[u8])>) {
    // SAFETY: as in `write`.
    let recorded = unsafe { BOOT_RECORD.reason.get().read_volatile() };
    match failure {
        _ if recorded != 0 && recorded != Reason::NoConsole as u32 => {}
        None => write_state(STATE_FINISHED),
        Some((reason, message)) => write(STATE_FINISHED, reason as u32, message),
    }
}
