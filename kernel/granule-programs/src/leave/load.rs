//! Reading the files, and the two calls.

#![allow(unsafe_code, reason = "memory that was just mapped")]

use granule_programs::calls::{
    HERE, KEXEC_FILE_LOAD, KEXEC_LOAD, OPENAT, READ, READ_WRITE, REBOOT, call, map, say,
};
use granule_programs::start::Start;

const ARM64: u64 = 183 << 16;
const NO_INITRAMFS: u64 = 4;
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

/// A failed step, and its error.
type Wrong = (&'static str, i64);

pub(crate) fn run(start: Start) -> i32 {
    let loaded = match start.argument(1) {
        b"--file" if start.count() > 2 => load_files(start),
        image if start.count() == 3 => load(image, hexadecimal(start.argument(2))),
        _ => Err(USAGE),
    };
    let (wrong, error) = loaded.map_or_else(|wrong| wrong, |()| leave());
    say(format_args!("leave: {wrong}: {error}\n"));
    1
}

const USAGE: Wrong = (
    "expected IMAGE ADDRESS, or --file IMAGE [--initrd FILE] [--append TEXT]",
    -22,
);

/// Returns only if it failed.
fn leave() -> Wrong {
    say(format_args!("leave: loaded\n"));
    let [first, second] = REBOOT_MAGIC;
    let error = call(REBOOT, [first, second, REBOOT_KEXEC]);
    ("reboot refused", error)
}

fn load_files(start: Start) -> Result<(), Wrong> {
    let image = open(start.argument(2)).map_err(|error| ("the image is not opened", error))?;
    let (mut initrd, mut flags, mut line) = (0, NO_INITRAMFS, &b"\0"[..]);
    for index in (3..start.count()).step_by(2) {
        match (start.argument(index), start.argument(index + 1)) {
            (_, b"") => return Err(USAGE),
            (b"--initrd", path) => {
                initrd = open(path).map_err(|error| ("the initrd is not opened", error))?;
                flags = 0;
            }
            (b"--append", text) => line = text,
            _ => return Err(USAGE),
        }
    }
    // An argument's NUL follows it.
    let length = line.len() as u64 + u64::from(line != b"\0");
    let arguments = [image, initrd, length, line.as_ptr() as u64, flags];
    match call(KEXEC_FILE_LOAD, arguments) {
        0 => Ok(()),
        error => Err(("kexec_file_load refused", error)),
    }
}

fn load(image: &'static [u8], address: u64) -> Result<(), Wrong> {
    let image = read(image).map_err(|error| ("the image is not read", error))?;
    let tree = read(b"/sys/firmware/fdt\0");
    let tree = tree.map_err(|error| ("the device tree is not read", error))?;
    let word = |at: usize| -> u64 {
        let bytes = image.get(at..at + 8).and_then(|it| it.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    // The header of arm64 images: its place in 2 MiB, and its room.
    let (offset, room) = (word(8), word(16));
    without_stale(tree);
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
        0 => Ok(()),
        error => Err(("kexec_load refused", error)),
    }
}

/// Renames the properties that are not for the next kernel: the initial RAM disk, whose memory Linux has used for
/// something else, the note of the kernel before, and the seed that is used.
fn without_stale(tree: &mut [u8]) {
    const NAMES: [&[u8]; 3] = [b"linux,initrd-", b"granule,kexec-note", b"rng-seed"];
    for at in 0..tree.len() {
        if NAMES.iter().any(|name| tree[at..].starts_with(name)) {
            tree[at] = b'x';
        }
    }
}

/// Opens a file for reading. A path ends with a NUL after what is given here.
fn open(path: &'static [u8]) -> Result<u64, i64> {
    let file = call(OPENAT, [HERE, path.as_ptr() as u64]);
    u64::try_from(file).map_err(|_| file)
}

/// A file's bytes.
#[expect(clippy::mut_from_ref, reason = "the memory is new, not the path's")]
fn read(path: &'static [u8]) -> Result<&'static mut [u8], i64> {
    let file = open(path)?;
    let room = map(MOST, READ_WRITE)?;
    let mut length = 0;
    while length < MOST {
        match call(READ, [file, room + length, MOST - length]) {
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
