//! Loads a program into a new address space, and sets up its stack and first registers.

#![allow(unsafe_code, reason = "pages of the cache, mapped for a program")]

use super::address_space::AddressSpace;
use super::owned::Array;
use super::task_table::Current;
use super::{file_cache, platform, process, random};
use crate::arch::cpu;
use crate::dev::console::println;
use crate::lock::Lock;
use crate::mm::kernel_tables::{self, Kernel};
use core::ops::Range;
use granule::arch::PageSize;
use granule::space::{Advice, Rights};
use granule_kcore::exception_frame::Frame;
use granule_kcore::rate_limit::RateLimit;
use granule_linux_abi::abi::Errno;
use granule_linux_abi::abi::auxv::{
    AT_BASE, AT_CLKTCK, AT_EGID, AT_ENTRY, AT_EUID, AT_FLAGS, AT_GID, AT_HWCAP, AT_PAGESZ, AT_PHDR,
    AT_PHENT, AT_PHNUM, AT_SECURE, AT_UID,
};
use granule_linux_abi::execve::MOST_TEXT_BYTES;
use granule_linux_abi::program::page_size::{self, Chosen, Wishes};
use granule_linux_abi::program::{Program, ProgramPlace, Segment};
use granule_linux_abi::start_stack::{Start, Texts};
use granule_linux_abi::syscall::STACK_BYTES;

/// Nothing is mapped below this address, so that a null pointer plus an index faults.
pub(crate) const LOWEST: u64 = 64 << 10;

/// Unmapped bytes between the stack and the mappings below it.
const STACK_GUARD: u64 = 1 << 20;
/// The address for position-independent programs: far from null and from the mappings that grow down
/// from the top, also with 36 bits of address.
const MOVABLE_AT: u64 = 1 << 32;
/// The most bytes of a path shown in a line. A program chooses the path, and interrupts wait for the
/// line.
const MOST_SHOWN: usize = 128;
/// The unit of times that programs are given: parts of a second.
const CLOCK_TICKS: u64 = 100;

/// A program that is ready to run.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) memory: AddressSpace,
    pub(crate) entry: u64,
    pub(crate) stack_pointer: u64,
    /// An empty range at which `brk` starts.
    pub(crate) heap: Range<u64>,
}

/// The end of the stack. The last 64K of user space above it hold only the trampoline.
fn stack_top() -> u64 {
    platform::end() - LARGEST_PAGE
}

const LARGEST_PAGE: u64 = PageSize::MAX.bytes();

/// The address of the trampoline, in the last 64K behind the stack. A handler without a restorer of its
/// own returns to this code (a C library expects the kernel to provide it).
pub(super) fn trampoline() -> u64 {
    stack_top()
}

/// `mov x8, #139; svc #0`: debuggers and unwinders recognise a handler's frame by these instructions.
const TRAMPOLINE: [u32; 2] = [0xd280_1168, 0xd400_0001];

fn make_trampoline(memory: &AddressSpace) -> Result<(), Errno> {
    let page = memory.page_bytes();
    let rights = Rights {
        read: true,
        write: false,
        execute: true,
    };
    memory.change(|tables| tables.map(trampoline(), page, Rights::READ_WRITE, 0))?;
    memory.write_value(trampoline(), &TRAMPOLINE)?;
    memory.change(|tables| tables.protect(trampoline(), page, rights))
}

/// The upper end of the addresses for `mmap`, which searches downwards.
pub(crate) fn mappings_end() -> u64 {
    stack_top() - STACK_BYTES - STACK_GUARD
}

/// Loads `file`, the program at `path`, with the page size that the process wishes for if that can be had. Errors:
/// `ENOEXEC`, with the reason on the console; `ENOMEM`, `E2BIG`.
pub(crate) fn load(
    file: &'static [u8],
    path: &[u8],
    texts: Texts<'_>,
    wish: Option<PageSize>,
) -> Result<Loaded, Errno> {
    let place = ProgramPlace {
        page: kernel_tables::kernel().map_or(0, Kernel::page),
        addresses: LOWEST..mappings_end(),
        movable_at: MOVABLE_AT,
    };
    let wishes = Wishes {
        process: wish,
        command_line: platform::command_line(),
    };
    let shown = path.get(..path.len().min(MOST_SHOWN)).unwrap_or(path);
    let chosen = page_size::choose(file, &place, platform::page_sizes(), &wishes);
    let Chosen {
        size,
        program,
        refused,
    } = chosen.map_err(|error| {
        println!("granule: {} cannot be run: {error}", shown.escape_ascii());
        Errno::ENOEXEC
    })?;
    // Any program can cause the line at will.
    static LIMIT: Lock<RateLimit> = Lock::new(RateLimit::NEW);
    if let Some(refused) = refused
        && LIMIT.with(|limit| limit.take(cpu::counter_now(), cpu::cntfrq_el0()).is_some())
    {
        println!(
            "granule: {} runs with {size} pages: {refused}",
            shown.escape_ascii()
        );
    }
    let memory = AddressSpace::new(size).ok_or(Errno::ENOMEM)?;
    let end = load_segments(&memory, &program, file)?;
    let stack_pointer = make_stack(&memory, &program, path, texts)?;
    make_trampoline(&memory)?;
    memory.publish();
    Ok(Loaded {
        memory,
        entry: program.entry,
        stack_pointer,
        heap: end..end,
    })
}

/// Maps and fills the segments. Returns the end of the last one, in whole pages.
fn load_segments(
    memory: &AddressSpace,
    program: &Program,
    file: &'static [u8],
) -> Result<u64, Errno> {
    let page = memory.page_bytes();
    let cached = file_cache::Open::new(file);
    let mut end = 0;
    for segment in &program.segments {
        let pages = segment.pages(page);
        let bytes = pages.end - pages.start;
        let rights = Rights {
            read: segment.read,
            write: segment.write,
            execute: segment.execute,
        };
        // Map writable first, whatever the final rights: no CPU walks these tables yet.
        memory.change(|tables| tables.map(pages.start, bytes, Rights::READ_WRITE, 0))?;
        let content = file.get(segment.file.clone()).ok_or(Errno::ENOEXEC)?;
        let shared = match &cached {
            Some(cached) => segment.shared_pages(page, cached.bytes()),
            None => segment.start..segment.start,
        };
        let put = |range: Range<u64>| {
            let from = (range.start - segment.start) as usize;
            let to = (range.end - segment.start) as usize;
            memory.write(range.start, content.get(from..to).ok_or(Errno::ENOEXEC)?)
        };
        let content_end = segment.start + content.len() as u64;
        if segment.start < shared.start {
            put(segment.start..shared.start)?;
        }
        if shared.end < content_end {
            put(shared.end..content_end)?;
        }
        memory.change(|tables| tables.protect(pages.start, bytes, rights))?;
        if let Some(cached) = &cached {
            map_cached(memory, cached, segment, shared)?;
        }
        end = pages.end;
    }
    Ok(end)
}

/// Maps the pages of a segment whose content is in the cache.
fn map_cached(
    memory: &AddressSpace,
    cached: &file_cache::Open,
    segment: &Segment,
    pages: Range<u64>,
) -> Result<(), Errno> {
    // From an address to its place in the file. Both have the same place in a page.
    let distance = (segment.file.start as u64).wrapping_sub(segment.start);
    let mut at = pages.start;
    while at < pages.end {
        let (from, to) = (at.wrapping_add(distance), pages.end.wrapping_add(distance));
        let (first, bytes) = cached.memory(from, to).ok_or(Errno::ENOEXEC)?;
        memory
            // SAFETY: the cache keeps the frames while the file is open, and never writes them again. The pages
            // are whole ones, because the segment has the same place in a page as its content has in the file, and
            // the cache's chunks are aligned to every page size.
            .change(|tables| unsafe { tables.map_shared(at, bytes, first) })?;
        at += bytes;
    }
    Ok(())
}

/// Maps the stack, writes the program's start data on it, and returns the stack pointer.
fn make_stack(
    memory: &AddressSpace,
    program: &Program,
    path: &[u8],
    texts: Texts<'_>,
) -> Result<u64, Errno> {
    let top = stack_top();
    memory.change(|tables| {
        tables.map(top - STACK_BYTES, STACK_BYTES, Rights::READ_WRITE, 0)?;
        // Most programs use a few pages of it, where a large leaf would be megabytes.
        tables.advise(top - STACK_BYTES, STACK_BYTES, Advice::Pages)
    })?;
    let auxiliary = [
        (AT_PHDR, program.headers.unwrap_or(0)),
        (AT_PHENT, program.header_bytes),
        (AT_PHNUM, program.header_count),
        (AT_PAGESZ, memory.page_bytes()),
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

/// The value of AT_HWCAP: FP, SIMD, and the features of ID_AA64ISAR0 by which programs choose code.
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

/// Sixteen random bytes, different for each program.
fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    random::fill(&mut bytes);
    bytes
}

/// The registers that a program starts with.
pub(super) fn first_frame(entry: u64, stack_pointer: u64) -> Frame {
    Frame {
        x: [0; 31],
        sp: stack_pointer,
        elr: entry,
        // EL0 in AArch64, with nothing masked.
        spsr: 0,
        esr: 0,
        far: 0,
        record: [0; 2],
    }
}

/// Replaces the program that the process runs. The process keeps its number and everything that is not
/// memory.
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
