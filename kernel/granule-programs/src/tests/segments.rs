//! `kexec_load`: segments that are refused, and next kernels in segments of a program's own, entered by code that
//! holds registers and memory against what was loaded.

#![allow(
    unsafe_code,
    reason = "memory that the test mapped, and the code before the next kernel"
)]

use super::alloc_failure::free;
use super::kexec::{GOOD, close, fails, leave, open, segments, still_works, unload};
use super::number;
use super::processes::{forked, status_of};
use crate::{check, check_eq};
use core::arch::global_asm;
use granule_programs::calls::{
    EADDRNOTAVAIL, EFAULT, EINVAL, KEXEC_LOAD, KILL, READ, READ_WRITE, SIGKILL, call, map, say,
    unmap,
};
use granule_programs::start::Start;

const EBUSY: i64 = -16;

/// Where RAM begins on the machine, and where much of it is free.
const RAM: u64 = 0x4000_0000;
const FREE: u64 = 0x5000_0000;
/// A multiple of every page.
const UNIT: u64 = 64 << 10;

/// The words of a segment: bytes in the program and their number, place and its size.
type Segment = [u64; 4];

fn kexec_load(entry: u64, segments: &[Segment], flags: u64) -> i64 {
    let (count, at) = (segments.len() as u64, segments.as_ptr() as u64);
    call(KEXEC_LOAD, [entry, count, at, flags])
}

static BYTES: [u8; 5000] = [0xa5; 5000];

/// A segment of some bytes.
fn segment(bytes: u64, start: u64, memory: u64) -> Segment {
    [BYTES.as_ptr() as u64, bytes, start, memory]
}

/// Loads three segments: in free memory, over the kernel, and without bytes.
pub(super) fn three() -> i64 {
    let all = [
        segment(5000, FREE, 2 * UNIT),
        segment(5000, RAM + (2 << 20), 4 * UNIT),
        segment(0, FREE + (1 << 20), 3 * UNIT),
    ];
    kexec_load(FREE, &all, 0)
}

/// The second argument is the start of memory that is handed over, the third the number of CPUs.
pub(super) fn refused(start: Start) {
    let handed_over = number(start.argument(2));
    still_works();
    // This takes some of the stack.
    fails(b"nothing is loaded", EINVAL, leave);
    let before = free();
    for loaded in [false, true] {
        if loaded {
            check_eq!(three(), 0, "three segments");
            let text = segments();
            check!(
                text.starts_with(b"segment0 0x50000000 131072 131072 131072\n"),
                "{}",
                text.escape_ascii()
            );
        }
        each(handed_over);
        // No crash kernel is loaded, and that is what is taken back.
        let text = segments();
        check_eq!(kexec_load(0, &[], 1), 0, "unloading a crash kernel");
        check!(segments() == text, "something else is loaded");
    }
    check_eq!(kexec_load(0, &[], 0), 0, "unloading");
    check!(segments()[0] == 0, "something is loaded");
    taken();
    if number(start.argument(3)) > 1 {
        busy();
    }
    let now = free();
    check!(now == before, "{before} bytes were free, now {now}");
    say(format_args!("segments refused\n"));
}

/// While another process loads without end, on another CPU, a call is refused at some time.
fn busy() {
    let other = forked(|| {
        loop {
            three();
        }
    });
    loop {
        match three() {
            0 => {}
            EBUSY => break,
            result => check!(false, "three segments: {result}"),
        }
    }
    check_eq!(call(KILL, [other as u64, SIGKILL]), 0, "kill");
    check_eq!(status_of(other), SIGKILL as u32, "the other");
    unload();
}

fn each(handed_over: u64) {
    let good = segment(5000, FREE, 2 * UNIT);
    let one = |what: &str, second: Segment, error| {
        fails(what.as_bytes(), error, || {
            kexec_load(FREE, &[good, second], 0)
        });
    };
    for flags in [2, 8, 1 << 15, 62 << 16, 1 << 32] {
        fails(b"flags", EINVAL, || kexec_load(FREE, &[good], flags));
    }
    fails(b"for a crash", EADDRNOTAVAIL, || {
        kexec_load(FREE, &[good], 183 << 16 | 1)
    });
    fails(b"17 segments", EINVAL, || kexec_load(FREE, &[good; 17], 0));
    fails(b"a list that is nowhere", EFAULT, || {
        call(KEXEC_LOAD, [FREE, 2, 64, 0])
    });
    let at = FREE + (1 << 20);
    one("half a page", segment(1, at + 0x800, UNIT), EADDRNOTAVAIL);
    one(
        "a page and a half",
        segment(1, at, UNIT + 0x800),
        EADDRNOTAVAIL,
    );
    one(
        "beyond 2^64",
        segment(1, at, UNIT.wrapping_neg()),
        EADDRNOTAVAIL,
    );
    one("an overlap", segment(1, FREE + UNIT, UNIT), EINVAL);
    one(
        "more bytes than memory",
        segment(UNIT + 1, at, UNIT),
        EINVAL,
    );
    let half = (512 << 20) / 2;
    one("more than half of RAM", segment(1, at, half - UNIT), EINVAL);
    one("no RAM", segment(1, RAM - UNIT, UNIT), EADDRNOTAVAIL);
    one(
        "behind RAM",
        segment(1, RAM + (512 << 20) - UNIT, 2 * UNIT),
        EADDRNOTAVAIL,
    );
    one(
        "memory that is handed over",
        segment(1, handed_over, UNIT),
        EADDRNOTAVAIL,
    );
    one("bytes that are nowhere", [64, 8, at, UNIT], EFAULT);
    // They begin where something is.
    one(
        "bytes that end nowhere",
        [BYTES.as_ptr() as u64, 64 << 20, at, 64 << 20],
        EFAULT,
    );
    for entry in [0, FREE - 4, FREE + 2 * UNIT - 2, FREE + 2 * UNIT, u64::MAX] {
        fails(b"an entry that is nowhere", EADDRNOTAVAIL, || {
            kexec_load(entry, &[good], 0)
        });
    }
}

/// Loads all that Linux takes too: the most segments there may be, some of them without memory, for this architecture by its
/// number, with the flag that matters only to a crash kernel.
fn taken() {
    let mut all = [[0; 4]; 16];
    for (index, one) in all.iter_mut().enumerate() {
        let at = FREE + (15 - index as u64) * UNIT;
        *one = segment(index as u64, at, if index % 5 == 3 { 0 } else { UNIT });
        if index % 5 == 3 {
            one[1] = 0;
        }
    }
    check_eq!(kexec_load(FREE, &all, 183 << 16 | 4), 0, "16 segments");
    let text = segments();
    let lines = text.split(|byte| *byte == b'\n');
    let named = lines.filter(|line| line.starts_with(b"segment")).count();
    check_eq!(named, 13, "segments with memory");
    // The other call takes it back.
    unload();
}

// x0 to x3 must be 0, and the sum of the words in two places what it was. It goes on only then: whatever is wrong,
// the next kernel does not begin.
global_asm!(
    r#"
    .section .rodata.before_next, "a"
    .balign 8
    .global before_next
    .global before_next_end
before_next:
    orr     x4, x0, x1
    orr     x4, x4, x2
    orr     x4, x4, x3
0:  cbnz    x4, 0b
    adr     x5, before_next_end
    mov     x9, #2
1:  ldp     x6, x7, [x5], #16
    ldr     x8, [x5], #8
2:  ldr     x10, [x6], #8
    sub     x8, x8, x10
    subs    x7, x7, #8
    b.ne    2b
3:  cbnz    x8, 3b
    subs    x9, x9, #1
    b.ne    1b
    ldp     x0, x17, [x5]
    mov     x1, xzr
    mov     x2, xzr
    mov     x3, xzr
    br      x17
    .balign 8
before_next_end:
"#
);

unsafe extern "C" {
    static before_next: [u64; 0];
    static before_next_end: [u64; 0];
}

fn code() -> &'static [u64] {
    let range = (&raw const before_next).cast::<u64>()..(&raw const before_next_end).cast();
    // SAFETY: the code above lies between both, in words.
    unsafe { core::slice::from_raw_parts(range.start, range.end.offset_from_unsigned(range.start)) }
}

/// New memory.
fn memory(bytes: u64) -> &'static mut [u64] {
    let at = map(bytes, READ_WRITE);
    check!(at.is_ok(), "{bytes} bytes: {at:?}");
    // SAFETY: just mapped.
    unsafe { core::slice::from_raw_parts_mut(at.unwrap_or(0) as *mut u64, bytes as usize / 8) }
}

/// The bytes of a file in memory, and their number.
fn read(path: &[u8]) -> (&'static mut [u64], u64) {
    let room = memory(8 << 20);
    let file = open(path);
    let mut used = 0;
    loop {
        let at = room.as_mut_ptr() as u64 + used;
        let got = call(READ, [file, at, size_of_val(room) as u64 - used]);
        check!(got >= 0, "read: {got}");
        if got == 0 {
            break;
        }
        used += got as u64;
    }
    close(file);
    (room, used)
}

/// Leaves for this kernel's own image with the pages of the third argument, in which the arguments behind it are
/// left to go through. The second is where it goes, in pages that are all free (`in-place`) or over the kernel that
/// runs (`copied`).
pub(super) fn chain(start: Start) {
    if start.count() < 4 {
        return;
    }
    // No byte of memory that is free is what it must become.
    let dirt = (free() - (8 << 20)) & !(UNIT - 1);
    let at = memory(dirt);
    at.fill(0x5a5a_5a5a_5a5a_5a5a);
    check_eq!(unmap(at.as_ptr() as u64, dirt), 0, "munmap");

    let is_in_place = start.argument(2) == b"in-place";
    // The kernel that runs is in one of the places, and leaves for the other.
    let base = match is_in_place {
        true => FREE + (start.count() as u64 % 2) * (64 << 20),
        false => RAM + (2 << 20),
    };
    let [tree_at, code_at, other_at] = [16, 24, 32].map(|mib| base + (mib << 20));
    let (image, image_bytes) = read(GOOD);
    let image_memory = image[2].next_multiple_of(UNIT);
    let (tree, tree_bytes) = read(b"/sys/firmware/fdt");
    // SAFETY: the bytes of the words.
    let text =
        unsafe { core::slice::from_raw_parts_mut(tree.as_mut_ptr().cast(), tree_bytes as usize) };
    pass_on(text, start.argument(3));
    // Bytes that end in the middle of a page, and of a word.
    let (other_bytes, other_memory) = (3 * UNIT + 4093, 6 * UNIT);
    let other = memory(other_memory);
    for (index, word) in other.iter_mut().take(other_bytes as usize / 8).enumerate() {
        *word = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    let sum = |words: &[u64]| {
        words
            .iter()
            .fold(0, |sum: u64, word| sum.wrapping_add(*word))
    };
    let begin = memory(UNIT);
    let data = [
        base,
        image_memory,
        sum(image),
        other_at,
        other_memory,
        sum(other),
        tree_at,
        base,
    ];
    let begin_bytes = (code().len() + data.len()) as u64 * 8;
    for (to, from) in begin.iter_mut().zip(code().iter().chain(&data)) {
        *to = *from;
    }
    let whole =
        |words: &[u64], bytes: u64, to, memory: u64| [words.as_ptr() as u64, bytes, to, memory];
    let all = [
        whole(other, other_bytes, other_at, other_memory),
        whole(image, image_bytes, base, image_memory),
        whole(begin, begin_bytes, code_at, UNIT),
        whole(tree, tree_bytes, tree_at, tree_bytes.next_multiple_of(UNIT)),
    ];
    check_eq!(kexec_load(code_at, &all, 0), 0, "kexec_load");
    check!(false, "left: {}", leave());
}

/// Changes the command line in a tree: to this page size, which stands before room for three letters, and without the
/// first word behind the way.
fn pass_on(tree: &mut [u8], size: &[u8]) {
    let behind = |what: &[u8]| {
        let at = tree.windows(what.len()).position(|it| it == what);
        check!(at.is_some(), "the tree has no {}", what.escape_ascii());
        at.unwrap_or(0) + what.len()
    };
    let [at, way] = [&b"arm64.pagesize="[..], b" kexec-chain "].map(behind);
    let until = |at: usize, blank: bool| {
        let found = tree[at..].iter().position(|byte| (*byte == b' ') == blank);
        at + found.unwrap_or(0)
    };
    let word = until(until(way, true), false);
    check!(
        tree[word..].starts_with(size),
        "the word is not in the tree"
    );
    tree[word..word + size.len()].fill(b' ');
    for (index, byte) in tree[at..at + 3].iter_mut().enumerate() {
        *byte = size.get(index).copied().unwrap_or(b' ');
    }
}
