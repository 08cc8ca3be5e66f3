//! The kernel's ELF file as the checks need it: executable bytes, symbols, and the loadable segments
//! flattened into one image.
//!
//! The meaning of the bytes belongs to `a64`, `mmu_off` and `image`; nothing here judges code.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use object::elf::{
    PT_LOAD, R_AARCH64_RELATIVE, SHF_ALLOC, SHF_EXECINSTR, SHT_RELA, STT_FILE, STT_FUNC,
    STT_SECTION,
};
use object::read::elf::{ElfFile64, ProgramHeader, Rela, SectionHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolSection};

/// One executable section.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    pub(crate) start: u64,
    pub(crate) words: Vec<u32>,
}

impl Code {
    pub(crate) fn end(&self) -> u64 {
        self.start + 4 * self.words.len() as u64
    }
}

/// A symbol in executable code, named as a person reads it.
#[derive(Clone, Debug)]
pub(crate) struct Symbol {
    pub(crate) address: u64,
    /// Zero for assembly labels without `.size`.
    pub(crate) size: u64,
    pub(crate) name: String,
    pub(crate) function: bool,
}

impl Symbol {
    /// Whether a table's entry means this symbol: `name` is its whole name, or the last part of its path
    /// (`kernel::boot::start` is `start`).
    fn is(&self, name: &str) -> bool {
        self.name
            .strip_suffix(name)
            .is_some_and(|path| path.is_empty() || path.ends_with("::"))
    }
}

/// The executable code of an ELF file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    code: Vec<Code>,
    /// Sorted by address, without mapping symbols.
    symbols: Vec<Symbol>,
    /// Absolute symbols whose value happens to lie in code.
    bounds: Vec<(u64, String)>,
    /// Mapping symbols (`$x`, `$d`): whether data begins at the address.
    mapping: BTreeMap<u64, bool>,
    /// Words that hold an address of the program itself, which relocation set for one of the two addresses
    /// that the program runs at: whole sections of data, single words in code.
    relocated: Vec<Range<u64>>,
}

impl Program {
    /// Reads code and symbols from an ELF file's bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let elf = parse_elf(bytes)?;
        let mut program = Program::default();
        let mut executable = Vec::new();
        let is_code = |flags| match flags {
            SectionFlags::Elf { sh_flags, .. } => sh_flags.0 & SHF_EXECINSTR.0 != 0,
            _ => false,
        };
        for section in elf.sections().filter(|it| is_code(it.flags())) {
            executable.push(section.index());
            let name = section.name().unwrap_or("?").to_owned();
            let data = section
                .data()
                .with_context(|| format!("section {name} cannot be read"))?;
            ensure!(
                section.address() % 4 == 0,
                "executable section {name} begins at {:#x}, not at a multiple of 4",
                section.address()
            );
            let (words, _) = data.as_chunks::<4>();
            let words = words.iter().map(|w| u32::from_le_bytes(*w)).collect();
            program.add_code(section.address(), words);
        }
        for symbol in elf.symbols() {
            let Ok(name) = symbol.name() else { continue };
            let kind = symbol.elf_symbol().st_type();
            if name.is_empty() || kind == STT_SECTION || kind == STT_FILE {
                continue;
            }
            if symbol.section() == SymbolSection::Absolute {
                // A number or bound from the linker script: it has an address, but owns no code.
                program.bounds.push((symbol.address(), name.to_owned()));
                continue;
            }
            // By section, not by address, because debug sections have addresses from 0 on too.
            let section = symbol.section_index();
            if !section.is_some_and(|index| executable.contains(&index)) {
                continue;
            }
            if name.starts_with("$x") || name.starts_with("$d") {
                program
                    .mapping
                    .insert(symbol.address(), name.starts_with("$d"));
            } else {
                program.symbols.push(Symbol {
                    address: symbol.address(),
                    size: symbol.size(),
                    name: format!("{:#}", rustc_demangle::demangle(name)),
                    function: kind == STT_FUNC,
                });
            }
        }
        ensure!(
            !program.code.is_empty(),
            "the ELF file has no executable section"
        );
        ensure!(
            !program.symbols.is_empty(),
            "the ELF file has no symbols: it must not be stripped"
        );
        program.sort();
        program.relocated = relocated(&elf, bytes, &program)?;
        Ok(program)
    }

    /// Whether any of the `bytes` bytes at an address may belong to a relocated word.
    pub(crate) fn is_relocated(&self, address: u64, bytes: u64) -> bool {
        let end = address.saturating_add(bytes);
        self.relocated
            .iter()
            .any(|range| range.start < end && address < range.end)
    }

    pub(crate) fn has_relocated(&self) -> bool {
        !self.relocated.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn add_relocated(&mut self, range: Range<u64>) {
        self.relocated.push(range);
    }

    pub(crate) fn add_code(&mut self, start: u64, words: Vec<u32>) {
        self.code.push(Code { start, words });
    }

    #[cfg(test)]
    pub(crate) fn add_symbol(&mut self, name: &str, address: u64, size: u64, function: bool) {
        self.symbols.push(Symbol {
            address,
            size,
            name: name.to_owned(),
            function,
        });
        self.sort();
    }

    /// Sorts functions before labels at one address, and bounds of a linker script (`__…`) last, so that a
    /// search by address finds the name of code if there is one.
    fn sort(&mut self) {
        self.symbols.sort_by_key(|s| {
            (
                s.address,
                !s.function,
                s.name.starts_with("__"),
                s.name.clone(),
            )
        });
        self.code.sort_by_key(|c| c.start);
    }

    fn section(&self, address: u64) -> Option<&Code> {
        self.code
            .iter()
            .find(|c| (c.start..c.end()).contains(&address))
    }

    /// Whether the address lies in an executable section.
    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.section(address).is_some()
    }

    /// Whether the address is marked as data inside code (a literal pool, a header).
    pub(crate) fn is_data(&self, address: u64) -> bool {
        let Some(code) = self.section(address) else {
            return false;
        };
        let marks = self.mapping.range(code.start..=address);
        marks.last().is_some_and(|(_, data)| *data)
    }

    pub(crate) fn word(&self, address: u64) -> Option<u32> {
        let code = self.section(address)?;
        let offset = address - code.start;
        offset
            .is_multiple_of(4)
            .then(|| code.words[(offset / 4) as usize])
    }

    /// All instruction words, with their addresses.
    pub(crate) fn instructions(&self) -> impl Iterator<Item = (u64, u32)> {
        let words = self
            .code
            .iter()
            .flat_map(|code| (code.start..).step_by(4).zip(code.words.iter().copied()));
        words.filter(|(address, _)| !self.is_data(*address))
    }

    /// All symbols whose address is exactly this one.
    pub(crate) fn symbols_at(&self, address: u64) -> &[Symbol] {
        let first = self.symbols.partition_point(|s| s.address < address);
        let last = self.symbols.partition_point(|s| s.address <= address);
        &self.symbols[first..last]
    }

    /// Whether a symbol or a linker script's bound of that name lies at the address.
    pub(crate) fn is_named_at(&self, address: u64, name: &str) -> bool {
        self.symbols_at(address).iter().any(|s| s.is(name))
            || self.bounds.iter().any(|(a, n)| *a == address && n == name)
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Symbol> {
        self.symbols.iter().find(|s| s.is(name))
    }

    /// The symbol that an address belongs to, and the addresses that it spans. A label without a size
    /// reaches to the next symbol; code before any symbol spans to the first one.
    pub(crate) fn owner(&self, address: u64) -> Option<(&str, std::ops::Range<u64>)> {
        let code = self.section(address)?;
        let upto = self.symbols.partition_point(|s| s.address <= address);
        let next = self
            .symbols
            .get(upto)
            .map_or(code.end(), |s| s.address.min(code.end()));
        let before = self.symbols[..upto]
            .iter()
            .rev()
            .take_while(|s| s.address >= code.start);
        // A sized function that covers the address wins over labels inside it.
        let covers = |s: &&Symbol| s.size > 0 && address < s.address + s.size;
        if let Some(f) = before.clone().find(covers) {
            return Some((&f.name, f.address..(f.address + f.size).min(code.end())));
        }
        match before.into_iter().next() {
            Some(label) => {
                let first = self.symbols_at(label.address).first().unwrap_or(label);
                Some((&first.name, first.address..next))
            }
            None => Some(("code without a symbol", code.start..next)),
        }
    }

    /// An address as `name+offset`.
    pub(crate) fn describe(&self, address: u64) -> String {
        match self.owner(address) {
            Some((name, range)) if range.start == address => name.to_owned(),
            Some((name, range)) => format!("{name}+{:#x}", address - range.start),
            None => format!("{address:#x}"),
        }
    }
}

/// The dynamic relocations: address and type of each. This reads the sections itself, because the kernel's
/// linker script drops the table of dynamic symbols, and the `object` crate finds no relocations without
/// it.
fn relocations(
    elf: &ElfFile64<'_, LittleEndian>,
    bytes: &[u8],
) -> Result<Vec<(u64, object::elf::RelocationType)>> {
    let endian = elf.endian();
    let mut all = Vec::new();
    for section in elf.elf_section_table().iter() {
        if section.sh_type(endian) != SHT_RELA || section.sh_flags(endian).0 & SHF_ALLOC.0 == 0 {
            continue;
        }
        let Some((entries, _)) = section.rela(endian, bytes)? else {
            continue;
        };
        for entry in entries {
            all.push((entry.r_offset(endian), entry.r_type(endian, false)));
        }
    }
    Ok(all)
}

/// The ranges in which relocated words lie.
fn relocated(
    elf: &ElfFile64<'_, LittleEndian>,
    bytes: &[u8],
    program: &Program,
) -> Result<Vec<Range<u64>>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (address, _) in relocations(elf, bytes)? {
        if ranges.iter().any(|range| range.contains(&address)) {
            continue;
        }
        let holds = |section: &object::read::elf::ElfSection64<'_, '_, LittleEndian>| {
            section.address() <= address && address - section.address() < section.size()
        };
        let data = elf
            .sections()
            .find(|section| !program.is_code(address) && section.address() > 0 && holds(section));
        ranges.push(match data {
            Some(section) => section.address()..section.address() + section.size(),
            None => address..address + 8,
        });
    }
    Ok(ranges)
}

fn parse_elf(bytes: &[u8]) -> Result<ElfFile64<'_, LittleEndian>> {
    ElfFile64::parse(bytes).context("not a 64-bit little-endian ELF file")
}

/// The loadable segments in their memory layout.
#[derive(Debug)]
pub(crate) struct Flat {
    /// From address 0 to the last byte that comes from the file.
    pub(crate) bytes: Vec<u8>,
    /// The end of the segments' memory, `.bss` included.
    pub(crate) memory_end: u64,
}

/// A larger distance between address 0 and the end of the kernel means a wrong link, not a large kernel.
/// The limit keeps a broken file from taking all of the host's memory.
const LARGEST_IMAGE: u64 = 512 << 20;

/// Copies every `PT_LOAD` to its physical address. The link base must be 0, with physical equal to virtual
/// addresses, because the entry code relocates by the difference between its running address and 0.
pub(crate) fn flatten(bytes: &[u8]) -> Result<Flat> {
    let elf = parse_elf(bytes)?;
    let endian = elf.endian();
    let mut flat = Flat {
        bytes: Vec::new(),
        memory_end: 0,
    };
    let mut first = u64::MAX;
    for segment in elf.elf_program_headers() {
        if segment.p_type(endian) != PT_LOAD || segment.p_memsz(endian) == 0 {
            continue;
        }
        let (physical, virtual_) = (segment.p_paddr(endian), segment.p_vaddr(endian));
        ensure!(
            physical == virtual_,
            "a loadable segment has physical address {physical:#x} but virtual address \
             {virtual_:#x}; the linker script must keep them equal"
        );
        let end = physical.checked_add(segment.p_memsz(endian));
        let end = end.filter(|end| *end <= LARGEST_IMAGE);
        let end = end.with_context(|| {
            format!("the segment at {physical:#x} ends beyond {LARGEST_IMAGE:#x}: link the kernel at address 0")
        })?;
        let Ok(data) = segment.data(endian, bytes) else {
            bail!("the segment at {physical:#x} lies outside the ELF file");
        };
        ensure!(
            data.len() as u64 <= segment.p_memsz(endian),
            "the segment at {physical:#x} has more bytes in the file than in memory"
        );
        let start = physical as usize;
        let stop = start + data.len();
        if flat.bytes.len() < stop {
            flat.bytes.resize(stop, 0);
        }
        flat.bytes[start..stop].copy_from_slice(data);
        first = first.min(physical);
        flat.memory_end = flat.memory_end.max(end);
    }
    ensure!(
        first == 0,
        "no loadable segment begins at address 0: the arm64 Image header must come first"
    );
    check_relocations(&elf, bytes)?;
    Ok(flat)
}

/// The entry assembly applies only `R_AARCH64_RELATIVE`; any other kind would silently stay unapplied.
fn check_relocations(elf: &ElfFile64<'_, LittleEndian>, bytes: &[u8]) -> Result<()> {
    for (address, kind) in relocations(elf, bytes)? {
        ensure!(
            kind == R_AARCH64_RELATIVE,
            "dynamic relocation of type {kind:?} at {address:#x}: the entry code applies \
             R_AARCH64_RELATIVE only"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::test_elf::{TestElf, sym};

    #[test]
    fn segments_are_laid_by_address() {
        let elf = TestElf::new()
            .segment(0, &[1, 2, 3, 4], 4)
            .segment(0x20, &[5; 8], 0x100)
            .build();
        let flat = flatten(&elf).unwrap();
        assert_eq!(flat.bytes.len(), 0x28, "bss must not be in the file");
        assert_eq!(&flat.bytes[..6], &[1, 2, 3, 4, 0, 0]);
        assert_eq!(&flat.bytes[0x20..], &[5; 8]);
        assert_eq!(flat.memory_end, 0x120);
    }

    #[test]
    fn a_wrong_link_is_refused() {
        for (virtual_, physical, expected) in [
            (0x1000, 0x1000, "address 0"),
            (0, 0x1000, "physical address 0x1000"),
            (
                0xffff_0000_0000_0000,
                0xffff_0000_0000_0000,
                "link the kernel at address 0",
            ),
        ] {
            let elf = TestElf::new().segment_at(virtual_, physical, &[0; 4], 4);
            let error = flatten(&elf.build()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(flatten(b"not an ELF").is_err());
    }

    #[test]
    fn symbols_and_owners() {
        let code = [0x1400_0002_u32; 8].map(u32::to_le_bytes).concat();
        let panic = "_ZN4core9panicking5panic17h0123456789abcdefE";
        let elf = TestElf::new()
            .segment(0, &code, 32)
            .text(0, &code)
            .symbol(sym("_start", 0, 0, false))
            .symbol(sym(panic, 8, 12, true))
            .symbol(sym("$d", 24, 0, false))
            .build();
        let program = Program::parse(&elf).unwrap();
        assert_eq!(program.named("core::panicking::panic").unwrap().address, 8);
        assert_eq!(program.owner(4), Some(("_start", 0..8)));
        assert_eq!(program.owner(16), Some(("core::panicking::panic", 8..20)));
        assert_eq!(program.describe(16), "core::panicking::panic+0x8");
        assert_eq!(program.word(4), Some(0x1400_0002));
        assert_eq!(program.word(32), None);
        assert!(program.is_data(28) && !program.is_data(20));
    }
}
