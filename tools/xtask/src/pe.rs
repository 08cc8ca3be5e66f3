//! The check that the kernel's image is an EFI application with the ELF file's segments.
//!
//! Firmware maps each section with its own permissions and loads no byte outside of them, so a
//! wrong section shows only when a machine fails to boot.

use anyhow::{Context, Result, ensure};
use object::elf::{PF_W, PF_X, PT_LOAD};
use object::pe::{
    IMAGE_FILE_MACHINE_ARM64, IMAGE_SCN_MEM_EXECUTE, IMAGE_SCN_MEM_WRITE,
    IMAGE_SUBSYSTEM_EFI_APPLICATION,
};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::read::pe::{ImageNtHeaders, PeFile64};
use object::{LittleEndian, Object, ObjectSymbol};

/// The least alignment of sections, from the UEFI specification: firmware protects pages of 4 KiB.
const LEAST_ALIGNMENT: u32 = 0x1000;

/// A section, as a loader sees it.
struct Section {
    name: String,
    start: u64,
    end: u64,
    file_bytes: u64,
    executable: bool,
    writable: bool,
}

/// Compares the PE header of a flat image with the segments of the ELF file that it was made of.
pub(crate) fn check(elf: &[u8], image: &[u8], memory_end: u64) -> Result<()> {
    let elf = ElfFile64::<LittleEndian>::parse(elf).context("not a 64-bit ELF file")?;
    let pe = PeFile64::parse(image).context("PE header: EFI firmware cannot read it")?;
    let header = pe.nt_headers();
    let machine = header.file_header().machine.get(LittleEndian);
    ensure!(
        machine == IMAGE_FILE_MACHINE_ARM64,
        "PE header: machine is {machine:#x?}, not arm64"
    );
    let optional = header.optional_header();
    let subsystem = optional.subsystem.get(LittleEndian);
    ensure!(
        subsystem == IMAGE_SUBSYSTEM_EFI_APPLICATION,
        "PE header: subsystem is {subsystem:?}, not an EFI application (10)"
    );
    let number = |number: object::U32<LittleEndian>| number.get(LittleEndian);
    let entry = elf
        .symbols()
        .find(|symbol| symbol.name() == Ok("efi_entry"))
        .context("the ELF file has no efi_entry")?;
    let stated = u64::from(number(optional.address_of_entry_point));
    ensure!(
        stated == entry.address(),
        "PE header: the entry is {stated:#x}, but efi_entry is at {:#x}",
        entry.address()
    );
    let size = u64::from(number(optional.size_of_image));
    ensure!(
        size == memory_end,
        "PE header: SizeOfImage is {size:#x}, but the segments end at {memory_end:#x}"
    );
    let (alignment, in_file) = (
        number(optional.section_alignment),
        number(optional.file_alignment),
    );
    ensure!(
        alignment >= LEAST_ALIGNMENT && alignment.is_power_of_two(),
        "PE header: sections are aligned to {alignment:#x}, less than a page of EFI's"
    );
    let headers = u64::from(number(optional.size_of_headers));
    let mut sections = Vec::new();
    let mut end = headers;
    for section in pe.section_table().iter() {
        let name = String::from_utf8_lossy(section.raw_name()).into_owned();
        let start = u64::from(number(section.virtual_address));
        let bytes = u64::from(number(section.virtual_size));
        let file_bytes = u64::from(number(section.size_of_raw_data));
        let at = u64::from(number(section.pointer_to_raw_data));
        ensure!(
            start == end && start.is_multiple_of(alignment.into()),
            "PE header: {name} begins at {start:#x}, not at {end:#x} where the one before ends"
        );
        ensure!(
            at == start && file_bytes <= bytes && file_bytes.is_multiple_of(in_file.into()),
            "PE header: {name} has {file_bytes:#x} bytes of the file from {at:#x} on, and {bytes:#x} bytes \
             of memory from {start:#x} on"
        );
        ensure!(
            at + file_bytes <= image.len() as u64,
            "PE header: {name} ends at {:#x}, beyond the file",
            at + file_bytes
        );
        end = start + bytes;
        let flags = section.characteristics.get(LittleEndian);
        sections.push(Section {
            name,
            start,
            end,
            file_bytes,
            executable: flags.0 & IMAGE_SCN_MEM_EXECUTE.0 != 0,
            writable: flags.0 & IMAGE_SCN_MEM_WRITE.0 != 0,
        });
    }
    ensure!(
        end == memory_end,
        "PE header: the sections end at {end:#x}, the segments at {memory_end:#x}"
    );
    for segment in elf.elf_program_headers() {
        if segment.p_type(LittleEndian) == PT_LOAD && segment.p_memsz(LittleEndian) > 0 {
            compare(segment, headers, &sections)?;
        }
    }
    Ok(())
}

/// Whether one section has the whole segment, with its permissions.
fn compare(
    segment: &impl ProgramHeader<Endian = LittleEndian, Word = u64>,
    headers: u64,
    sections: &[Section],
) -> Result<()> {
    // The first segment begins with the headers, which are in no section.
    let first = segment.p_vaddr(LittleEndian);
    let start = first.max(headers);
    let end = first + segment.p_memsz(LittleEndian);
    let file_end = first + segment.p_filesz(LittleEndian);
    let section = sections
        .iter()
        .find(|section| section.start <= start && end <= section.end)
        .with_context(|| format!("PE header: no section has the segment {first:#x} to {end:#x}"))?;
    let flags = segment.p_flags(LittleEndian).0;
    ensure!(
        (section.executable, section.writable) == (flags & PF_X.0 != 0, flags & PF_W.0 != 0),
        "PE header: {} has other permissions than the segment at {first:#x}",
        section.name
    );
    ensure!(
        file_end <= section.start + section.file_bytes,
        "PE header: the file part of {} ends before that of the segment at {first:#x}",
        section.name
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::test_elf::{TestElf, sym};

    /// Three segments of a page each, and a page of memory behind the last.
    const MEMORY: u64 = 0x4000;
    const ENTRY: u64 = 0x1004;

    /// Writes numbers at offsets of `bytes`.
    fn put(bytes: &mut [u8], at: usize, number: u64, length: usize) {
        bytes[at..at + length].copy_from_slice(&number.to_le_bytes()[..length]);
    }

    /// The offsets of the fields that tests change.
    const MACHINE: usize = 68;
    const OPTIONAL: usize = 88;
    const ENTRY_AT: usize = OPTIONAL + 16;
    const ALIGNMENT: usize = OPTIONAL + 32;
    const SIZE_OF_IMAGE: usize = OPTIONAL + 56;
    const SUBSYSTEM: usize = OPTIONAL + 68;
    const SECTIONS: usize = OPTIONAL + 160;

    const fn section(index: usize) -> usize {
        SECTIONS + 40 * index
    }

    fn image() -> Vec<u8> {
        let mut image = vec![0; 0x3000 + 0x200];
        image[..2].copy_from_slice(b"MZ");
        image[64..68].copy_from_slice(b"PE\0\0");
        for (at, number, length) in [
            (0x3c, 64, 4),
            (MACHINE, 0xaa64, 2),
            (MACHINE + 2, 3, 2),
            (MACHINE + 16, 160, 2),
            (OPTIONAL, 0x20b, 2),
            (ENTRY_AT, ENTRY, 4),
            (ALIGNMENT, 0x1000, 4),
            (ALIGNMENT + 4, 0x200, 4),
            (SIZE_OF_IMAGE, MEMORY, 4),
            (SIZE_OF_IMAGE + 4, 0x1000, 4),
            (SUBSYSTEM, 10, 2),
            (OPTIONAL + 108, 6, 4),
        ] {
            put(&mut image, at, number, length);
        }
        let sections = [
            (0x1000, 0x1000, 0x1000, 0x6000_0020),
            (0x2000, 0x1000, 0x1000, 0x4000_0040),
            (0x3000, 0x1000, 0x200, 0xc000_0040_u64),
        ];
        for (index, (start, memory, file, flags)) in sections.into_iter().enumerate() {
            let at = section(index);
            put(&mut image, at + 8, memory, 4);
            put(&mut image, at + 12, start, 4);
            put(&mut image, at + 16, file, 4);
            put(&mut image, at + 20, start, 4);
            put(&mut image, at + 36, flags, 4);
        }
        image
    }

    /// The ELF file of that image.
    fn elf() -> Vec<u8> {
        let mut elf = TestElf::new()
            .segment(0, &[0; 0x2000], 0x2000)
            .segment(0x2000, &[0; 0x1000], 0x1000)
            .segment(0x3000, &[0; 0x200], 0x1000)
            .text(0x1000, &[0; 16])
            .symbol(sym("efi_entry", ENTRY, 4, true))
            .build();
        for (index, flags) in [5, 4, 6].into_iter().enumerate() {
            put(&mut elf, 64 + 56 * index + 4, flags, 4);
        }
        elf
    }

    #[test]
    fn sections_that_are_the_segments_pass_signed_or_not() {
        check(&elf(), &image(), MEMORY).unwrap();
        // The changes of sbsign: a checksum, and a certificate at the end of the file that a directory names.
        let mut signed = image();
        let end = signed.len() as u64;
        signed.extend([0x30; 0x608]);
        put(&mut signed, OPTIONAL + 64, 0x0012_3456, 4);
        put(&mut signed, OPTIONAL + 112 + 8 * 4, end, 4);
        put(&mut signed, OPTIONAL + 112 + 8 * 4 + 4, 0x608, 4);
        check(&elf(), &signed, MEMORY).unwrap();
    }

    #[test]
    fn a_header_that_lies_is_refused() {
        let lies: [(usize, u64, usize, &str); 13] = [
            (0, 0x5a4e, 2, "cannot read it"),
            (MACHINE, 0x8664, 2, "not arm64"),
            (SUBSYSTEM, 11, 2, "not an EFI application"),
            (ENTRY_AT, ENTRY + 4, 4, "efi_entry is at 0x1004"),
            (ALIGNMENT, 0x800, 4, "less than a page"),
            (SIZE_OF_IMAGE, MEMORY - 0x1000, 4, "SizeOfImage is 0x3000"),
            // The constants end early, are elsewhere in the file, or can be executed.
            (section(1) + 8, 0xe00, 4, "0xe00 bytes of memory"),
            (section(1) + 12, 0x1000, 4, "not at 0x2000"),
            (section(1) + 20, 0x1000, 4, "bytes of the file from 0x1000"),
            (section(1) + 36, 0x6000_0020, 4, "other permissions"),
            // The data's file part ends early or is not a whole sector, or its memory is short.
            (section(2) + 16, 0, 4, "ends before"),
            (section(2) + 16, 0x1ff, 4, "bytes of the file"),
            (section(2) + 8, 0xe00, 4, "sections end at 0x3e00"),
        ];
        for (at, number, length, expected) in lies {
            let mut image = image();
            put(&mut image, at, number, length);
            let error = check(&elf(), &image, MEMORY).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(expected), "{at}: {error}");
        }
        let short = &image()[..0x3000];
        let error = check(&elf(), short, MEMORY).unwrap_err().to_string();
        assert!(error.contains("beyond the file"), "{error}");
    }
}
