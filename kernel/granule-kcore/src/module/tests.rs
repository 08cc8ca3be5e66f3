//! A small module made by hand, and files that break one rule each.

use super::*;
use elf::abi::{SHT_INIT_ARRAY, SHT_STRTAB, SHT_SYMTAB};
use granule_testing::cases::config;
use proptest::prelude::*;

const BASE: u64 = 0xffff_ffff_8200_0000;
const BUILD: u64 = 0x1234_5678_9abc_def0;
const PRINT: u64 = BASE - 0x1_0000;

#[derive(Clone)]
struct Section {
    name: &'static str,
    kind: u32,
    flags: u32,
    align: u64,
    link: u32,
    info: u32,
    content: Vec<u8>,
    /// Of a section without content.
    bytes: u64,
}

fn section(name: &'static str, kind: u32, flags: u32, content: Vec<u8>) -> Section {
    Section {
        name,
        kind,
        flags,
        align: 8,
        link: 0,
        info: 0,
        bytes: content.len() as u64,
        content,
    }
}

/// A symbol: its name, its section and its value.
type Named = (&'static str, u16, u64);

/// A relocation: offset, symbol, kind and addend.
type Change = (u64, u64, u64, i64);

/// A module that a test changes before it is written.
#[derive(Clone)]
struct Made {
    sections: Vec<Section>,
    symbols: Vec<Named>,
    changes: Vec<Change>,
    machine: u8,
    kind: u8,
}

/// The sections by number.
const CODE: usize = 0;
const DATA: usize = 2;
const HEAD: usize = 4;

impl Made {
    /// Code with a call, constants, data with an address, memory without content, and a head.
    fn new() -> Self {
        let write = SHF_ALLOC | SHF_WRITE;
        let code = section(".text", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, vec![0; 8]);
        let head = [&MAGIC[..], &BUILD.to_le_bytes(), b"made_up", &[0; 17]].concat();
        let mut memory = section(".bss", SHT_NOBITS, write, Vec::new());
        memory.bytes = 0x30;
        let mut bytes = vec![0x94u8; 8];
        bytes[..4].copy_from_slice(&0x9400_0000u32.to_le_bytes());
        Self {
            sections: vec![
                Section {
                    content: bytes,
                    ..code
                },
                section(".rodata", SHT_PROGBITS, SHF_ALLOC, vec![7; 5]),
                section(".data", SHT_PROGBITS, write, vec![0; 8]),
                memory,
                section(HEAD_SECTION, SHT_PROGBITS, SHF_ALLOC, head),
                section(".comment", SHT_PROGBITS, 0, vec![9; 3]),
            ],
            symbols: vec![(INIT, 1, 0), (EXIT, 1, 4), ("print", 0, 0), ("word", 4, 8)],
            changes: vec![(0, 3, 283, 0)],
            machine: 183,
            kind: 1,
        }
    }

    fn file(&self) -> Vec<u8> {
        let mut strings = vec![0];
        let mut name = |text: &str| {
            let at = strings.len() as u32;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at
        };
        let mut sections = self.sections.clone();
        let (first, count) = (1, sections.len() as u32);
        let mut symbols = vec![0; 24];
        for (text, number, value) in &self.symbols {
            symbols.extend_from_slice(&name(text).to_le_bytes());
            symbols.extend_from_slice(&[0x12, 0]);
            symbols.extend_from_slice(&number.to_le_bytes());
            symbols.extend_from_slice(&value.to_le_bytes());
            symbols.extend_from_slice(&[0; 8]);
        }
        let changes = self
            .changes
            .iter()
            .flat_map(|(offset, symbol, kind, addend)| {
                [*offset, symbol << 32 | kind, *addend as u64]
            });
        let changes: Vec<_> = changes.flat_map(u64::to_le_bytes).collect();
        let (table, text) = (first + count + 1, first + count + 2);
        sections.push(Section {
            link: table,
            info: 1,
            ..section(".rela.text", SHT_RELA, 0, changes)
        });
        sections.push(Section {
            link: text,
            ..section(".symtab", SHT_SYMTAB, 0, symbols)
        });
        sections.push(section(".strtab", SHT_STRTAB, 0, Vec::new()));
        let names: Vec<_> = sections.iter().map(|section| name(section.name)).collect();
        if let Some(last) = sections.last_mut() {
            (last.bytes, last.content) = (strings.len() as u64, strings);
        }
        let mut out = vec![0; 64];
        out[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        (out[16], out[18], out[20]) = (self.kind, self.machine, 1);
        (out[52], out[58]) = (64, 64);
        out[60] = sections.len() as u8 + 1;
        out[62] = text as u8;
        let mut headers = vec![0; 64];
        for (section, name) in sections.iter().zip(names) {
            let sizes = match section.kind {
                SHT_RELA | SHT_SYMTAB => 24_u64,
                _ => 0,
            };
            headers.extend_from_slice(&name.to_le_bytes());
            headers.extend_from_slice(&section.kind.to_le_bytes());
            for word in [u64::from(section.flags), 0, out.len() as u64, section.bytes] {
                headers.extend_from_slice(&word.to_le_bytes());
            }
            headers.extend_from_slice(&section.link.to_le_bytes());
            headers.extend_from_slice(&section.info.to_le_bytes());
            headers.extend_from_slice(&section.align.to_le_bytes());
            headers.extend_from_slice(&sizes.to_le_bytes());
            out.extend_from_slice(&section.content);
        }
        let at = (out.len() as u64).to_le_bytes();
        out[40..48].copy_from_slice(&at);
        out.extend_from_slice(&headers);
        out
    }
}

/// Reads and loads; the memory and the functions.
fn loaded(file: &[u8], page: u64) -> Result<(Vec<u8>, Entries), Refused<'_>> {
    let module = Module::read(file, BUILD, page)?;
    let mut memory = vec![0; module.bytes() as usize];
    let find = |name: &[u8]| (name == b"print").then_some(PRINT);
    let entries = module.load(BASE, &mut memory, find)?;
    Ok((memory, entries))
}

fn refused(change: impl FnOnce(&mut Made)) -> String {
    let mut made = Made::new();
    change(&mut made);
    let file = made.file();
    let error = loaded(&file, 0x1000).map(drop).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn each_part_begins_at_a_page_of_any_size() {
    let mut made = Made::new();
    // The word of the data is the address of byte 8 of the memory behind it.
    made.sections[CODE].content.extend_from_slice(&[0; 8]);
    made.sections[CODE].bytes = 16;
    made.changes.push((8, 4, 257, -4));
    let file = made.file();
    for page in [0x1000, 0x4000, 0x1_0000] {
        let module = Module::read(&file, BUILD, page).unwrap();
        assert_eq!((module.name(), module.bytes()), ("made_up", 3 * page));
        assert_eq!(module.part(Part::Code), 0..page);
        assert_eq!(module.part(Part::Constants), page..2 * page);
        assert_eq!(module.part(Part::Data), 2 * page..3 * page);
        let (memory, entries) = loaded(&file, page).unwrap();
        assert_eq!(
            entries,
            Entries {
                init: BASE,
                exit: BASE + 4
            }
        );
        // bl to 64K before.
        assert_eq!(memory[..4], 0x97ff_c000_u32.to_le_bytes());
        assert_eq!(memory[4..8], [0x94; 4]);
        let word = BASE + 2 * page + 8 + 8 - 4;
        assert_eq!(memory[8..16], word.to_le_bytes());
        assert_eq!(memory[page as usize..][..5], [7; 5]);
        assert_eq!(memory[page as usize + 8..][..8], MAGIC);
        // What is not loaded is nowhere.
        assert!(!memory.contains(&9));
    }
}

#[test]
fn each_broken_rule_is_one_line() {
    let writable = SHF_ALLOC | SHF_WRITE | SHF_EXECINSTR;
    let lines = [
        (refused(|made| made.machine = 62), "it is not for AArch64"),
        (
            refused(|made| made.kind = 2),
            "its type is 2, expected 1 (REL)",
        ),
        (
            refused(|made| made.sections[HEAD].name = ".other"),
            "it has not one section",
        ),
        (
            refused(|made| made.sections[CODE].name = HEAD_SECTION),
            "it has not one section",
        ),
        (
            refused(|made| made.sections[HEAD].content[0] = 0),
            "it has not one section",
        ),
        (
            refused(|made| made.sections[HEAD].content[8] = 0),
            "another kernel's build",
        ),
        (
            refused(|made| made.sections[HEAD].content[16] = b'\n'),
            "its name is empty, or not",
        ),
        (
            refused(|made| made.sections[DATA].flags = writable),
            "section .data is writable and executable",
        ),
        (
            refused(|made| made.sections[DATA].kind = SHT_INIT_ARRAY),
            ".data has type 14 and flags 0x3",
        ),
        (
            refused(|made| made.sections[DATA].flags |= SHF_TLS),
            ".data has type 1 and flags 0x403",
        ),
        (
            refused(|made| made.sections[DATA].align = 0x2000),
            "aligned to 0x2000 bytes, expected",
        ),
        (
            refused(|made| made.sections[DATA].align = 24),
            "aligned to 0x18 bytes, expected",
        ),
        (
            refused(|made| made.sections[3].bytes = 8 << 20),
            "more than 0x800000 bytes of memory",
        ),
        (
            refused(|made| made.sections[3].bytes = u64::MAX),
            "more than 0x800000 bytes of memory",
        ),
        (
            refused(|made| made.sections[DATA].bytes = 1 << 20),
            "section .data reaches beyond the end",
        ),
        (
            refused(|made| made.symbols[2].0 = "shout"),
            "exports no function shout",
        ),
        (
            refused(|made| made.symbols[2].1 = 6),
            "symbol print lies in no section",
        ),
        (
            refused(|made| made.changes[0].2 = 311),
            "relocation 311 in section .text is not supported",
        ),
        (
            refused(|made| made.changes[0].3 = -1 << 27),
            "relocation 283 cannot reach symbol print",
        ),
        (
            refused(|made| made.changes[0].3 = 2),
            "relocation 283 cannot reach symbol print",
        ),
        (
            refused(|made| made.changes[0].0 = 8),
            "at 0x8 lies outside of section .text",
        ),
        (
            refused(|made| made.changes[0].1 = 99),
            "its relocation table is missing or damaged",
        ),
        (
            refused(|made| made.symbols[0].0 = "begin"),
            "no function module_init in its code",
        ),
        (
            refused(|made| made.symbols[1].1 = 3),
            "no function module_exit in its code",
        ),
        (
            refused(|made| made.symbols[1].2 = 6),
            "no function module_exit in its code",
        ),
    ];
    for (line, expected) in lines {
        assert!(line.contains(expected), "{line}: {expected}");
    }
}

proptest! {
    #![proptest_config(config(2000, 5))]

    /// Any damage is refused or harmless: nothing panics, and no line has two.
    #[test]
    fn damaged_files_are_read_to_their_end(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = Made::new().file();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        if let Err(error) = loaded(&file, 0x4000) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}
