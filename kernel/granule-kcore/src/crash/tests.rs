use super::core_file::{ALIGNMENT, CoreError, CoreFile, FilePiece, header_bytes, segments};
use super::header::{self, DeadKernel};
use super::registers::{self, CPU_BYTES};
use super::*;
use crate::exception_frame::Frame;
use elf::ElfBytes;
use elf::endian::LittleEndian;
use granule::arch::{CpuFeatures, Geometry, PageSize, Regime, VaRange, VirtualAddress};
use granule_kexec::PhysRange;
use proptest::prelude::*;

const START: u64 = 0x4000_0000;
const RAM: [PhysRange; 2] = [
    PhysRange::new(0x4800_0000, 0x1_9000),
    PhysRange::new(0x1_0000_0000, 0x4000),
];

fn dead() -> DeadKernel {
    let cpu = CpuFeatures {
        mmfr0: 0x0010_0005,
        ..CpuFeatures::NONE
    };
    DeadKernel {
        version: "1.2.3",
        geometry: Geometry::new(&cpu, PageSize::K16, 47, VaRange::Upper, Regime::El1And0).unwrap(),
        tcr: 0x11,
        mair: 0x22,
        root: 0x4801_4000,
        distance: 0xffff_8000_0000_0000,
        image_distance: 0xffff_ffff_4000_0000,
        text: 0xffff_ffff_8800_0000,
    }
}

fn frame(number: u64) -> Frame {
    Frame {
        x: core::array::from_fn(|x| number << 8 | x as u64),
        sp: number,
        elr: number + 1,
        spsr: number + 2,
        esr: 0,
        far: 0,
        record: [0; 2],
    }
}

/// Memory with the header at [`START`]: the notes of CPU 0 and 2, none of CPU 1. RAM has its address in each word.
struct Memory(Vec<u8>);

impl Memory {
    fn new() -> Self {
        let layout = header::layout(3, RAM.len()).unwrap();
        let mut bytes = vec![0xff; layout.bytes];
        assert_eq!(
            header::write(&mut bytes, START, 3, &RAM, &dead()),
            Some(layout)
        );
        for cpu in [0, 2] {
            let at = layout.notes + cpu * CPU_BYTES;
            let notes = (&mut bytes[at..at + CPU_BYTES]).try_into().unwrap();
            registers::write(notes, &frame(cpu as u64 + 5), 70 + cpu as u32);
        }
        Self(bytes)
    }

    fn range(&self) -> PhysRange {
        PhysRange::new(START, self.0.len() as u64)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let end = at + into.len() as u64;
        if let Some(own) = at.checked_sub(START).map(|at| at as usize)
            && let Some(bytes) = self.0.get(own..own + into.len())
        {
            into.copy_from_slice(bytes);
            return true;
        }
        for (to, at) in into.iter_mut().zip(at..) {
            *to = (at & !7).to_le_bytes()[(at % 8) as usize];
        }
        RAM.iter()
            .any(|ram| ram.start <= at && end <= ram.end().unwrap())
    }

    fn file(&self) -> Result<CoreFile<Vec<u8>, Vec<FilePiece>>, CoreError> {
        let count = segments(&self.range(), |at, into: &mut [u8]| self.read(at, into))?;
        let headers = vec![0; header_bytes(count)];
        CoreFile::new(
            &self.range(),
            headers,
            vec![FilePiece::default(); count],
            |at, into: &mut [u8]| self.read(at, into),
        )
    }
}

fn whole(memory: &Memory) -> Vec<u8> {
    let file = memory.file().unwrap();
    let mut bytes = vec![0xee; file.bytes() as usize];
    assert!(file.read(0, &mut bytes, |at, into: &mut [u8]| memory.read(at, into)));
    bytes
}

#[test]
fn another_reader_finds_registers_text_and_ram() {
    let bytes = whole(&Memory::new());
    let file = ElfBytes::<LittleEndian>::minimal_parse(&bytes).unwrap();
    let segments: Vec<_> = file.segments().unwrap().iter().collect();
    assert_eq!(segments.len(), 1 + RAM.len());
    let notes: Vec<_> = file.segment_data_as_notes(&segments[0]).unwrap().collect();
    assert_eq!(notes.len(), 3);
    let data = |number: usize| match &notes[number] {
        elf::note::Note::Unknown(note) => (note.n_type, note.name_str().unwrap(), note.desc),
        other => panic!("{other:?}"),
    };
    for (number, cpu) in [(0, 5), (1, 7)] {
        let (kind, name, status) = data(number);
        assert_eq!((kind, name, status.len()), (1, "CORE", 392));
        let word = |at: usize| u64::from_le_bytes(status[at..at + 8].try_into().unwrap());
        assert_eq!(word(32) as u32, 65 + cpu as u32);
        let registers: Vec<_> = (0..34).map(|index| word(112 + 8 * index)).collect();
        let frame = frame(cpu);
        assert_eq!(registers[..31], frame.x);
        assert_eq!(registers[31..], [frame.sp, frame.elr, frame.spsr]);
    }
    let (kind, name, text) = data(2);
    assert_eq!((kind, name), (0, "VMCOREINFO"));
    let text = str::from_utf8(text).unwrap();
    for line in [
        "OSRELEASE=granule-1.2.3",
        "PAGESIZE=16384",
        "NUMBER(VA_BITS)=47",
        "NUMBER(TCR_EL1_T1SZ)=0x11",
        "NUMBER(PHYS_OFFSET)=0x0",
        "NUMBER(kimage_voffset)=0xffffffff40000000",
        "SYMBOL(_stext)=ffffffff88000000",
        "SYMBOL(swapper_pg_dir)=ffffffff88014000",
        "GRANULE(table_root)=0x48014000",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
    }
    for (load, ram) in segments[1..].iter().zip(&RAM) {
        assert_eq!(
            (load.p_paddr, load.p_filesz, load.p_memsz),
            (ram.start, ram.bytes, ram.bytes)
        );
        assert_eq!(
            load.p_vaddr,
            VirtualAddress(ram.start.wrapping_add(dead().distance)).0
        );
        assert!(load.p_offset.is_multiple_of(ALIGNMENT));
        let words = file.segment_data(load).unwrap().chunks_exact(8);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        assert!(words.eq((ram.start..ram.end().unwrap()).step_by(8)));
    }
}

#[test]
fn damage_is_named() {
    for (at, value, expected) in [
        (0, 0, CoreError::NotACore),
        (4, 1, CoreError::NotACore),
        (16, 2, CoreError::NotACore),
        (18, 62, CoreError::NotACore),
        (32, 65, CoreError::NotACore),
        (54, 55, CoreError::NotACore),
        (56, 0, CoreError::Segments(0)),
        (57, 1, CoreError::Segments(262)),
        // The bytes of the fourth CPU's RAM.
        (
            FILE_HEADER + 4 * SEGMENT_HEADER + 47,
            0xff,
            CoreError::Segment(4),
        ),
    ] {
        let mut memory = Memory::new();
        memory.0[at] = value;
        assert_eq!(memory.file().unwrap_err(), expected, "byte {at}");
    }
    let mut short = Memory::new();
    short.0.truncate(FILE_HEADER - 1);
    assert_eq!(short.file().unwrap_err(), CoreError::Unreadable);
    assert_eq!(header::layout(0xffff, 2), None);
    assert!(header::write(&mut [0; 512], START, 1, &RAM, &dead()).is_none());
}

proptest! {
    /// Parts are what the whole has there, and damage anywhere ends in a bounded file or an error.
    #[test]
    fn parts_agree_with_the_whole(at in 0u64..0x3_0000, bytes in 1usize..0x1_2000, damage in any::<(u16, u8)>()) {
        let mut memory = Memory::new();
        let all = whole(&memory);
        let file = memory.file().unwrap();
        let mut part = vec![0xee; bytes];
        file.read(at, &mut part, |at, into: &mut [u8]| memory.read(at, into));
        let end = all.len().min(at as usize + bytes);
        let expected = all.get(at as usize..end).unwrap_or_default();
        prop_assert_eq!(&part[..expected.len()], expected);
        prop_assert!(part[expected.len()..].iter().all(|byte| *byte == 0));

        let index = usize::from(damage.0) % memory.0.len();
        memory.0[index] = damage.1;
        if let Ok(file) = memory.file() {
            file.read(at, &mut part, |at, into: &mut [u8]| memory.read(at, into));
        }
    }
}
