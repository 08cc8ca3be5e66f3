//! The stamp on data that outlives a boot: its layout, what it refuses, and what a reader with
//! another page size learns.

use granule::arch::PageSize::{self, K4, K16, K64};
use granule_boot::stamp::{BYTES, Stamp, StampError, Units};

const KIND: [u8; 8] = *b"granule\0";

fn stamped(units: Units, size: PageSize, data: &[u8]) -> Vec<u8> {
    let mut bytes = Stamp::new(KIND, units, size, data).to_bytes().to_vec();
    bytes.extend(data);
    bytes
}

#[test]
fn the_layout_is_the_documented_one() {
    // 0xcbf43926 is the published check value of this CRC.
    let stamp = Stamp::new(*b"8 bytes!", Units::Pages, K64, b"123456789");
    let mut expected = Vec::new();
    expected.extend(b"GRANSTMP");
    expected.extend([1, 0, 0, 0, 2, 0, 0, 0]);
    expected.extend(b"8 bytes!");
    expected.extend([0, 0, 1, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([0x26, 0x39, 0xf4, 0xcb]);
    assert_eq!(stamp.to_bytes()[..44], expected);
    // By another implementation, Python's zlib.crc32 of those 44 bytes.
    assert_eq!(stamp.to_bytes()[44..], 0x826d_87ce_u32.to_le_bytes());
    assert_eq!(BYTES, 48);
}

#[test]
fn a_stamped_block_reads_back() {
    for size in PageSize::ALL {
        for units in [Units::Bytes, Units::Pages] {
            for data in [&b""[..], b"x", &[0xa5; 1000]] {
                let mut bytes = stamped(units, size, data);
                bytes.extend(b"what comes behind it");
                let (stamp, read) = Stamp::open(&bytes, KIND).unwrap();
                assert_eq!(read, data);
                assert_eq!(stamp, Stamp::new(KIND, units, size, data));
                assert_eq!((stamp.units(), stamp.page_size()), (units, size));
                assert_eq!(stamp.length(), data.len() as u64);
            }
        }
    }
}

#[test]
fn another_page_size_is_refused_where_it_matters() {
    for written in PageSize::ALL {
        for running in PageSize::ALL {
            let of = |units| Stamp::new(KIND, units, written, b"data").check(running);
            assert_eq!(of(Units::Bytes), Ok(()));
            if written == running {
                assert_eq!(of(Units::Pages), Ok(()));
                continue;
            }
            let error = of(Units::Pages).unwrap_err();
            assert_eq!(error, StampError::OtherPageSize { written, running });
            let line = error.to_string();
            assert!(
                line.contains(&format!("under {written} pages"))
                    && line.contains(&format!("runs with {running}"))
                    && line.contains(&format!("arm64.pagesize={written} "))
            );
        }
    }
}

/// Every error, with a word of its line.
#[test]
fn each_error_is_one_line() {
    let good = stamped(Units::Pages, K16, b"some data");
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        Stamp::open(&bytes, KIND).unwrap_err()
    };
    // A stamp whose own checksum is right, as a later version or another writer would make it.
    let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
        with(&|bytes| {
            change(bytes);
            let of = Stamp::new(KIND, Units::Bytes, K4, &bytes[..44]).to_bytes();
            let crc: [u8; 4] = of[40..44].try_into().unwrap();
            bytes[44..48].copy_from_slice(&crc);
        })
    };
    let errors = [
        (with(&|b| b.truncate(47)), "47 bytes where 48"),
        (with(&|b| b.truncate(48 + 8)), "8 bytes where 9"),
        (with(&|b| b.fill(0)), "no stamp"),
        (with(&|b| b.fill(0xff)), "no stamp"),
        (with(&|b| b[8] = 2), "version 2, and only 1"),
        (with(&|b| b[30] ^= 1), "the stamp is corrupted"),
        (with(&|b| b[50] ^= 1), "the data is corrupted"),
        (sealed(&|b| b[12] = 3), "units are 3"),
        (sealed(&|b| b[25] = 0x20), "page size is 8192 bytes"),
        (
            sealed(&|b| b[16] = b'G'),
            r"has Granule\x00, expected granule\x00",
        ),
        (
            sealed(&|b| b[39] = 0x80),
            "9 bytes where 9223372036854775817",
        ),
    ];
    for (error, what) in errors {
        let line = error.to_string();
        assert!(line.contains(what), "{line:?} lacks {what:?}");
        assert_eq!(line.lines().count(), 1);
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let good = stamped(Units::Pages, K4, b"frames");
    assert!(Stamp::open(&good, KIND).is_ok());
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Stamp::open(&bytes, KIND).is_err(), "bit {bit}");
    }
    for length in 0..good.len() {
        assert!(Stamp::open(&good[..length], KIND).is_err(), "{length}");
    }
}

/// A reader with another page size understands numbers of pages as the writer does.
#[test]
fn the_writers_numbers_are_understood_under_every_page_size() {
    for written in PageSize::ALL {
        let stamp = Stamp::new(KIND, Units::Pages, written, b"");
        for running in PageSize::ALL {
            for first in [0, 1, 3, 15, 16, 17, 1000] {
                for count in [0, 1, 2, 15, 16, 33] {
                    let (start, end) = (first * written.bytes(), (first + count) * written.bytes());
                    assert_eq!(stamp.bytes(first), Some(start));
                    let pages = stamp.pages(first, count, running).unwrap();
                    // Each page of the reader's is in it that has a byte of it, and no other.
                    let from = start / running.bytes();
                    let to = if count == 0 {
                        from
                    } else {
                        end.div_ceil(running.bytes())
                    };
                    assert_eq!(pages, from..to);
                }
            }
        }
    }
    let pages = Stamp::new(KIND, Units::Pages, K4, b"");
    assert_eq!(pages.pages(0x123, 1, K64), Some(0x12..0x13));
    assert_eq!(pages.bytes(1 << 52), None);
    assert_eq!(pages.pages((1 << 52) - 1, 2, K4), None);
    assert_eq!(pages.pages(1, u64::MAX, K4), None);
    let bytes = Stamp::new(KIND, Units::Bytes, K4, b"");
    assert_eq!(bytes.bytes(0x1234), Some(0x1234));
    assert_eq!(bytes.pages(0xffff, 2, K64), Some(0..2));
}
