//! The registers of a CPU, as the note that debuggers read: `NT_PRSTATUS` of arm64, in Linux's layout.

use super::{NOTE_HEADER, put_note};
use crate::exception_frame::Frame;
use elf::abi::NT_PRSTATUS;
use zerocopy::{Immutable, IntoBytes};

/// Bytes of memory for the notes of one CPU: the note, and the empty one that ends them.
pub const CPU_BYTES: usize = 512;

/// The note's contents. Only the task's number and the registers have a meaning here.
#[derive(Immutable, IntoBytes)]
#[repr(C)]
struct Status {
    signal: [u32; 4],
    signals: [u64; 2],
    pid: u32,
    parents: [u32; 3],
    times: [u64; 8],
    x: [u64; 31],
    sp: u64,
    pc: u64,
    pstate: u64,
    has_fp: u64,
}

const _: () = assert!(size_of::<Status>() == 392);
const _: () = assert!(NOTE_HEADER + 8 + 392 + NOTE_HEADER <= CPU_BYTES);

/// Writes the note of a CPU that was interrupted with `frame` while it ran the task `pid`, or none (0).
pub fn write(into: &mut [u8; CPU_BYTES], frame: &Frame, pid: u32) {
    let status = Status {
        signal: [0; 4],
        signals: [0; 2],
        pid,
        parents: [0; 3],
        times: [0; 8],
        x: frame.x,
        sp: frame.sp,
        pc: frame.elr,
        pstate: frame.spsr,
        has_fp: 0,
    };
    // Zeros behind it are a note without a name, which ends the list. It fits, see above.
    into.fill(0);
    let _ = put_note(into, 0, b"CORE", NT_PRSTATUS as u32, status.as_bytes());
}
