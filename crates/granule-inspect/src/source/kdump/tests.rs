//! kdump files made by hand: each compression, whole, flattened, cut off and damaged.

use super::*;
use granule::arch::PhysicalAddress;
use granule_testing::dumps::{Kdump, cpu_note, elf_core, flattened};
use std::io::Write;

fn zlib(page: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(page).unwrap();
    encoder.finish().unwrap()
}

/// Page `n` has bytes `n`, `n + 1`, … so that a page in the wrong place is noticed.
fn page(number: u64, bytes: u32) -> Vec<u8> {
    (0..bytes)
        .map(|at| (u64::from(at / 64) + number) as u8)
        .collect()
}

/// Page 0 is absent from the file, 1 to 5 are stored in each way, 6 to 39 are absent but the last.
fn dump(page_bytes: u32) -> Kdump {
    let page = |number| page(number, page_bytes);
    let snappy = snap::raw::Encoder::new().compress_vec(&page(3)).unwrap();
    let zstd = ruzstd::encoding::compress_to_vec(
        page(5).as_slice(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    let stored = [
        (1, (page(1), 0)),
        (2, (zlib(&page(2)), 1)),
        (3, (snappy, 4)),
        (4, (lzokay::compress::compress(&page(4)).unwrap(), 2)),
        (5, (zstd, 0x20)),
        (39, (zlib(&page(39)), 1)),
    ];
    Kdump {
        page_bytes,
        pages: 40,
        stored: stored.into(),
        level: 0,
        vmcoreinfo: b"PAGESIZE=4096\nSYMBOL(swapper_pg_dir)=ffff800081b4c000\n".to_vec(),
        notes: cpu_note(1, 2, 3),
        ..Kdump::default()
    }
}

/// The bitmaps of these machines have up to 2^37 bytes: nothing may scale with that.
#[test]
fn memory_at_any_address_is_read() {
    for page_bytes in [1 << 12, 1 << 14, 1 << 16] {
        let bytes = u64::from(page_bytes);
        for shift in [31, 43, 46, 48, 51] {
            let first = (1 << shift) / bytes;
            let stored =
                (first - 1..first + 3).map(|number| (number, (page(number, page_bytes), 0)));
            let dump = Kdump {
                pages: first + 3,
                stored_alone: true,
                stored: stored.collect(),
                ..dump(page_bytes)
            };
            let file = tempfile::tempfile().unwrap();
            // Some file systems have no files of 16 TiB.
            if dump.write_to(&file).is_err() && shift > 46 {
                continue;
            }
            let (memory, facts) = open(crate::source::bytes::DumpFile::new(file).unwrap()).unwrap();
            assert!(facts.notes.is_empty(), "{:?}", facts.notes);
            let range = (first - 1) * bytes..(first + 3) * bytes;
            assert_eq!(memory.ranges(), vec![range; 1]);
            for number in first - 1..first + 3 {
                let mut buffer = vec![0; page_bytes as usize];
                memory
                    .read(PhysicalAddress(number * bytes), &mut buffer)
                    .unwrap();
                assert_eq!(buffer, page(number, page_bytes), "{number:#x}");
            }
            for absent in [0, first / 2, first - 2, first + 3] {
                let error = memory
                    .read(PhysicalAddress(absent * bytes), &mut [0; 4])
                    .unwrap_err();
                assert!(error.to_string().starts_with("no memory at"), "{error}");
            }
        }
    }
}

#[test]
fn what_is_cut_off_is_the_first_thing_that_is_missing() {
    let whole = dump(4096).file();
    let stream = flattened_in_order(&whole, 1000);
    let note = |file: &[u8]| match open(file.to_vec()) {
        Ok((_, facts)) => facts.missing.unwrap_or_default(),
        Err(error) => error.to_string(),
    };
    assert_eq!(
        (note(&whole), note(&stream)),
        (String::new(), String::new())
    );
    let end = stream.len();
    for (file, words) in [
        (
            &whole[..whole.len() - 1],
            "the kdump file is cut off: 1 bytes of its pages are missing",
        ),
        (
            &whole[..4 * 4096 + 30],
            "the kdump file is cut off in its page descriptors",
        ),
        (
            &whole[..3 * 4096 - 1],
            "the kdump file is damaged: its bitmaps: the file ends before that",
        ),
        (
            &whole[..4096],
            "the kdump file is damaged: its sub header: the file ends before that",
        ),
        (
            &stream[..end - 1],
            "the flattened dump is cut off: it has no mark of its end",
        ),
        (
            &stream[..end - 17],
            "cut off: 1 bytes of its last piece are missing, or more",
        ),
        (
            &stream[..9000],
            "the flattened dump is cut off: 176 bytes of its last piece are missing, or more: the kdump",
        ),
        (
            &stream[..4096 + 16],
            "cut off: 1000 bytes of its last piece are missing, or more, and no piece",
        ),
        (
            &stream[..4096],
            "the flattened dump is cut off: it has no mark of its end, and no piece",
        ),
    ] {
        let note = note(file);
        assert!(note.contains(words), "{}: {note}", file.len());
    }
}

/// As QEMU writes them: pieces in the order of their offsets.
fn flattened_in_order(file: &[u8], piece: usize) -> Vec<u8> {
    let mut stream = flattened(&[], 1);
    let end = stream.split_off(4096);
    for (number, bytes) in file.chunks(piece).enumerate() {
        stream.extend(((number * piece) as u64).to_be_bytes());
        stream.extend((bytes.len() as u64).to_be_bytes());
        stream.extend(bytes);
    }
    [stream, end].concat()
}

#[test]
fn pieces_are_found_again_in_any_order_and_however_many_there_are() {
    // More groups of pieces than are kept, from both ends, and pieces that replace others of their group and of
    // groups before.
    let mut file: Vec<u8> = (0..600_000_u32)
        .map(|at| (u64::from(at).pow(2) >> 7) as u8)
        .collect();
    let mut stream = flattened_in_order(&file[..300_000], 1);
    stream.truncate(stream.len() - 16);
    stream.extend(&flattened(&file[300_000..], 1)[4096..]);
    for (number, head) in (0..300_000).zip((4096 + 300_000 * 17..).step_by(17)) {
        let offset = u64::from_be_bytes(stream[head..head + 8].try_into().unwrap());
        assert_eq!(offset, 299_999 - number);
        stream[head..head + 8].copy_from_slice(&(offset + 300_000).to_be_bytes());
    }
    stream.truncate(stream.len() - 16);
    for (offset, bytes) in [(100_u64, 4000_u64), (200, 5), (203, 1)] {
        stream.extend(offset.to_be_bytes());
        stream.extend(bytes.to_be_bytes());
        stream.extend(vec![bytes as u8; bytes as usize]);
        file[offset as usize..][..bytes as usize].fill(bytes as u8);
    }
    stream.extend([0xff; 16]);
    let real = flattened::Flattened::new(stream).unwrap();
    assert_eq!((real.bytes(), real.cut_off()), (600_000, None));
    for start in (0..599_000_u32)
        .step_by(9973)
        .rev()
        .chain((0..4200_u32).step_by(50))
    {
        let mut read = vec![0; 1000];
        real.read_at(start.into(), &mut read).unwrap();
        assert_eq!(read, file[start as usize..][..1000], "{start}");
    }
    assert!(real.read_at(599_001, &mut [0; 1000]).is_err());
}

#[test]
fn a_limit_that_is_hit_is_named_and_is_no_damage() {
    let mut file = dump(4096).file();
    file[4096 + 40..4096 + 48].copy_from_slice(&(65_u64 << 20).to_le_bytes());
    file.resize(66 << 20, 0);
    let (_, facts) = open(file).unwrap();
    assert_eq!(
        facts.notes,
        ["VMCOREINFO cannot be read: it has 68157440 bytes, and at most 67108864 are read"]
    );
    let error = unread("its x", &std::io::ErrorKind::FileTooLarge.into()).to_string();
    assert!(
        error.starts_with("the kdump file cannot be read: its x"),
        "{error}"
    );
}

#[test]
fn pages_of_each_compression() {
    for page_bytes in [1 << 12, 1 << 14, 1 << 16] {
        let file = dump(page_bytes).file();
        for file in [flattened(&file, 1000), flattened(&file, 70_000), file] {
            let (memory, facts) = open(file).unwrap();
            let bytes = u64::from(page_bytes);
            assert_eq!(memory.ranges(), [bytes..6 * bytes, 39 * bytes..40 * bytes]);
            // Twice, so that the second comes from the cache.
            for number in [1, 2, 3, 4, 5, 39, 1, 2, 3, 4, 5, 39] {
                let mut buffer = vec![0; page_bytes as usize];
                let address = PhysicalAddress(number * bytes);
                memory.read(address, &mut buffer).unwrap();
                assert_eq!(buffer, page(number, page_bytes), "{number}");
            }
            let mut across = [0; 4];
            memory
                .read(PhysicalAddress(3 * bytes - 2), &mut across)
                .unwrap();
            let (two, three) = (page(2, page_bytes), page(3, page_bytes));
            assert_eq!(across[..2], two[two.len() - 2..]);
            assert_eq!(across[2..], three[..2]);
            for (absent, words) in [
                (0, "the memory at 0x0 is not in the dump"),
                (6 * bytes, " is not in the dump"),
                (40 * bytes, "no memory at 0x"),
                (u64::MAX - 1, "no memory at 0x"),
            ] {
                let error = memory
                    .read(PhysicalAddress(absent), &mut across)
                    .unwrap_err();
                let error = error.to_string();
                assert!(error.contains(words), "{absent:#x}: {error}");
            }
            assert_eq!(facts.cpus[0].get("pc"), Some(2));
            assert!(facts.vmcoreinfo.unwrap().contains("swapper_pg_dir"));
        }
    }
}

#[test]
fn pages_that_were_left_out_are_not_taken_for_zeros() {
    // As makedumpfile does with level 31: pages of zeros share what is stored of one.
    let mut dump = Kdump {
        level: 31,
        ..dump(4096)
    };
    dump.stored.insert(20, (zlib(&[0; 4096]), 1));
    let (memory, facts) = open(dump.file()).unwrap();
    assert!(facts.notes.is_empty(), "{:?}", facts.notes);
    let mut buffer = [1; 4096];
    memory
        .read(PhysicalAddress(20 * 4096), &mut buffer)
        .unwrap();
    assert_eq!(buffer, [0; 4096]);
    let error = memory
        .read(PhysicalAddress(21 * 4096), &mut buffer)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the memory at 0x15000 is not in the dump"
    );
    assert_eq!(memory.ranges().len(), 3);
}

/// All that can be done with a file, whatever it is.
fn exercise(file: Vec<u8>) -> Option<usize> {
    let (memory, facts) = open(file).ok()?;
    assert!(facts.notes.iter().all(|note| note.lines().count() == 1));
    let mut read = 0;
    for range in memory.ranges() {
        assert!(range.start < range.end);
        for page in (range.start..range.end).step_by(4096).take(50) {
            read += usize::from(memory.read(PhysicalAddress(page), &mut [0; 4096]).is_ok());
        }
    }
    Some(read)
}

#[test]
fn a_file_that_is_cut_off_reads_as_far_as_it_goes() {
    let whole = dump(4096).file();
    let streams = [flattened(&whole, 1 << 20), whole.clone()];
    for file in streams {
        let mut last = 0;
        for end in (0..file.len()).step_by(64).chain([file.len()]) {
            let read = exercise(file[..end].to_vec()).unwrap_or(0);
            assert!(read >= last, "a longer file has fewer pages: {end}");
            last = read;
        }
        assert_eq!(last, 6);
    }
}

#[test]
fn hostile_numbers_end_in_errors() {
    let whole = dump(4096).file();
    let headers = (424..464).chain(4096..4096 + 104);
    let descriptors = 4 * 4096..4 * 4096 + 6 * 24;
    for field in headers.chain(descriptors).step_by(4) {
        for hostile in [0, 1, 2, 0x7fff_ffff, u32::MAX, 1 << 16, 1 << 31] {
            let mut file = whole.clone();
            file[field..field + 4].copy_from_slice(&hostile.to_le_bytes());
            exercise(file);
        }
    }
    // Flattened: pieces that lie anywhere.
    let stream = flattened(&whole, 1 << 20);
    for field in 4096..4112 {
        for hostile in [0, 0x7f, 0x80, 0xff] {
            let mut file = stream.clone();
            file[field] = hostile;
            exercise(file);
        }
    }
}

#[test]
fn a_core_may_be_flattened_too() {
    let core = elf_core(&[(0x4000_0000, vec![5; 8192])], &cpu_note(1, 2, 3));
    let (memory, facts) = open(flattened(&core, 1000)).unwrap();
    assert_eq!(memory.ranges().first(), Some(&(0x4000_0000..0x4000_2000)));
    let mut word = [0; 2];
    memory
        .read(PhysicalAddress(0x4000_1000), &mut word)
        .unwrap();
    assert_eq!((word, facts.cpus.len()), ([5, 5], 1));
    // A segment of half the address space, with a piece at its end: a search would not end.
    let mut far = core;
    far[64 + 56 + 32..64 + 56 + 40].copy_from_slice(&(1_u64 << 62).to_le_bytes());
    let mut stream = flattened(&far, 1 << 20);
    let end = stream.len() - 16;
    stream.splice(end..end, [1_u64 << 61, 8, 0].map(u64::to_be_bytes).concat());
    let error = open(stream).err().unwrap().to_string();
    assert!(error.contains("a core with holes"), "{error}");
}

#[test]
fn a_flattened_file_has_no_more_pages_than_bytes() {
    // Pages beyond the end of a flattened file are more than it has.
    let mut dump = dump(4096);
    dump.pages = 1 << 16;
    let mut file = dump.file();
    let dumped = 2 * 4096 + 2 * 4096..2 * 4096 + 4 * 4096;
    file[dumped].fill(0xff);
    let mut stream = flattened(&file, 1 << 20);
    let end = stream.len() - 16;
    stream.splice(end..end, [1_u64 << 61, 8, 0].map(u64::to_be_bytes).concat());
    let error = open(stream).err().unwrap().to_string();
    assert!(error.contains("more pages than the file"), "{error}");
}

#[test]
fn damaged_pages_are_reported_with_their_reason() {
    for (flags, words) in [
        (1, "zlib: "),
        (2, "lzo: "),
        (4, "snappy: "),
        (0x20, "zstd: "),
        (3, "compression 0x3 is not known"),
        (0, "expands to 9 bytes instead of 4096"),
    ] {
        let mut dump = dump(4096);
        dump.stored.insert(2, (b"\xf1damaged!".to_vec(), flags));
        let (memory, _) = open(dump.file()).unwrap();
        let error = memory
            .read(PhysicalAddress(2 * 4096), &mut [0; 8])
            .unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(words) && error.contains("0x2000"),
            "{flags}: {error}"
        );
    }
    let mut dump_of_much = dump(4096);
    dump_of_much.stored.insert(2, (vec![0; 4097], 0));
    let (memory, _) = open(dump_of_much.file()).unwrap();
    let error = memory
        .read(PhysicalAddress(2 * 4096), &mut [0; 8])
        .unwrap_err();
    assert!(
        error.to_string().contains("4097 bytes are stored for it"),
        "{error}"
    );
    // A small page that becomes large.
    for (flags, stored) in [
        (1, zlib(&vec![0; 1 << 16])),
        (0x20, {
            let zeros = vec![0; 1 << 16];
            let fast = ruzstd::encoding::CompressionLevel::Fastest;
            ruzstd::encoding::compress_to_vec(zeros.as_slice(), fast)
        }),
    ] {
        let mut dump = dump(4096);
        dump.stored.insert(2, (stored, flags));
        let (memory, _) = open(dump.file()).unwrap();
        let error = memory
            .read(PhysicalAddress(2 * 4096), &mut [0; 8])
            .unwrap_err();
        assert!(
            error.to_string().contains("expands to 4097 bytes"),
            "{error}"
        );
    }
}

#[test]
fn other_files_are_refused_in_one_line() {
    let refused = |at: usize, bytes: &[u8]| {
        let mut file = dump(4096).file();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        open(file)
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    for (at, bytes, words) in [
        (8, &[9_u8][..], "has version 9; 1 to 6"),
        (
            12 + 4 * 65,
            b"x86_64\0",
            "of a \"x86_64\"; those of aarch64",
        ),
        // The numbers of its header are the other way round.
        (
            12 + 4 * 65,
            b"aarch64_be\0",
            "of a \"aarch64_be\"; those of aarch64, little-endian",
        ),
        (428, &[1], "its pages have 4097 bytes"),
        (4096 + 12, &[1], "--reassemble"),
        (4096 + 101, &[1], "its bitmaps are shorter"),
    ] {
        let error = refused(at, bytes);
        assert!(
            error.contains(words) && error.lines().count() == 1,
            "{error}"
        );
    }
}
