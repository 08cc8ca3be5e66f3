//! Files of makedumpfile (kdump-compressed), which QEMU's `dump-guest-memory -z`, `-l` and `-s`
//! write too. The format is described in makedumpfile's IMPLEMENTATION.
//!
//! In blocks of `block_size` bytes there are: the header; the sub header; a bitmap of the pages that
//! the machine has; a bitmap of those in the file; a descriptor of 24 bytes for each page in the
//! file; the pages. All numbers are little-endian, as on the machine that was dumped.
//!
//! A dump level leaves pages out by what Linux used them for. Pages of zeros are never among them: their
//! descriptors share one stored page. So nothing is known of a page that is not in the file.

mod bitmap;
mod flattened;
mod pages;

use super::bytes::{ReadAt, Words};
use super::elf_core;
use super::memory::{Facts, Memory, OpenError};
use bitmap::Bitmap;
use pages::{DESCRIPTOR, Pages};
use std::io;

/// The beginning of the file.
pub const SIGNATURE: &[u8; 8] = b"KDUMP   ";
/// The most bytes of notes.
const MOST_NOTES: u64 = 64 << 20;
/// A bit of `status`.
const INCOMPLETE: u32 = 0x8;

/// Returns the memory of a kdump-compressed file and its facts about the machine.
/// Fails if the file is not of an arm64 machine, or its headers are damaged or cut off.
pub fn open<R: ReadAt + 'static>(file: R) -> Result<(Box<dyn Memory>, Facts), OpenError> {
    let first = file
        .take(0, 16, 16)
        .map_err(|error| unread("its signature", &error))?;
    let stored = file.bytes();
    if !first.starts_with(flattened::SIGNATURE) {
        return read(file, stored);
    }
    let file = flattened::Flattened::new(file)?;
    let Some(cut_off) = file.cut_off() else {
        return unflattened(file, stored);
    };
    match unflattened(file, stored) {
        Ok((memory, mut facts)) => {
            // The file that the pieces make lacks its end for this reason.
            if let Some(of_file) = facts.missing.replace(cut_off.clone()) {
                facts.notes.retain(|note| *note != of_file);
            }
            facts.notes.insert(0, cut_off);
            Ok((memory, facts))
        }
        Err(error) => Err(OpenError(format!("{cut_off}: {error}"))),
    }
}

/// Opens the file that the pieces of a flattened one make; `stored` as for [`read`].
fn unflattened<R: ReadAt + 'static>(
    file: R,
    stored: u64,
) -> Result<(Box<dyn Memory>, Facts), OpenError> {
    // makedumpfile flattens ELF cores too (-E -F).
    if file.take(0, 4, 4).is_ok_and(|first| first == *b"\x7fELF") {
        // A core is searched as far as it claims to go.
        if file.bytes() > stored {
            return Err(damaged("its pieces make a core with holes"));
        }
        return elf_core::open(file);
    }
    read(file, stored)
}

/// Whether a file that begins so is one of these.
pub fn is_kdump(first: &[u8]) -> bool {
    first.starts_with(SIGNATURE) || first.starts_with(flattened::SIGNATURE)
}

const NAME: &str = "the kdump file";

fn damaged(what: &str) -> OpenError {
    OpenError(format!("{NAME} is damaged: {what}"))
}

fn unread(part: &str, error: &io::Error) -> OpenError {
    OpenError::unread(NAME, part, error)
}

/// The main header's fields that are needed, after 390 bytes of names and 22 of time.
struct Header {
    version: u32,
    machine: String,
    status: u32,
    block: u64,
    sub_header_blocks: u64,
    bitmap_blocks: u64,
    most_pages: u64,
}

impl Header {
    fn of(bytes: &[u8]) -> Self {
        let machine = bytes.get(12 + 4 * 65..12 + 5 * 65).unwrap_or_default();
        let machine = machine.split(|&byte| byte == 0).next().unwrap_or_default();
        Self {
            version: bytes.u32_at(8),
            machine: String::from_utf8_lossy(machine).into_owned(),
            status: bytes.u32_at(424),
            block: u64::from(bytes.u32_at(428)),
            sub_header_blocks: u64::from(bytes.u32_at(432)),
            bitmap_blocks: u64::from(bytes.u32_at(436)),
            most_pages: u64::from(bytes.u32_at(440)),
        }
    }
}

/// `stored` is the number of bytes that there are, whatever offsets the pieces of a flattened file have.
fn read<R: ReadAt + 'static>(file: R, stored: u64) -> Result<(Box<dyn Memory>, Facts), OpenError> {
    let header = file
        .take(0, 464, 464)
        .map_err(|error| unread("its header", &error))?;
    if !header.starts_with(SIGNATURE) {
        return Err(damaged("its parts make no kdump file"));
    }
    let header = Header::of(&header);
    // QEMU does not fill the names in.
    if !matches!(&*header.machine, "aarch64" | "Unknown" | "") {
        return Err(OpenError(format!(
            "this kdump file is of a {:?}; those of aarch64, little-endian, can be read",
            header.machine
        )));
    }
    if !(1..=6).contains(&header.version) {
        return Err(OpenError(format!(
            "this kdump file has version {}; 1 to 6 can be read",
            header.version
        )));
    }
    if !header.block.is_power_of_two() || !(1 << 12..=1 << 16).contains(&header.block) {
        return Err(damaged(&format!("its pages have {} bytes", header.block)));
    }
    // These products of 32-bit numbers cannot overflow.
    let sub = file
        .take(header.block, 104, 104)
        .map_err(|error| unread("its sub header", &error))?;
    let most_pages = if header.version >= 6 {
        sub.u64_at(96)
    } else {
        header.most_pages
    };
    if header.version >= 2 && sub.u32_at(12) != 0 {
        return Err(OpenError(
            "this is one part of a split kdump file; join the parts with makedumpfile --reassemble"
                .into(),
        ));
    }

    let mut facts = Facts::default();
    if header.status & INCOMPLETE != 0 {
        facts.lacks("the kdump file is marked as incomplete".into());
    }
    if header.version >= 3 {
        match file.take(sub.u64_at(32), sub.u64_at(40), MOST_NOTES) {
            Ok(text) => facts.set_vmcoreinfo(&text),
            Err(error) => facts.say(format!("VMCOREINFO cannot be read: {error}")),
        }
    }
    if header.version >= 4 {
        match file.take(sub.u64_at(48), sub.u64_at(56), MOST_NOTES) {
            Ok(notes) => elf_core::read_notes(&notes, 4, &mut facts),
            Err(error) => facts.say(format!("the notes cannot be read: {error}")),
        }
    }

    let bitmaps = header.block * (1 + header.sub_header_blocks);
    let each = header.bitmap_blocks / 2 * header.block;
    if each.saturating_mul(8) < most_pages {
        return Err(damaged("its bitmaps are shorter than its memory"));
    }
    let dumped = Bitmap::new(&file, bitmaps + each, most_pages)
        .map_err(|error| unread("its bitmaps", &error))?;
    let descriptors = bitmaps + header.bitmap_blocks * header.block;
    // Each page takes its descriptor: a search of more pages than the file can have might not end.
    if dumped.count() > stored / DESCRIPTOR {
        return Err(damaged("its bitmap has more pages than the file"));
    }
    let pages = Pages::new(file, header.block, bitmaps, dumped, descriptors);
    match pages.cut_off() {
        Ok(0) => {}
        Ok(bytes) => facts.lacks(format!(
            "{NAME} is cut off: {bytes} bytes of its pages are missing"
        )),
        Err(error) => facts.lacks(format!(
            "{NAME} is cut off in its page descriptors: {error}"
        )),
    }
    Ok((Box::new(pages), facts))
}

#[cfg(test)]
mod tests;
