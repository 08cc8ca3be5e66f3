//! Small ELF files made by hand: valid ones, and ones that break one rule each.

use super::*;
use granule_testing::cases::config;
use proptest::prelude::*;

pub(super) const PLACE: ProgramPlace = ProgramPlace {
    page: 0x1_0000,
    addresses: 0x1_0000..1 << 36,
    movable_at: 0x1_0000_0000,
};

#[derive(Clone, Copy)]
pub(super) struct Header {
    pub(super) kind: u32,
    pub(super) flags: u32,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) file: u64,
    pub(super) memory: u64,
    pub(super) align: u64,
}

pub(super) const TEXT: Header = Header {
    kind: PT_LOAD,
    flags: PF_R | PF_X,
    offset: 0,
    address: 0x20_0000,
    file: 0x300,
    memory: 0x300,
    align: 0x1_0000,
};
pub(super) const DATA: Header = Header {
    kind: PT_LOAD,
    flags: PF_R | PF_W,
    offset: 0x200,
    address: 0x21_0200,
    file: 0x80,
    memory: 0x5000,
    align: 0x1_0000,
};

pub(super) fn elf(kind: u16, machine: u16, entry: u64, headers: &[Header]) -> Vec<u8> {
    let mut file = vec![0u8; 0x400];
    file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    file[16..18].copy_from_slice(&kind.to_le_bytes());
    file[18..20].copy_from_slice(&machine.to_le_bytes());
    file[20] = 1;
    file[24..32].copy_from_slice(&entry.to_le_bytes());
    file[32..40].copy_from_slice(&64u64.to_le_bytes());
    file[52] = 64;
    file[54] = 56;
    file[56] = headers.len() as u8;
    file[58] = 64;
    for (index, header) in headers.iter().enumerate() {
        let at = 64 + index * 56;
        file[at..at + 4].copy_from_slice(&header.kind.to_le_bytes());
        file[at + 4..at + 8].copy_from_slice(&header.flags.to_le_bytes());
        let words = [
            header.offset,
            header.address,
            header.address,
            header.file,
            header.memory,
            header.align,
        ];
        for (word, value) in words.into_iter().enumerate() {
            let at = at + 8 + word * 8;
            file[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    file
}

impl Header {
    pub(super) const fn at(self, address: u64) -> Self {
        Self { address, ..self }
    }

    pub(super) const fn aligned(self, align: u64) -> Self {
        Self { align, ..self }
    }
}

fn with(headers: &[Header]) -> Result<Program, ProgramError> {
    read(&elf(ET_EXEC, EM_AARCH64, 0x20_0100, headers), &PLACE)
}

#[test]
fn a_sound_program_is_read_as_it_is() {
    let program = with(&[TEXT, DATA]).unwrap();
    assert_eq!((program.entry, program.bias), (0x20_0100, 0));
    assert_eq!(program.headers, Some(0x20_0040));
    assert_eq!((program.header_count, program.header_bytes), (2, 56));
    let text = Segment {
        execute: true,
        ..segment(0x20_0000, 0x300, 0..0x300, false)
    };
    let data = segment(0x21_0200, 0x5000, 0x200..0x280, true);
    assert_eq!(data.pages(PLACE.page), 0x21_0000..0x22_0000);
    assert_eq!(program.segments.as_slice(), [text, data]);
}

#[test]
fn a_movable_program_is_placed_where_there_is_room() {
    let headers = [TEXT.at(0), DATA.at(0x1_0200)];
    let program = read(&elf(ET_DYN, EM_AARCH64, 0x100, &headers), &PLACE).unwrap();
    assert_eq!(program.bias, 0x1_0000_0000);
    assert_eq!(program.entry, 0x1_0000_0100);
    assert_eq!(program.segments[1].start, 0x1_0001_0200);
    assert_eq!(program.headers, Some(0x1_0000_0040));
}

#[test]
fn each_broken_rule_is_named() {
    let page = PLACE.page;
    let overlap = |address| ProgramError::Overlap { address, page };
    let mut interpreter = TEXT;
    interpreter.kind = PT_INTERP;
    let mut beyond = TEXT;
    (beyond.file, beyond.memory) = (0x500, 0x500);
    let mut cut = DATA;
    cut.memory = 0x10;
    let mut far = DATA;
    far.offset = u64::MAX;
    let cases: [(&[Header], ProgramError); 9] = [
        (&[], ProgramError::Segments),
        (&[TEXT; 17], overlap(TEXT.address)),
        (&[interpreter, TEXT], ProgramError::Interpreter),
        (&[beyond], ProgramError::Extent(TEXT.address)),
        (&[TEXT, cut], ProgramError::Extent(DATA.address)),
        (&[TEXT, far], ProgramError::Extent(DATA.address)),
        (&[TEXT, DATA.at(1 << 36)], ProgramError::Address(1 << 36)),
        (&[TEXT, DATA.at(0x21_0300)], ProgramError::Offset(0x21_0300)),
        (&[TEXT, DATA.at(0x20_0200)], overlap(0x20_0200)),
    ];
    for (headers, expected) in cases {
        assert_eq!(with(headers), Err(expected));
        assert!(!expected.to_string().contains('\n'));
    }
    let other = |kind, machine, entry| read(&elf(kind, machine, entry, &[TEXT, DATA]), &PLACE);
    assert_eq!(other(1, EM_AARCH64, 0x20_0100), Err(ProgramError::Kind(1)));
    assert_eq!(other(ET_EXEC, 62, 0x20_0100), Err(ProgramError::Machine));
    for address in [0x20_0300, 0x21_0200, 0, 0x20_0102] {
        let refused = other(ET_EXEC, EM_AARCH64, address);
        assert_eq!(refused, Err(ProgramError::Entry(address)));
    }
    let mut file = elf(ET_EXEC, EM_AARCH64, 0x20_0100, &[TEXT, DATA]);
    for length in 0..64 + 2 * 56 {
        assert!(read(&file[..length], &PLACE).is_err(), "{length}");
    }
    // First the class for 32 bits, then the byte order "big endian".
    for (at, value) in [(4, 1), (5, 2)] {
        let old = std::mem::replace(&mut file[at], value);
        assert!(read(&file, &PLACE).is_err());
        file[at] = old;
    }
}

#[test]
fn a_segment_may_share_no_page_only_where_pages_are_large() {
    let near = DATA.at(0x20_1200);
    let file = elf(ET_EXEC, EM_AARCH64, 0x20_0100, &[TEXT, near]);
    assert!(read(&file, &PLACE.with_pages(PageSize::K4)).is_ok());
    let offset = ProgramError::Offset(near.address);
    assert_eq!(read(&file, &PLACE), Err(offset));
}

proptest! {
    #![proptest_config(config(256, 16))]

    #[test]
    fn every_accepted_program_can_be_loaded(
        changes in prop::collection::vec((0usize..0x200, any::<u8>()), 0..6),
        movable in any::<bool>(),
    ) {
        let kind = if movable { ET_DYN } else { ET_EXEC };
        let mut file = elf(kind, EM_AARCH64, 0x20_0100, &[TEXT, DATA]);
        for (at, value) in changes {
            file[at] = value;
        }
        if let Ok(program) = read(&file, &PLACE) {
            let mut end = PLACE.addresses.start;
            for segment in &program.segments {
                let pages = segment.pages(PLACE.page);
                prop_assert!(end <= pages.start && pages.start < pages.end);
                prop_assert!(pages.end <= PLACE.addresses.end);
                prop_assert!(file.get(segment.file.clone()).is_some());
                prop_assert!(segment.file.len() as u64 <= segment.end - segment.start);
                end = pages.end;
            }
        }
    }
}

/// Bytes of the file in memory, zeros to the end of 64K included.
const IN_MEMORY: u64 = 0x3_0000;

fn segment(start: u64, bytes: u64, file: Range<usize>, write: bool) -> Segment {
    Segment {
        start,
        end: start + bytes,
        file,
        read: true,
        write,
        execute: false,
    }
}

#[test]
fn pages_of_content_alone_are_the_files() {
    const AT: u64 = 0x20_0000;
    let (k4, k16, k64) = (0x1000, 0x4000, 0x1_0000);
    // Addresses are from `AT` on: start, bytes, content, whether it is writable, page, shared pages.
    for (start, bytes, file, write, page, expected) in [
        (0, 0x1_2345, 0..0x1_2345, false, k4, 0..0x1_3000),
        (0, 0x1_2345, 0..0x1_2345, false, k64, 0..0x2_0000),
        // Inside a page.
        (0x1234, 0x3000, 0x1234..0x4234, false, k64, 0..0x1_0000),
        // Zeros behind it.
        (0, 0x5000, 0..0x1800, false, k4, 0..0x1000),
        // Writable: with other pages, within one page, across two.
        (0x800, 0x5000, 0x800..0x5800, true, k4, 0x1000..0x5000),
        (0x800, 0x700, 0x800..0xf00, true, k4, 0x800..0x800),
        (0x800, 0x1000, 0x800..0x1800, true, k4, 0x800..0x800),
        // Elsewhere in the page than in the file, and the same for 4K.
        (0x1000, 0x4000, 0x2000..0x6000, false, k16, 0x1000..0x1000),
        (0x1000, 0x4000, 0x2000..0x6000, false, k4, 0x1000..0x5000),
        // Only zeros.
        (0, 0x4000, 0x2000..0x2000, true, k4, 0..0),
        // To the end of the file.
        (
            0x2_f000,
            k4,
            0x2_f000..0x3_0000,
            false,
            k4,
            0x2_f000..0x3_0000,
        ),
    ] {
        let segment = segment(AT + start, bytes, file, write);
        let expected = AT + expected.start..AT + expected.end;
        let shared = segment.shared_pages(page, IN_MEMORY);
        assert_eq!(shared, expected, "{segment:x?} {page:#x}");
        let whole = segment.pages(page);
        assert!(shared.is_empty() || whole.start <= shared.start && shared.end <= whole.end);
        // Nothing behind the content in memory.
        let end = shared.end - segment.start + segment.file.start as u64;
        assert!(shared.is_empty() || end <= IN_MEMORY, "{segment:x?}");
    }
    // More than the file has.
    let last = segment(0x22_f000, 0x800, 0x2_f000..0x2_f800, false);
    assert_eq!(last.shared_pages(0x1000, 0x2_f800), 0x22_f000..0x22_f000);
}
