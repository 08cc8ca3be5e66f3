//! Files that allow several sizes, one, or none; wishes of all kinds; and every choice against a table.

use super::super::tests::{DATA, Header, PLACE, TEXT, elf};
use super::*;
use PageSize::{K4, K16, K64};
use elf::abi::{EM_AARCH64, ET_DYN, ET_EXEC};
use granule_testing::cases::config;
use proptest::prelude::*;

/// The place of segments that need no more than pages of `align`.
fn linked(align: u64) -> Vec<u8> {
    elf(ET_EXEC, EM_AARCH64, 0x20_0100, &both(align))
}

fn both(align: u64) -> [Header; 2] {
    let data = DATA.at(TEXT.address + align + DATA.offset);
    [TEXT, data].map(|header| header.aligned(align))
}

/// As [`linked`], with a note: its name, type and descriptor.
fn with_note(align: u64, name: &[u8], kind: u32, descriptor: &[u8]) -> Vec<u8> {
    let padded = |bytes: &[u8]| bytes.len().next_multiple_of(4);
    let mut note = Vec::new();
    for word in [name.len() as u32, descriptor.len() as u32, kind] {
        note.extend_from_slice(&word.to_le_bytes());
    }
    for part in [name, descriptor] {
        let end = note.len() + padded(part);
        note.extend_from_slice(part);
        note.resize(end, 0);
    }
    let (offset, file) = (0x280, note.len() as u64);
    let noted = Header {
        kind: PT_NOTE,
        offset,
        file,
        memory: file,
        align: 4,
        ..TEXT
    };
    let [text, data] = both(align);
    let mut made = elf(ET_EXEC, EM_AARCH64, 0x20_0100, &[text, noted, data]);
    made[offset as usize..][..note.len()].copy_from_slice(&note);
    made
}

fn asking(align: u64, size: PageSize) -> Vec<u8> {
    with_note(align, b"Granule\0", 1, &size.bytes().to_le_bytes())
}

fn at(kernel: PageSize) -> ProgramPlace {
    ProgramPlace {
        page: kernel.bytes(),
        ..PLACE
    }
}

fn of(sizes: &[PageSize]) -> SizeSet {
    sizes.iter().copied().collect()
}

const NONE: Wishes = Wishes {
    process: None,
    command_line: None,
};

#[track_caller]
fn chosen(file: &[u8], kernel: PageSize, usable: SizeSet, wishes: &Wishes) -> Chosen {
    choose(file, &at(kernel), usable, wishes).unwrap()
}

#[test]
fn the_default_is_the_size_of_the_kernel_or_the_largest() {
    // The kernel's size, what programs can have, what the file is linked for, and the choice.
    for (kernel, usable, align, size) in [
        (K4, SizeSet::ALL, K64, K4),
        (K16, SizeSet::ALL, K64, K16),
        (K64, SizeSet::ALL, K64, K64),
        (K64, SizeSet::ALL, K16, K16),
        (K64, SizeSet::ALL, K4, K4),
        (K16, SizeSet::ALL, K4, K4),
        (K64, of(&[K4, K64]), K16, K4),
        // Not even the kernel's: the build, or RAM beyond its reach.
        (K64, of(&[K4, K16]), K64, K16),
    ] {
        let file = linked(align.bytes());
        let made = chosen(&file, kernel, usable, &NONE);
        let choice = (made.size, made.refused);
        assert_eq!(choice, (size, None), "{kernel} {usable} {align}");
        assert_eq!(Ok(made.program), read(&file, &at(size)));
    }
}

#[test]
fn process_precedes_note_precedes_command_line() {
    let file = asking(0x1_0000, K16);
    let process = Wishes {
        process: Some(K4),
        command_line: Some(K64),
    };
    assert_eq!(chosen(&file, K64, SizeSet::ALL, &process).size, K4);
    let line = Wishes {
        process: None,
        ..process
    };
    assert_eq!(chosen(&file, K4, SizeSet::ALL, &line).size, K16);
    assert_eq!(chosen(&file, K4, SizeSet::ALL, &NONE).size, K16);
    let plain = linked(0x1_0000);
    assert_eq!(chosen(&plain, K4, SizeSet::ALL, &line).size, K64);
}

#[test]
fn a_note_has_four_bytes_or_eight_and_any_other_says_nothing() {
    let wants =
        |name: &[u8], kind, descriptor: &[u8]| note(&with_note(0x1_0000, name, kind, descriptor));
    let four: &[u8] = &[0, 0x40, 0, 0];
    for (name, kind, descriptor, expected) in [
        (&b"Granule\0"[..], 1, four, Some(0x4000)),
        (b"Granule", 1, &[0, 0, 1, 0, 0, 0, 0, 0], Some(0x1_0000)),
        (b"Granule\0", 2, four, None),
        (b"GNU\0", 1, four, None),
        (b"Granules", 1, four, None),
        (b"Granule\0", 1, &[0, 0x40], None),
        (b"Granule\0", 1, &[], None),
    ] {
        assert_eq!(wants(name, kind, descriptor), expected, "{name:?} {kind}");
    }
    // The end of the file cuts the note off: the rest of the headers is not looked at.
    let file = asking(0x1_0000, K16);
    assert_eq!(note(&file[..0x288]), None);
    assert_eq!(note(b"\x7fELF"), None);
}

#[test]
fn a_wish_that_cannot_be_granted_leaves_the_default_and_a_line() {
    let wish = |size| Wishes {
        process: Some(size),
        ..NONE
    };
    let line = Wishes {
        command_line: Some(K64),
        ..NONE
    };
    let small = linked(0x1000);
    let file = linked(0x1_0000);
    let asking = asking(0x4000, K64);
    let (all, usable) = (SizeSet::ALL, of(&[K16, K64]));
    for (file, kernel, usable, wishes, size, says) in [
        (&small, K64, all, wish(K16), K4, "pages of 16384 bytes: "),
        (&file, K64, usable, wish(K4), K64, "programs have 16k, 64k"),
        (&asking, K16, usable, NONE, K16, "its note requests"),
        (&small, K4, all, line, K4, "user_pagesize="),
    ] {
        let made = chosen(file, kernel, usable, &wishes);
        assert_eq!(made.size, size);
        let line = made.refused.unwrap().to_string();
        assert!(line.contains(says) && !line.contains('\n'), "{line}");
    }
    let odd = with_note(0x1_0000, b"Granule\0", 1, &[1, 0, 0, 0]);
    let made = chosen(&odd, K4, SizeSet::ALL, &NONE);
    assert_eq!(made.refused.map(|refused| refused.why), Some(Why::NoSize));
}

#[test]
fn an_error_says_which_sizes_there_are_and_which_the_file_allows() {
    let error = choose(&linked(0x1000), &at(K64), of(&[K16, K64]), &NONE).unwrap_err();
    let expected = ProgramError::NoPageSize {
        usable: of(&[K16, K64]),
        allowed: of(&[K4]),
    };
    assert_eq!(error, expected);
    let line = error.to_string();
    assert!(line.contains("have 16k, 64k on this boot"), "{line}");
    assert!(line.contains("allows 4k"), "{line}");
    // A fault with every size is reported as it is.
    let none = elf(ET_EXEC, 62, 0x20_0100, &[TEXT]);
    let error = choose(&none, &at(K64), SizeSet::ALL, &NONE);
    assert_eq!(error, Err(ProgramError::Machine));
    let (address, page) = (0x20_0200, 0x1000);
    let shared = elf(ET_EXEC, EM_AARCH64, 0x20_0100, &[TEXT, DATA.at(address)]);
    let error = choose(&shared, &at(K64), SizeSet::ALL, &NONE);
    assert_eq!(error, Err(ProgramError::Overlap { address, page }));
}

#[test]
fn a_file_allows_no_more_than_its_largest_alignment() {
    // Far enough from each other for 64K, but linked for less.
    for (align, page, is_allowed) in [
        (0x1000, 0x1000, true),
        (0x1000, 0x4000, false),
        (0x4000, 0x4000, true),
        (0x4000, 0x1_0000, false),
        (0, 0x1000, true),
        (0, 0x4000, false),
        (1 << 21, 0x1_0000, true),
    ] {
        let headers = [TEXT, DATA].map(|header| header.aligned(align));
        let file = elf(ET_EXEC, EM_AARCH64, 0x20_0100, &headers);
        let read = read(&file, &ProgramPlace { page, ..PLACE });
        let bytes = align.max(0x1000);
        let refused = Err(ProgramError::Alignment { bytes, page });
        assert_eq!(read.is_ok(), is_allowed, "{align:#x} {page:#x}");
        assert!(is_allowed || read == refused, "{read:?}");
    }
    // One large segment is enough.
    let one = [TEXT, DATA.aligned(8)];
    assert!(read(&elf(ET_EXEC, EM_AARCH64, 0x20_0100, &one), &PLACE).is_ok());
}

fn any_size() -> impl Strategy<Value = PageSize> {
    prop::sample::select(&PageSize::ALL[..])
}

proptest! {
    #![proptest_config(config(256, 16))]

    #[test]
    fn every_choice_can_be_had_and_is_as_the_order_says(
        align in any_size(),
        noted in prop::option::of(any_size()),
        process in prop::option::of(any_size()),
        command_line in prop::option::of(any_size()),
        kernel in any_size(),
        has in prop::array::uniform3(any::<bool>()),
        movable in any::<bool>(),
    ) {
        let usable = PageSize::ALL.into_iter().zip(has);
        let usable: SizeSet = usable.filter_map(|(size, has)| has.then_some(size)).collect();
        let mut file = match noted {
            Some(size) => asking(align.bytes(), size),
            None => linked(align.bytes()),
        };
        if movable {
            file[16] = ET_DYN as u8;
        }
        let ok = |size: &PageSize| usable.has(*size) && *size <= align;
        let wished = process.or(noted).or(command_line);
        let mut expected = PageSize::ALL.into_iter().rev().filter(ok).collect::<Vec<_>>();
        expected.splice(0..0, Some(kernel).filter(ok));
        expected.splice(0..0, wished.filter(ok));
        match choose(&file, &at(kernel), usable, &Wishes { process, command_line }) {
            Ok(made) => {
                prop_assert_eq!(Some(&made.size), expected.first());
                let is_refused = wished.is_some_and(|size| !ok(&size));
                prop_assert_eq!(made.refused.is_some(), is_refused);
                prop_assert_eq!(Ok(made.program), read(&file, &at(made.size)));
            }
            Err(error) => {
                prop_assert!(expected.is_empty(), "{:?}", error);
                let is_it = matches!(error, ProgramError::NoPageSize { .. });
                prop_assert!(is_it, "{:?}", error);
            }
        }
    }

    #[test]
    fn a_broken_file_is_refused_or_can_be_loaded(
        changes in prop::collection::vec((0usize..0x300, any::<u8>()), 0..6),
        kernel in any_size(),
    ) {
        let mut file = asking(0x1_0000, K16);
        for (at, value) in changes {
            file[at] = value;
        }
        match choose(&file, &at(kernel), SizeSet::ALL, &NONE) {
            Ok(made) => prop_assert_eq!(Ok(made.program), read(&file, &at(made.size))),
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }
}
