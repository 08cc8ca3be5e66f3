//! Loadable modules, as far as no memory is mapped: reads a relocatable ELF file, places its sections, and fills the
//! memory that they will have.
//!
//! The bytes are untrusted. A file that breaks a rule is refused with one line, and nothing here panics; fuzzed. A
//! module that is accepted runs with the kernel's rights, so the rules find mistakes, not malice.
//!
//! Sections lie in three parts, each from a page on: code, constants, and data, so that one file serves each page
//! size. The sections that are not part of memory (symbols, debug information) are not read. [`relocation`] has
//! what each relocation does.

mod refused;
pub mod relocation;

pub use refused::Refused;

use arrayvec::ArrayVec;
use core::ops::Range;
use elf::ElfBytes;
use elf::abi::{
    EM_AARCH64, ET_REL, SHF_ALLOC, SHF_COMPRESSED, SHF_EXECINSTR, SHF_TLS, SHF_WRITE, SHN_ABS,
    SHN_UNDEF, SHT_NOBITS, SHT_NOTE, SHT_PROGBITS, SHT_REL, SHT_RELA,
};
use elf::endian::LittleEndian;
use elf::file::Class;
use elf::section::SectionHeader;
use elf::string_table::StringTable;
use elf::symbol::{Symbol, SymbolTable};
use granule_module::{EXIT, HEAD_SECTION, Head, INIT, MAGIC, MOST_NAME_BYTES};
use relocation::RelocationError;

/// The most sections of a file. A compiler gives each function and each constant one of its own.
pub const MOST_SECTIONS: usize = 256;

/// The most bytes of a module in memory, far less than a branch reaches.
pub const MOST_BYTES: u64 = 8 << 20;

/// The largest alignment of a section: the smallest page.
const MOST_ALIGNMENT: u64 = granule::arch::PageSize::MIN.bytes();

/// A part of a module's memory, with permissions of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Read and executed.
    Code,
    /// Read.
    Constants,
    /// Read and written.
    Data,
}

impl Part {
    const ALL: [Self; 3] = [Self::Code, Self::Constants, Self::Data];

    /// The part that a section with these flags belongs to.
    const fn of(flags: u64) -> Self {
        if flags & SHF_EXECINSTR as u64 != 0 {
            Self::Code
        } else if flags & SHF_WRITE as u64 != 0 {
            Self::Data
        } else {
            Self::Constants
        }
    }
}

/// The place of a section that is not part of memory.
const NOWHERE: u32 = u32::MAX;

/// A module's file that can be loaded, with the place of each section.
#[derive(Debug)]
pub struct Module<'a> {
    file: &'a [u8],
    elf: ElfBytes<'a, LittleEndian>,
    symbols: (SymbolTable<'a, LittleEndian>, StringTable<'a>),
    names: StringTable<'a>,
    /// By the section's number: its offset in memory, or [`NOWHERE`].
    places: ArrayVec<u32, MOST_SECTIONS>,
    /// The bytes of each part, in whole pages, in the order of [`Part::ALL`].
    parts: [u64; 3],
    name: &'a str,
}

/// The addresses of a module's two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Begins the module's work.
    pub init: u64,
    /// Ends it.
    pub exit: u64,
}

impl<'a> Module<'a> {
    /// Reads a module's file, for pages of `page` bytes and a kernel with the interface `build`. Fails with
    /// [`Refused`].
    pub fn read(file: &'a [u8], build: u64, page: u64) -> Result<Self, Refused<'a>> {
        let elf = ElfBytes::minimal_parse(file).map_err(|_| Refused::NotElf)?;
        if elf.ehdr.class != Class::ELF64 {
            return Err(Refused::NotElf);
        }
        if elf.ehdr.e_machine != EM_AARCH64 {
            return Err(Refused::Machine);
        }
        if elf.ehdr.e_type != ET_REL {
            return Err(Refused::Kind(elf.ehdr.e_type));
        }
        let tables = elf.section_headers_with_strtab();
        let (sections, names) = tables.map_err(|_| Refused::Damaged("section table"))?;
        let sections = sections.ok_or(Refused::Damaged("section table"))?;
        let names = names.ok_or(Refused::Damaged("section names"))?;
        if sections.len() > MOST_SECTIONS {
            return Err(Refused::Sections(sections.len()));
        }
        let symbols = elf.symbol_table().ok().flatten();
        let mut module = Self {
            file,
            elf,
            symbols: symbols.ok_or(Refused::Damaged("symbol table"))?,
            names,
            places: ArrayVec::from_iter(core::iter::repeat_n(NOWHERE, sections.len())),
            parts: [0; 3],
            name: "",
        };
        let head = module.head()?;
        let (found, name) = head;
        if found != build {
            return Err(Refused::Build {
                found,
                expected: build,
            });
        }
        module.name = name;
        module.place(page)?;
        Ok(module)
    }

    /// The name that the module gives itself: of letters, digits and underscores.
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// The bytes of memory that the module takes, in whole pages.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().sum()
    }

    /// The offsets of a part in the module's memory, in whole pages.
    pub fn part(&self, part: Part) -> Range<u64> {
        let [code, constants, data] = self.parts;
        match part {
            Part::Code => 0..code,
            Part::Constants => code..code + constants,
            Part::Data => code + constants..code + constants + data,
        }
    }

    /// Fills `memory`, which is zeroed and will lie at address `base`, with the sections, and relocates them.
    /// `find` returns the address of a function that the kernel exports. Fails with [`Refused`]; the memory has
    /// anything in it then.
    pub fn load(
        &self,
        base: u64,
        memory: &mut [u8],
        find: impl Fn(&[u8]) -> Option<u64>,
    ) -> Result<Entries, Refused<'a>> {
        for (number, section) in self.sections() {
            let Some(place) = self.place_of(number) else {
                continue;
            };
            if section.sh_type != SHT_NOBITS {
                let content = self.content(&section)?;
                let to = memory
                    .get_mut(place..)
                    .and_then(|to| to.get_mut(..content.len()));
                to.ok_or(Refused::Damaged("section"))?
                    .copy_from_slice(content);
            }
        }
        for (_, section) in self.sections() {
            let target = section.sh_info as usize;
            match (section.sh_type, self.place_of(target)) {
                (SHT_RELA, Some(place)) => {
                    self.relocate(&section, target, (base, place), memory, &find)?;
                }
                (SHT_REL, Some(_)) => return Err(Refused::Damaged("relocation table")),
                _ => {}
            }
        }
        Ok(Entries {
            init: self.function(base, INIT)?,
            exit: self.function(base, EXIT)?,
        })
    }

    fn sections(&self) -> impl Iterator<Item = (usize, SectionHeader)> + use<'a> {
        self.elf.section_headers().into_iter().flatten().enumerate()
    }

    fn section(&self, number: usize) -> Option<SectionHeader> {
        self.elf.section_headers()?.get(number).ok()
    }

    /// The offset in memory of a section that lies there.
    fn place_of(&self, number: usize) -> Option<usize> {
        let place = self.places.get(number).filter(|place| **place != NOWHERE)?;
        Some(*place as usize)
    }

    fn section_name(&self, section: &SectionHeader) -> &'a [u8] {
        self.names
            .get_raw(section.sh_name as usize)
            .unwrap_or_default()
    }

    /// The bytes of a section in the file.
    fn content(&self, section: &SectionHeader) -> Result<&'a [u8], Refused<'a>> {
        let start = usize::try_from(section.sh_offset).ok();
        let bytes = usize::try_from(section.sh_size).ok();
        let content = start.and_then(|start| self.file.get(start..));
        let content = content
            .zip(bytes)
            .and_then(|(rest, bytes)| rest.get(..bytes));
        content.ok_or(Refused::CutOff(self.section_name(section)))
    }

    /// The interface and the name in the module's head, of which there must be one.
    fn head(&self) -> Result<(u64, &'a str), Refused<'a>> {
        let mut heads = self
            .sections()
            .filter(|(_, section)| self.section_name(section) == HEAD_SECTION.as_bytes());
        let (Some((_, section)), None) = (heads.next(), heads.next()) else {
            return Err(Refused::NoHead);
        };
        let content = self.content(&section)?;
        if section.sh_type != SHT_PROGBITS || content.len() != size_of::<Head>() {
            return Err(Refused::NoHead);
        }
        let rest = content.strip_prefix(&MAGIC).ok_or(Refused::NoHead)?;
        let (build, name) = rest.split_first_chunk().ok_or(Refused::NoHead)?;
        let length = name.iter().position(|byte| *byte == 0);
        let name = name.get(..length.unwrap_or(MOST_NAME_BYTES));
        let is_fine = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let name = name.filter(|name| !name.is_empty() && name.iter().all(is_fine));
        let name = name.and_then(|name| core::str::from_utf8(name).ok());
        Ok((u64::from_le_bytes(*build), name.ok_or(Refused::Name)?))
    }

    /// Places the sections that are part of memory, one part after the other, each from a page on.
    fn place(&mut self, page: u64) -> Result<(), Refused<'a>> {
        let mut start = 0;
        for (part, bytes) in Part::ALL.into_iter().zip(0..) {
            let mut at = start;
            for (number, section) in self.sections() {
                if section.sh_flags & u64::from(SHF_ALLOC) == 0
                    || Part::of(section.sh_flags) != part
                {
                    continue;
                }
                self.check(&section)?;
                let align = section.sh_addralign.max(1);
                let place = (at + (align - 1)) & !(align - 1);
                let end = place.checked_add(section.sh_size);
                at = end.filter(|end| *end <= MOST_BYTES).ok_or(Refused::Size)?;
                if let Some(slot) = self.places.get_mut(number) {
                    *slot = place as u32;
                }
            }
            let end = (at + (page - 1)) & !(page - 1);
            if let Some(slot) = self.parts.get_mut(bytes) {
                *slot = end - start;
            }
            start = end;
        }
        Ok(())
    }

    /// Whether a section may be part of memory.
    fn check(&self, section: &SectionHeader) -> Result<(), Refused<'a>> {
        let name = self.section_name(section);
        let has = |flag: u32| section.sh_flags & u64::from(flag) != 0;
        if has(SHF_WRITE) && has(SHF_EXECINSTR) {
            return Err(Refused::WritableExecutable(name));
        }
        let known = matches!(section.sh_type, SHT_PROGBITS | SHT_NOBITS | SHT_NOTE);
        if !known || has(SHF_TLS) || has(SHF_COMPRESSED) {
            return Err(Refused::Section {
                name,
                kind: section.sh_type,
                flags: section.sh_flags,
            });
        }
        let align = section.sh_addralign;
        if align > MOST_ALIGNMENT || align != 0 && !align.is_power_of_two() {
            return Err(Refused::Alignment { name, align });
        }
        Ok(())
    }

    /// Applies the relocations of one table to the section `target`, which lies at `place` in memory.
    fn relocate(
        &self,
        table: &SectionHeader,
        target: usize,
        (base, place): (u64, usize),
        memory: &mut [u8],
        find: &impl Fn(&[u8]) -> Option<u64>,
    ) -> Result<(), Refused<'a>> {
        let damaged = Refused::Damaged("relocation table");
        let bytes = self.section(target).map_or(0, |section| section.sh_size);
        let section = self
            .section(target)
            .map_or(&b""[..], |section| self.section_name(&section));
        let end = place.saturating_add(bytes as usize);
        let memory = memory.get_mut(place..end).ok_or(damaged)?;
        self.content(table)?;
        let relocations = self.elf.section_data_as_relas(table).map_err(|_| damaged)?;
        for relocation in relocations {
            let symbol = self.symbols.0.get(relocation.r_sym as usize);
            let symbol = symbol.map_err(|_| damaged)?;
            let value = match relocation.r_sym {
                0 => 0,
                _ => self.address(base, &symbol, find)?,
            };
            let offset = relocation.r_offset;
            let field = usize::try_from(offset).ok();
            let field = field.and_then(|offset| memory.get_mut(offset..));
            let field = field.filter(|field| !field.is_empty());
            let field = field.ok_or(Refused::RelocationOutside { offset, section })?;
            let at = base.wrapping_add(place as u64).wrapping_add(offset);
            let value = value.wrapping_add_signed(relocation.r_addend);
            let kind = relocation.r_type;
            relocation::apply(kind, at, value, field).map_err(|error| match error {
                RelocationError::Kind => Refused::RelocationKind { kind, section },
                RelocationError::Range => Refused::RelocationRange {
                    kind,
                    symbol: self.symbol_name(&symbol),
                },
                RelocationError::Outside => Refused::RelocationOutside { offset, section },
            })?;
        }
        Ok(())
    }

    fn symbol_name(&self, symbol: &Symbol) -> &'a [u8] {
        self.symbols
            .1
            .get_raw(symbol.st_name as usize)
            .unwrap_or_default()
    }

    /// The address of a symbol: of the module itself, or of the kernel.
    fn address(
        &self,
        base: u64,
        symbol: &Symbol,
        find: &impl Fn(&[u8]) -> Option<u64>,
    ) -> Result<u64, Refused<'a>> {
        let name = self.symbol_name(symbol);
        match symbol.st_shndx {
            SHN_UNDEF => find(name).ok_or(Refused::Missing(name)),
            SHN_ABS => Ok(symbol.st_value),
            number => {
                let place = self
                    .place_of(number.into())
                    .ok_or(Refused::NotLoaded(name))?;
                Ok(base
                    .wrapping_add(place as u64)
                    .wrapping_add(symbol.st_value))
            }
        }
    }

    /// The address of one of the module's two functions, which must lie in its code.
    fn function(&self, base: u64, wanted: &'static str) -> Result<u64, Refused<'a>> {
        let mut symbols = self.symbols.0.iter();
        let named = |symbol: &Symbol| {
            symbol.st_shndx != SHN_UNDEF && self.symbol_name(symbol) == wanted.as_bytes()
        };
        let address = symbols
            .find(named)
            .and_then(|symbol| self.address(base, &symbol, &|_| None).ok());
        let code = self.part(Part::Code);
        address
            .filter(|address| code.contains(&address.wrapping_sub(base)) && address & 3 == 0)
            .ok_or(Refused::NoFunction(wanted))
    }
}

#[cfg(test)]
mod tests;
