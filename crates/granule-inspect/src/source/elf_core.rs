//! ELF cores: `dump-guest-memory` of QEMU, and /proc/vmcore of Linux. The program headers locate
//! physical memory in the file; notes have the CPUs' general registers and Linux's VMCOREINFO.
//!
//! System registers are in no such file.

use super::bytes::{Extents, Plain, ReadAt, Words};
use super::cpu::Registers;
use super::memory::{Facts, Memory, OpenError};
use object::LittleEndian;
use object::elf::{
    EM_AARCH64, ET_CORE, FileHeader64, NT_PRSTATUS, PN_XNUM, PT_LOAD, PT_NOTE, ProgramHeader64,
};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use std::io;

const ENDIAN: LittleEndian = LittleEndian;
/// The most bytes of notes, all together: 100 000 CPUs have fewer.
const MOST_NOTES: u64 = 64 << 20;
/// The most bytes of program headers: a million of them.
const MOST_HEADERS: u64 = 56 << 20;
/// The place of sp, pc and pstate in the descriptor of a note with a CPU's registers.
const SP: usize = 112 + 31 * 8;

fn damaged(what: &str) -> OpenError {
    OpenError(format!("the ELF core is damaged: {what}"))
}

/// The bytes of the program headers of a core.
fn program_headers(core: &impl ReadAt) -> Result<Vec<u8>, OpenError> {
    let unread = |part: &str, error: io::Error| OpenError::unread("the ELF core", part, &error);
    let header = core
        .take(0, 64, 64)
        .map_err(|error| unread("its header", error))?;
    let header = FileHeader64::<LittleEndian>::parse(header.as_slice())
        .map_err(|_| OpenError("this ELF file is not of a 64-bit machine".into()))?;
    if !header.is_little_endian() {
        return Err(OpenError(
            "this ELF core is of a big-endian machine; those of little-endian arm64 can be read"
                .into(),
        ));
    }
    if header.e_machine.get(ENDIAN) != EM_AARCH64 {
        let machine = header.e_machine.get(ENDIAN);
        return Err(OpenError(format!(
            "this ELF core is of machine {machine}; little-endian arm64 ({EM_AARCH64}) can be read"
        )));
    }
    if header.e_type.get(ENDIAN) != ET_CORE {
        return Err(OpenError(
            "this ELF file is not a core; give a memory dump, for example of QEMU's dump-guest-memory"
                .into(),
        ));
    }
    let mut count = u64::from(header.e_phnum.get(ENDIAN));
    if count == u64::from(PN_XNUM) {
        // More than fit: the first section header has the number.
        let first = core
            .take(header.e_shoff.get(ENDIAN), 64, 64)
            .map_err(|error| unread("its number of program headers", error))?;
        count = u64::from(first.u32_at(44));
    }
    let each = size_of::<ProgramHeader64<LittleEndian>>() as u64;
    if count > 0 && u64::from(header.e_phentsize.get(ENDIAN)) != each {
        return Err(damaged("its program headers have another size"));
    }
    let bytes = count * each;
    core.take(header.e_phoff.get(ENDIAN), bytes, MOST_HEADERS)
        .map_err(|error| unread("its program headers", error))
}

fn segments(table: &[u8]) -> Result<&[ProgramHeader64<LittleEndian>], OpenError> {
    object::slice_from_all_bytes(table).map_err(|()| damaged("its program headers cannot be read"))
}

/// The bytes of the file that a core takes, by its headers.
/// Fails as [`open`] does.
pub fn file_bytes(core: &impl ReadAt) -> Result<u64, OpenError> {
    let table = program_headers(core)?;
    let ends = segments(&table)?.iter().map(|segment| {
        let (offset, bytes) = segment.file_range(ENDIAN);
        offset.saturating_add(bytes)
    });
    Ok(ends.max().unwrap_or(0))
}

/// Returns the memory of a core and the contents of its notes.
/// Fails if the file is not a core of an arm64 machine, or its headers are damaged or cut off.
pub fn open<R: ReadAt + 'static>(core: R) -> Result<(Box<dyn Memory>, Facts), OpenError> {
    let table = program_headers(&core)?;
    let segments = segments(&table)?;

    let mut facts = Facts::default();
    let (mut extents, mut left_out) = (Extents::default(), Extents::default());
    let (mut cut_off, mut all, mut notes_left) = (0_u64, 0_u64, MOST_NOTES);
    // The core of a program has virtual addresses alone.
    let (mut virtual_alone, mut physical) = (0_u64, 0_u64);
    for segment in segments {
        let (offset, bytes) = segment.file_range(ENDIAN);
        match segment.p_type(ENDIAN) {
            PT_LOAD => {
                let whole = segment.p_memsz(ENDIAN);
                match (segment.p_paddr(ENDIAN), segment.p_vaddr(ENDIAN)) {
                    _ if whole == 0 => {}
                    (0, 1..) => virtual_alone += 1,
                    _ => physical += 1,
                }
                left_out.insert(segment.p_paddr(ENDIAN), whole, 0);
                let there = bytes.min(core.bytes().saturating_sub(offset));
                cut_off = cut_off.saturating_add(bytes - there);
                all = all.saturating_add(there);
                // A part that is cut off stays in the map: reading it is an error with that reason.
                extents.insert(segment.p_paddr(ENDIAN), bytes, offset);
            }
            PT_NOTE => match core.take(offset, bytes, notes_left) {
                Ok(notes) => {
                    notes_left -= bytes;
                    read_notes(&notes, segment.p_align(ENDIAN), &mut facts);
                }
                Err(error) => facts.say(format!("the notes of the core cannot be read: {error}")),
            },
            _ => {}
        }
    }
    // /proc/vmcore has the kernel's own image twice. With more, a search might not end.
    if all / 2 > core.bytes() {
        return Err(damaged("its segments have the same bytes again and again"));
    }
    if virtual_alone > 1 && physical == 0 {
        return Err(OpenError(
            "this ELF core has no physical addresses: it is of a program, and page tables are in that of a machine"
                .into(),
        ));
    }
    if cut_off > 0 {
        facts.lacks(format!(
            "the core is cut off: {cut_off} bytes of its memory are missing"
        ));
    }
    let memory = Plain {
        bytes: core,
        extents,
        left_out,
    };
    Ok((Box::new(memory), facts))
}

/// The CPUs' registers, and the text in which Linux describes itself.
pub(super) fn read_notes(notes: &[u8], align: u64, facts: &mut Facts) {
    let Ok(notes) = NoteIterator::<FileHeader64<LittleEndian>>::new(ENDIAN, align, notes) else {
        facts.say("the notes of the dump have an alignment that ELF does not have".into());
        return;
    };
    for note in notes {
        let Ok(note) = note else {
            facts.say("the notes of the dump are damaged; the first of them were read".into());
            return;
        };
        let text = note.desc();
        match (note.name(), note.n_type(ENDIAN)) {
            (b"CORE", NT_PRSTATUS) if text.len() >= SP + 24 => {
                let mut cpu = Registers::default();
                cpu.set("sp", text.u64_at(SP));
                cpu.set("pc", text.u64_at(SP + 8));
                cpu.set("cpsr", text.u64_at(SP + 16));
                facts.cpus.push(cpu);
            }
            (b"VMCOREINFO", _) => facts.set_vmcoreinfo(text),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
