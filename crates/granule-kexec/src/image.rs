//! The header of an arm64 `Image`: its fields, and the checks before the image is used.
//!
//! The header is the first 64 bytes of the boot protocol's flat image, and is untrusted input. The
//! choice of the image's destination belongs to [`place`](super::place).

use granule::arch::{CpuFeatures, PageSize, Support};
use thiserror::Error;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;

/// Alignment, in bytes, of an image's address less its [`text_offset`](ImageHeader::text_offset).
pub const IMAGE_ALIGN: u64 = 2 << 20;

/// The type of a file that is not an arm64 Image, judged by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Looks {
    /// No known type.
    #[error("is not an arm64 Image: the magic \"ARM\\x64\" is not at offset 56")]
    Unknown,
    /// An ELF file, such as `vmlinux`.
    #[error("is an ELF file; the boot protocol requires the flat arm64 Image that is made of it")]
    Elf,
    /// A compressed file; the name of the format.
    #[error("is compressed ({0}); unpack it to the flat arm64 Image inside")]
    Compressed(&'static str),
    /// A kernel for another architecture; the architecture's name.
    #[error("is a kernel for {0}, not for arm64")]
    Other(&'static str),
}

/// Why a file cannot be booted as an image on this CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file is shorter than a header.
    #[error("is {bytes} bytes long, and the header alone is {HEADER_BYTES}; is it cut short?")]
    Short {
        /// Length of the file in bytes.
        bytes: usize,
    },
    /// The magic number is missing.
    #[error("{0}")]
    NotAnImage(Looks),
    /// The image is for big-endian CPUs.
    #[error("is big-endian (flags bit 0 at offset 24); only little-endian is booted")]
    BigEndian,
    /// The header does not state the image's size in memory.
    #[error("has an image_size of 0 at offset 16, so its end is unknown")]
    NoSize,
    /// The image needs a page size that the CPU does not have.
    #[error("is for {0} pages (flags bits 2:1 at offset 24), which this CPU does not have")]
    PageSize(PageSize),
}

/// The fields of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Offset of the image from a 2 MiB aligned base, in bytes.
    pub text_offset: u64,
    /// Bytes of memory from the image's first byte on, including what it zeroes itself; not 0.
    pub image_size: u64,
    /// The page size that the kernel is built for, if the header states one.
    pub page_size: Option<PageSize>,
    /// Whether the image may be anywhere in RAM. Otherwise it should be as close to the start of
    /// RAM as possible.
    pub anywhere: bool,
}

impl ImageHeader {
    /// Reads the header at the start of `bytes`. More bytes of the file give a more precise error
    /// for a file that is not an image.
    ///
    /// # Errors
    ///
    /// Fails with the file's actual type, or the reason why it cannot be booted. The message does not name the
    /// file.
    pub fn read(bytes: &[u8]) -> Result<Self, ImageError> {
        let looks = looks(bytes);
        if !matches!(looks, Looks::Unknown) {
            return Err(ImageError::NotAnImage(looks));
        }
        if bytes.len() < HEADER_BYTES {
            return Err(ImageError::Short { bytes: bytes.len() });
        }
        if !has(bytes, 56, b"ARM\x64") {
            return Err(ImageError::NotAnImage(looks));
        }
        let (text_offset, image_size, flags) = (word(bytes, 8), word(bytes, 16), word(bytes, 24));
        if flags & 1 != 0 {
            return Err(ImageError::BigEndian);
        }
        // Images older than the field have 0 here for "unknown". Loaders then ignore text_offset as
        // well.
        if image_size == 0 {
            return Err(ImageError::NoSize);
        }
        Ok(Self {
            text_offset,
            image_size,
            page_size: match flags >> 1 & 0b11 {
                1 => Some(PageSize::K4),
                2 => Some(PageSize::K16),
                3 => Some(PageSize::K64),
                _ => None,
            },
            anywhere: flags & 1 << 3 != 0,
        })
    }

    /// Checks that a CPU can run the image.
    ///
    /// # Errors
    ///
    /// Fails with [`ImageError::PageSize`].
    pub fn check(&self, cpu: &CpuFeatures) -> Result<(), ImageError> {
        match self.page_size {
            Some(size) if cpu.page_size(size) == Support::No => Err(ImageError::PageSize(size)),
            _ => Ok(()),
        }
    }

    /// The memory that the image takes if its file has `bytes` bytes, in whole pages of `page`.
    /// `None` if that does not fit in 64 bits.
    #[must_use]
    pub fn memory(&self, bytes: u64, page: PageSize) -> Option<u64> {
        self.image_size
            .max(bytes)
            .checked_next_multiple_of(page.bytes())
    }
}

/// The little-endian word at an offset inside the header.
fn word(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>);
    field.copied().map_or(0, u64::from_le_bytes)
}

fn has(bytes: &[u8], at: usize, what: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(what))
}

/// Recognises other file types by their magic numbers. An arm64 Image has none of these, but may
/// begin as a PE file does.
fn looks(bytes: &[u8]) -> Looks {
    for (mark, how) in [
        (&b"\x1f\x8b"[..], "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"\x02\x21\x4c\x18", "lz4"),
    ] {
        if bytes.starts_with(mark) {
            return Looks::Compressed(how);
        }
    }
    if bytes.starts_with(b"\x7fELF") {
        return Looks::Elf;
    }
    if has(bytes, 0, b"MZ") && has(bytes, 4, b"zimg") {
        return Looks::Compressed("an EFI zboot image");
    }
    if has(bytes, 0x202, b"HdrS") {
        return Looks::Other("x86");
    }
    if has(bytes, 56, b"RSC\x05") {
        return Looks::Other("RISC-V");
    }
    if has(bytes, 36, &[0x18, 0x28, 0x6f, 0x01]) {
        return Looks::Other("32-bit arm");
    }
    if let Some(machine) = pe_machine(bytes)
        && machine != PE_ARM64
    {
        return Looks::Other(match machine {
            0x14c | 0x8664 => "x86",
            0x1c0 | 0x1c2 | 0x1c4 => "32-bit arm",
            0x5032 | 0x5064 => "RISC-V",
            0x6232 | 0x6264 => "LoongArch",
            _ => "another architecture",
        });
    }
    Looks::Unknown
}

const PE_ARM64: u16 = 0xaa64;

/// The machine field of a PE file, if `bytes` contains it.
fn pe_machine(bytes: &[u8]) -> Option<u16> {
    if !has(bytes, 0, b"MZ") {
        return None;
    }
    let at = u32::from_le_bytes(*bytes.get(60..)?.first_chunk()?);
    let header = bytes.get(usize::try_from(at).ok()?..)?;
    let machine = header.strip_prefix(b"PE\0\0")?.first_chunk()?;
    Some(u16::from_le_bytes(*machine))
}
