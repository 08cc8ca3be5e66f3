//! Reading the files, and the two calls.

#![allow(unsafe_code, reason = "memory that was just mapped")]

use granule_programs::calls::{HERE, KEXEC_LOAD, OPENAT, READ, READ_WRITE, REBOOT, call, map, say};
use granule_programs::start::Start;

const ARM64: u64 = 183 << 16;
/// The numbers that `reboot` requires, and the command.
const REBOOT_MAGIC: [u64; 2] = [0xfee1_dead, 672_274_793];
const REBOOT_KEXEC: u64 = 0x4558_4543;

/// Bytes of a file at most.
const MOST: u64 = 64 << 20;
/// The largest page that a kernel may have: segments are of whole pages.
const PAGE: u64 = 64 << 10;
/// Where the tree and the first instructions are, after the image's address.
const TREE: u64 = 128 << 20;
const ENTRY: u64 = TREE + (2 << 20);

/// A part of the next kernel, as the call has it.
#[repr(C)]
struct Segment {
    from: u64,
    bytes: u64,
    to: u64,
    room: u64,
}

type Wrong = &'static str;

pub(crate) fn run(start: Start) -> i32 {
    if start.count() != 3 {
        say(format_args!("usage: granule-user-leave IMAGE ADDRESS\n"));
        return 1;
    }
    // It returns only if it failed.
    let (wrong, error) = leave(start.argument(1), hexadecimal(start.argument(2)));
    say(format_args!("leave: {wrong}: {error}\n"));
    1
}

fn leave(image: &'static [u8], address: u64) -> (Wrong, i64) {
    let image = match read(image) {
        Ok(image) => image,
        Err(error) => return ("the image is not read", error),
    };
    let tree = match read(b"/sys/firmware/fdt\0") {
        Ok(tree) => tree,
        Err(error) => return ("the device tree is not read", error),
    };
    let word = |at: usize| -> u64 {
        let bytes = image.get(at..at + 8).and_then(|it| it.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    // The header of arm64 images: its place in 2 MiB, and its room.
    let (offset, room) = (word(8), word(16));
    without_initrd(tree);
    let kernel = address + offset;
    // `ldr x0, tree; ldr x17, kernel; mov x1 to x3, 0; br x17`, and both addresses.
    let enter: [u32; 10] = [
        0x5800_00c0,
        0x5800_00f1,
        0xd280_0001,
        0xd280_0002,
        0xd280_0003,
        0xd61f_0220,
        (address + TREE) as u32,
        ((address + TREE) >> 32) as u32,
        kernel as u32,
        (kernel >> 32) as u32,
    ];
    let segment = |from: *const u8, bytes: usize, to: u64, room: u64| Segment {
        from: from as u64,
        bytes: bytes as u64,
        to,
        room: room.max(bytes as u64).next_multiple_of(PAGE),
    };
    let segments = [
        segment(image.as_ptr(), image.len(), kernel, room),
        segment(tree.as_ptr(), tree.len(), address + TREE, 0),
        segment(
            enter.as_ptr().cast(),
            size_of_val(&enter),
            address + ENTRY,
            0,
        ),
    ];
    let entry = address + ENTRY;
    let loaded = [entry, 3, segments.as_ptr() as u64, ARM64, 0, 0];
    match call(KEXEC_LOAD, loaded) {
        0 => {}
        error => return ("kexec_load refused", error),
    }
    say(format_args!("leave: loaded\n"));
    let [first, second] = REBOOT_MAGIC;
    let error = call(REBOOT, [first, second, REBOOT_KEXEC]);
    ("reboot refused", error)
}

/// Renames the properties of an initial RAM disk, whose memory Linux has used for something else.
fn without_initrd(tree: &mut [u8]) {
    const NAME: &[u8] = b"linux,initrd-";
    for at in 0..tree.len().saturating_sub(NAME.len()) {
        if tree[at..].starts_with(NAME) {
            tree[at] = b'x';
        }
    }
}

/// A file's bytes. Arguments end with a NUL after what is given here.
#[expect(clippy::mut_from_ref, reason = "the memory is new, not the path's")]
fn read(path: &'static [u8]) -> Result<&'static mut [u8], i64> {
    let file = call(OPENAT, [HERE, path.as_ptr() as u64]);
    if file < 0 {
        return Err(file);
    }
    let room = map(MOST, READ_WRITE)?;
    let mut length = 0;
    while length < MOST {
        match call(READ, [file as u64, room + length, MOST - length]) {
            0 => break,
            error if error < 0 => return Err(error),
            some => length += some as u64,
        }
    }
    // SAFETY: the memory was mapped for this, and nothing else refers to it.
    Ok(unsafe { core::slice::from_raw_parts_mut(room as *mut u8, length as usize) })
}

fn hexadecimal(text: &[u8]) -> u64 {
    let digits = text.iter().filter_map(|byte| (*byte as char).to_digit(16));
    digits.fold(0, |number, digit| number << 4 | u64::from(digit))
}
