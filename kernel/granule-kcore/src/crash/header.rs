//! The header that the dead kernel prepares, in Linux's form of `elfcorehdr`: segments whose offset in the file is a
//! physical address.

use super::registers::CPU_BYTES;
use super::{FILE_HEADER, FileHeader, LOAD, NOTE, NOTE_HEADER, SEGMENT_HEADER, SegmentHeader};
use super::{put, put_note};
use arrayvec::ArrayString;
use core::fmt::{self, Write};
use granule::arch::Geometry;
use granule_kexec::PhysRange;
use zerocopy::IntoBytes;

/// The most bytes of the text about the dead kernel.
const MOST_TEXT: usize = 1024;
const TEXT_NAME: &[u8] = b"VMCOREINFO";

/// Facts that a reader of the dead kernel's memory needs.
#[derive(Clone, Copy, Debug)]
pub struct DeadKernel {
    /// The version of the kernel.
    pub version: &'static str,
    /// The geometry of its tables.
    pub geometry: Geometry,
    /// TCR_EL1, MAIR_EL1.
    pub tcr: u64,
    /// The memory types of its tables.
    pub mair: u64,
    /// The physical address of the root of TTBR1.
    pub root: u64,
    /// Added, wrapping, to a physical address for its address in the linear map.
    pub distance: u64,
    /// Added, wrapping, to the physical address of a byte of the image for its virtual address.
    pub image_distance: u64,
    /// The virtual address of the image, which begins with its text.
    pub text: u64,
}

/// The names are those of Linux's VMCOREINFO, so that its readers know them; those in `GRANULE()` are this kernel's.
impl fmt::Display for DeadKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            version, geometry, ..
        } = self;
        let page_offset = u64::MAX << geometry.va_bits();
        writeln!(f, "OSRELEASE=granule-{version}")?;
        writeln!(f, "PAGESIZE={}", geometry.page_size().bytes())?;
        writeln!(f, "NUMBER(VA_BITS)={}", geometry.va_bits())?;
        writeln!(f, "NUMBER(TCR_EL1_T1SZ)={:#x}", 64 - geometry.va_bits())?;
        let offset = page_offset.wrapping_sub(self.distance);
        writeln!(f, "NUMBER(PHYS_OFFSET)={offset:#x}")?;
        writeln!(f, "NUMBER(kimage_voffset)={:#x}", self.image_distance)?;
        // Readers take the linear map to be in the lower half of the space, as this is in the upper one.
        writeln!(f, "SYMBOL(_stext)={:x}", self.text)?;
        // Readers convert it as an address of the image.
        let root = self.root.wrapping_add(self.image_distance);
        writeln!(f, "SYMBOL(swapper_pg_dir)={root:x}")?;
        writeln!(f, "GRANULE(table_root)={:#x}", self.root)?;
        writeln!(f, "GRANULE(tcr)={:#x}", self.tcr)?;
        writeln!(f, "GRANULE(mair)={:#x}", self.mair)
    }
}

/// Where the parts of a header are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The offset of the notes of the first CPU; those of each further CPU follow [`CPU_BYTES`] later.
    pub notes: usize,
    /// Bytes of the header with all notes.
    pub bytes: usize,
}

const fn align(at: usize) -> usize {
    at.next_multiple_of(CPU_BYTES)
}

/// The layout of the header of a machine with so many CPUs and ranges of RAM. `None` if ELF cannot express it.
#[must_use]
pub fn layout(cpus: usize, ranges: usize) -> Option<Layout> {
    let segments = cpus.checked_add(1)?.checked_add(ranges)?;
    u16::try_from(segments).ok()?;
    let text = FILE_HEADER + segments * SEGMENT_HEADER;
    let notes = align(text + NOTE_HEADER + align(TEXT_NAME.len()) + MOST_TEXT);
    Some(Layout {
        notes,
        bytes: notes + cpus * CPU_BYTES,
    })
}

/// Writes the header, which will be at the physical address `start`, without notes of CPUs. `None` if `into` is
/// shorter than its [`layout`].
#[must_use]
pub fn write(
    into: &mut [u8],
    start: u64,
    cpus: usize,
    ram: &[PhysRange],
    dead: &DeadKernel,
) -> Option<Layout> {
    let layout = layout(cpus, ram.len())?;
    let into = into.get_mut(..layout.bytes)?;
    into.fill(0);
    let mut text = ArrayString::<MOST_TEXT>::new();
    // Lines that do not fit are left out.
    let _ = write!(text, "{dead}");
    let segments = cpus + 1 + ram.len();
    let mut at = put(into, 0, FileHeader::core(segments as u16).as_bytes())?;
    let text_at = FILE_HEADER + segments * SEGMENT_HEADER;
    let text_end = put_note(into, text_at, TEXT_NAME, 0, text.as_bytes())?;
    let notes = (0..cpus).map(|cpu| (layout.notes + cpu * CPU_BYTES, CPU_BYTES));
    for (offset, bytes) in notes.chain([(text_at, text_end - text_at)]) {
        let note = SegmentHeader {
            kind: NOTE,
            align: 4,
            offset: start + offset as u64,
            physical_address: start + offset as u64,
            file_bytes: bytes as u64,
            memory_bytes: bytes as u64,
            ..SegmentHeader::default()
        };
        at = put(into, at, note.as_bytes())?;
    }
    for range in ram {
        let load = SegmentHeader {
            kind: LOAD,
            flags: elf::abi::PF_R | elf::abi::PF_W | elf::abi::PF_X,
            offset: range.start,
            virtual_address: range.start.wrapping_add(dead.distance),
            physical_address: range.start,
            file_bytes: range.bytes,
            memory_bytes: range.bytes,
            align: 0,
        };
        at = put(into, at, load.as_bytes())?;
    }
    Some(layout)
}
