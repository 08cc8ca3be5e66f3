//! Loading a program into an address space of its own, and what it begins with.

use super::memory::{self, AddressSpace};
use super::owned::Array;
use super::task::Current;
use super::{process, random};
use crate::arch::cpu;
use crate::arch::frame::Frame;
use crate::dev::console::println;
use core::ops::Range;
use granule::space::Rights;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::abi::auxv::{
    AT_BASE, AT_CLKTCK, AT_EGID, AT_ENTRY, AT_EUID, AT_FLAGS, AT_GID, AT_HWCAP, AT_PAGESZ, AT_PHDR,
    AT_PHENT, AT_PHNUM, AT_SECURE, AT_UID,
};
use granule_linux_abi::execve::MOST_TEXT_BYTES;
use granule_linux_abi::program::{self, Place, Program};
use granule_linux_abi::start_stack::{Start, Texts};
use granule_linux_abi::syscall::STACK_BYTES;

/// Below this nothing is mapped: what is reached by a null pointer and an index.
pub(crate) const LOWEST: u64 = 64 << 10;

/// Between the stack and what is mapped below it nothing is.
const STACK_GUARD: u64 = 1 << 20;
/// Where programs go that can be moved: far from what is mapped from the top down, and from null,
/// with 36 bits of address too.
const MOVABLE_AT: u64 = 1 << 32;
/// Bytes of a path that a line shows: a program chooses it, and interrupts wait for the line.
const MOST_SHOWN: usize = 128;
/// Parts of a second that times are told in.
const CLOCK_TICKS: u64 = 100;

/// A program that is ready to begin.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) memory: AddressSpace,
    pub(crate) entry: u64,
    pub(crate) stack_pointer: u64,
    /// An empty range, from which `brk` goes on.
    pub(crate) heap: Range<u64>,
}

/// Behind the last address of the stack: the last 64K of user space hold nothing but a trampoline.
fn stack_top() -> u64 {
    memory::end() - PageEnd::LARGEST
}

struct PageEnd;

impl PageEnd {
    const LARGEST: u64 = granule::arch::PageSize::MAX.bytes();
}

/// Behind the stack, in the last 64K: the code that a handler of a program returns to which brings
/// none of its own (a C library expects the kernel to).
pub(super) fn trampoline() -> u64 {
    stack_top()
}

/// `mov x8, #139; svc #0`: debuggers and unwinders know a handler's frame by these two.
const TRAMPOLINE: [u32; 2] = [0xd280_1168, 0xd400_0001];

fn make_trampoline(memory: &AddressSpace, page: u64) -> Result<(), Errno> {
    let rights = Rights {
        read: true,
        write: false,
        execute: true,
    };
    memory
        .with(|tables| tables.map(trampoline(), page, Rights::READ_WRITE, 0))
        .map_err(process::out_of_memory)?;
    memory.write_value(trampoline(), &TRAMPOLINE)?;
    memory
        .with(|tables| tables.protect(trampoline(), page, rights))
        .map_err(process::out_of_memory)
}

/// Where `mmap` looks for room, from here down.
pub(crate) fn mappings_end() -> u64 {
    stack_top() - STACK_BYTES - STACK_GUARD
}

/// Loads `file`, the program at `path`.
///
/// # Errors
///
/// `ENOEXEC`, with a line on the console that says why; `ENOMEM`, `E2BIG`.
pub(crate) fn load(file: &[u8], path: &[u8], texts: Texts<'_>) -> Result<Loaded, Errno> {
    let place = Place {
        page: memory::page_bytes(),
        addresses: LOWEST..mappings_end(),
        movable_at: MOVABLE_AT,
    };
    let program = program::read(file, &place).map_err(|error| {
        let shown = path.get(..path.len().min(MOST_SHOWN)).unwrap_or(path);
        println!("granule: {} cannot be run: {error}", shown.escape_ascii());
        Errno::ENOEXEC
    })?;
    let memory = AddressSpace::new().ok_or(Errno::ENOMEM)?;
    let end = load_segments(&memory, &program, file, place.page)?;
    let stack_pointer = make_stack(&memory, &program, path, texts)?;
    make_trampoline(&memory, place.page)?;
    memory.with(|tables| tables.publish());
    Ok(Loaded {
        memory,
        entry: program.entry,
        stack_pointer,
        heap: end..end,
    })
}

/// Gives where the last of them ends, in whole pages.
fn load_segments(
    memory: &AddressSpace,
    program: &Program,
    file: &[u8],
    page: u64,
) -> Result<u64, Errno> {
    let mut end = 0;
    for segment in &program.segments {
        let pages = segment.pages(page);
        let bytes = pages.end - pages.start;
        let rights = Rights {
            read: segment.read,
            write: segment.write,
            execute: segment.execute,
        };
        // Written first, whatever it is to be: no CPU walks these tables yet.
        memory
            .with(|tables| tables.map(pages.start, bytes, Rights::READ_WRITE, 0))
            .map_err(process::out_of_memory)?;
        let content = file.get(segment.file.clone()).ok_or(Errno::ENOEXEC)?;
        memory.write(segment.start, content)?;
        memory
            .with(|tables| tables.protect(pages.start, bytes, rights))
            .map_err(process::out_of_memory)?;
        end = pages.end;
    }
    Ok(end)
}

/// Maps the stack and writes what the program finds on it; gives the stack pointer.
fn make_stack(
    memory: &AddressSpace,
    program: &Program,
    path: &[u8],
    texts: Texts<'_>,
) -> Result<u64, Errno> {
    let top = stack_top();
    memory
        .with(|tables| tables.map(top - STACK_BYTES, STACK_BYTES, Rights::READ_WRITE, 0))
        .map_err(process::out_of_memory)?;
    let auxiliary = [
        (AT_PHDR, program.headers.unwrap_or(0)),
        (AT_PHENT, program.header_bytes),
        (AT_PHNUM, program.header_count),
        (AT_PAGESZ, memory::page_bytes()),
        (AT_BASE, 0),
        (AT_FLAGS, 0),
        (AT_ENTRY, program.entry),
        (AT_UID, 0),
        (AT_EUID, 0),
        (AT_GID, 0),
        (AT_EGID, 0),
        (AT_HWCAP, hardware_capabilities()),
        (AT_CLKTCK, CLOCK_TICKS),
        (AT_SECURE, 0),
    ];
    let start = Start {
        texts,
        path,
        random: random_bytes(),
        auxiliary: &auxiliary,
    };
    let bytes = start.bytes(top) as usize;
    if bytes > MOST_TEXT_BYTES {
        return Err(Errno::E2BIG);
    }
    let mut image = Array::new(bytes, |_| 0u8).ok_or(Errno::ENOMEM)?;
    if !start.write(&mut image, top) {
        return Err(Errno::E2BIG);
    }
    let stack_pointer = start.stack_pointer(top);
    memory.write(stack_pointer, &image)?;
    Ok(stack_pointer)
}

/// What AT_HWCAP says: FP and SIMD, and what of ID_AA64ISAR0 programs choose code by.
fn hardware_capabilities() -> u64 {
    let isar0 = cpu::id_aa64isar0_el1();
    let field = |low: u32| isar0 >> low & 0xf;
    let mut bits = 0b11;
    for (bit, is) in [
        (3, field(4) >= 1),
        (4, field(4) >= 2),
        (5, field(8) >= 1),
        (6, field(12) >= 1),
        (7, field(16) >= 1),
        (8, field(20) >= 2),
    ] {
        bits |= u64::from(is) << bit;
    }
    bits
}

/// Sixteen bytes that differ from program to program.
fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    random::fill(&mut bytes);
    bytes
}

/// The registers that a program begins with.
pub(super) fn first_frame(entry: u64, stack_pointer: u64) -> Frame {
    Frame {
        x: [0; 31],
        sp: stack_pointer,
        elr: entry,
        // EL0 in AArch64, nothing masked.
        spsr: 0,
        esr: 0,
        far: 0,
        record: [0; 2],
    }
}

/// The process runs this program from here on, in place of what it ran. It has only its number, and
/// what is not its memory, from before.
pub(crate) fn execute(current: &mut Current<'_>, loaded: Loaded) {
    let Loaded {
        memory,
        entry,
        stack_pointer,
        heap,
    } = loaded;
    process::change_memory(current, memory);
    current.own.heap = heap;
    current.own.clear_child_tid = 0;
    *current.frame = first_frame(entry, stack_pointer);
    process::clear_registers();
}
