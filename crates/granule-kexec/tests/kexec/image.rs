//! The header of an Image: its fields, and bytes that are not a header.

use granule::arch::{CpuFeatures, PageSize};
use granule_kexec::image::{HEADER_BYTES, Looks};
use granule_kexec::{ImageError, ImageHeader};

fn header(text_offset: u64, image_size: u64, flags: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[8..16].copy_from_slice(&text_offset.to_le_bytes());
    bytes[16..24].copy_from_slice(&image_size.to_le_bytes());
    bytes[24..32].copy_from_slice(&flags.to_le_bytes());
    bytes[56..60].copy_from_slice(b"ARM\x64");
    bytes
}

/// A CPU with these page sizes.
fn cpu(sizes: &[PageSize]) -> CpuFeatures {
    let has = |size| sizes.contains(&size);
    let four = if has(PageSize::K4) { 0 } else { 0b1111 };
    let sixteen = if has(PageSize::K16) { 1 } else { 0 };
    let sixty_four = if has(PageSize::K64) { 0 } else { 0b1111 };
    CpuFeatures {
        mmfr0: four << 28 | sixteen << 20 | sixty_four << 24 | 5,
        ..CpuFeatures::NONE
    }
}

#[test]
fn the_fields_are_read() {
    let read = ImageHeader::read(&header(0x8_0000, 0x12_3456, 0b1010)).unwrap();
    assert_eq!(
        read,
        ImageHeader {
            text_offset: 0x8_0000,
            image_size: 0x12_3456,
            page_size: Some(PageSize::K4),
            anywhere: true,
        }
    );
    assert_eq!(read.memory(1, PageSize::K64), Some(0x13_0000));
    assert_eq!(read.memory(0x13_0001, PageSize::K4), Some(0x13_1000));
    assert_eq!(read.memory(u64::MAX, PageSize::K4), None);
    let sizes = PageSize::ALL.map(Some);
    for (field, size) in [None].into_iter().chain(sizes).enumerate() {
        let read = ImageHeader::read(&header(0, 1, (field as u64) << 1)).unwrap();
        assert_eq!((read.page_size, read.anywhere), (size, false));
    }
}

#[test]
fn an_image_for_a_page_size_that_the_cpu_lacks_is_refused() {
    for have in PageSize::ALL {
        for (field, wants) in PageSize::ALL.into_iter().enumerate() {
            let read = ImageHeader::read(&header(0, 1, (field as u64 + 1) << 1)).unwrap();
            let refused = (have != wants).then_some(ImageError::PageSize(wants));
            assert_eq!(read.check(&cpu(&[have])).err(), refused);
        }
        let any = ImageHeader::read(&header(0, 1, 0)).unwrap();
        assert_eq!(any.check(&cpu(&[have])), Ok(()));
    }
    let line = ImageError::PageSize(PageSize::K16).to_string();
    assert!(
        line.contains("16k pages") && line.contains("does not have"),
        "{line}"
    );
}

#[test]
fn every_truncation_is_refused() {
    let whole = header(0, 4096, 0);
    for bytes in 0..HEADER_BYTES {
        let short = Err(ImageError::Short { bytes });
        assert_eq!(ImageHeader::read(&whole[..bytes]), short);
    }
    assert!(ImageHeader::read(&whole).is_ok());
}

#[test]
fn an_image_that_cannot_be_booted_is_refused_by_name() {
    let read = |size, flags| ImageHeader::read(&header(0, size, flags));
    assert_eq!(read(1, 1), Err(ImageError::BigEndian));
    assert_eq!(read(0, 0), Err(ImageError::NoSize));
    for bit in 0..32 {
        let mut bytes = header(0, 1, 0);
        bytes[56 + bit / 8] ^= 1 << (bit % 8);
        assert!(
            matches!(ImageHeader::read(&bytes), Err(ImageError::NotAnImage(_))),
            "magic with bit {bit} flipped"
        );
    }
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let file = |at: usize, mark: &[u8]| {
        let mut bytes = vec![0; 0x400];
        bytes[at..at + mark.len()].copy_from_slice(mark);
        bytes
    };
    let pe = |machine: u16, magic: &[u8]| {
        let mut bytes = header(0, 1, 0);
        bytes.resize(0x100, 0);
        bytes[..2].copy_from_slice(b"MZ");
        bytes[56..60].copy_from_slice(magic);
        bytes[60] = 0x40;
        bytes[0x40..0x44].copy_from_slice(b"PE\0\0");
        bytes[0x44..0x46].copy_from_slice(&machine.to_le_bytes());
        bytes
    };
    use Looks::{Compressed, Elf, Other, Unknown};
    let zboot = "an EFI zboot image";
    let arm = &[0x18, 0x28, 0x6f, 0x01];
    for (bytes, looks) in [
        (file(0, b"\x7fELF"), Elf),
        (file(0, b"\x1f\x8b\x08"), Compressed("gzip")),
        (file(0, b"\x28\xb5\x2f\xfd"), Compressed("zstd")),
        (file(0, b"\xfd7zXZ\0"), Compressed("xz")),
        (file(0, b"BZh9"), Compressed("bzip2")),
        (file(0, b"\x02\x21\x4c\x18"), Compressed("lz4")),
        (file(0, b"MZ\0\0zimg"), Compressed(zboot)),
        (file(0x202, b"HdrS"), Other("x86")),
        (file(56, b"RSC\x05"), Other("RISC-V")),
        (file(36, arm), Other("32-bit arm")),
        (pe(0x8664, b"\0\0\0\0"), Other("x86")),
        (pe(0x6264, b"ARM\x64"), Other("LoongArch")),
        (pe(0x1234, b"\0\0\0\0"), Other("another architecture")),
        (pe(0xaa64, b"\0\0\0\0"), Unknown),
        (vec![0; 64], Unknown),
    ] {
        let error = ImageError::NotAnImage(looks);
        assert_eq!(ImageHeader::read(&bytes), Err(error));
        let line = error.to_string();
        assert!(line.contains("arm64") && !line.contains('\n'), "{line}");
    }
    // An Image with an EFI stub begins as a PE file does.
    assert!(ImageHeader::read(&pe(0xaa64, b"ARM\x64")).is_ok());
}

#[test]
fn no_bytes_make_it_panic() {
    // Offsets of the PE header that lead everywhere.
    for at in [0u32, 1, 60, 62, 100, 0x7fff_ffff, u32::MAX] {
        for length in [61, 63, 64, 65, 70, 104] {
            let mut bytes = header(u64::MAX, u64::MAX, 0);
            bytes[..2].copy_from_slice(b"MZ");
            bytes[60..64].copy_from_slice(&at.to_le_bytes());
            bytes.resize(length, 0xff);
            if let Ok(read) = ImageHeader::read(&bytes) {
                let _ = read.memory(u64::MAX, PageSize::K64);
            }
        }
    }
}
