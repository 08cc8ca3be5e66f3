//! The header of an arm64 `Image`: what it says, and what speaks against it before anything is done.
//!
//! The first 64 bytes of the boot protocol's flat image, read from bytes that somebody else wrote.
//! Where an image is put is [`segment`](super::segment)'s.

use core::fmt;
use granule::arch::{CpuFeatures, PageSize, features::Support};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;

/// What an image's address, less its [`text_offset`](ImageHeader::text_offset), is a multiple of.
pub const IMAGE_ALIGN: u64 = 2 << 20;

/// What a file is that is no arm64 Image, as far as its first bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Looks {
    /// Nothing that is known here.
    Unknown,
    /// An ELF file, such as `vmlinux`.
    Elf,
    /// Compressed, by what it says.
    Compressed(&'static str),
    /// A kernel for another architecture, whose name it is.
    Other(&'static str),
}

/// Why a file is no image that this CPU can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageError {
    /// Shorter than a header.
    Short {
        /// Its bytes.
        bytes: usize,
    },
    /// The magic is not there.
    NotAnImage(Looks),
    /// It is for big-endian CPUs.
    BigEndian,
    /// It does not say how much memory it takes.
    NoSize,
    /// It is for another page size than the CPU has.
    PageSize(PageSize),
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { bytes } => write!(
                f,
                "is {bytes} bytes long, and the header alone is {HEADER_BYTES}; is it cut short?"
            ),
            Self::NotAnImage(Looks::Elf) => f.write_str(
                "is an ELF file; the boot protocol wants the flat arm64 Image that is made of it",
            ),
            Self::NotAnImage(Looks::Compressed(how)) => write!(
                f,
                "is compressed ({how}); unpack it to the flat arm64 Image inside"
            ),
            Self::NotAnImage(Looks::Other(architecture)) => {
                write!(f, "is a kernel for {architecture}, not for arm64")
            }
            Self::NotAnImage(Looks::Unknown) => {
                f.write_str("is no arm64 Image: the magic \"ARM\\x64\" is not at offset 56")
            }
            Self::BigEndian => f.write_str(
                "is big-endian (flags bit 0 at offset 24); only little-endian is booted",
            ),
            Self::NoSize => f.write_str(
                "has an image_size of 0 at offset 16, so it cannot be told where it ends",
            ),
            Self::PageSize(size) => write!(
                f,
                "is for {size} pages (flags bits 2:1 at offset 24), which this CPU does not have"
            ),
        }
    }
}

impl core::error::Error for ImageError {}

/// What the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Offset from a 2 MiB aligned base at which the image is to be, in bytes.
    pub text_offset: u64,
    /// Memory the image takes from its first byte on, what it zeroes itself included; not 0.
    pub image_size: u64,
    /// The page size that the kernel is built for, if it says one.
    pub page_size: Option<PageSize>,
    /// Whether it may be anywhere in RAM; if not, as near to RAM's first byte as can be.
    pub anywhere: bool,
}

impl ImageHeader {
    /// Reads the header that `bytes` begin with. More of the file makes it better known what it is
    /// that is no image.
    ///
    /// # Errors
    ///
    /// What the file is instead, or what of it cannot be booted, without the file's name.
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
        // Zero is how images older than the field say "unknown", and loaders then ignore text_offset
        // as well.
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

    /// Whether a CPU can run it.
    ///
    /// # Errors
    ///
    /// [`ImageError::PageSize`].
    pub fn check(&self, cpu: &CpuFeatures) -> Result<(), ImageError> {
        match self.page_size {
            Some(size) if cpu.page_size(size) == Support::No => Err(ImageError::PageSize(size)),
            _ => Ok(()),
        }
    }

    /// The memory it takes, where its file has `bytes` bytes: whole pages of `page`. `None` where that
    /// is more than there are addresses.
    #[must_use]
    pub fn memory(&self, bytes: u64, page: PageSize) -> Option<u64> {
        self.image_size
            .max(bytes)
            .checked_next_multiple_of(page.bytes())
    }

    /// Whether it may be at an address, as far as alignment goes.
    #[must_use]
    pub const fn may_be_at(&self, address: u64) -> bool {
        address
            .wrapping_sub(self.text_offset)
            .is_multiple_of(IMAGE_ALIGN)
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

/// What a file is by the marks of others. The arm64 Image has none of them, but may begin as a PE
/// file does.
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

/// The machine of a PE file, if the bytes reach so far.
fn pe_machine(bytes: &[u8]) -> Option<u16> {
    if !has(bytes, 0, b"MZ") {
        return None;
    }
    let at = u32::from_le_bytes(*bytes.get(60..)?.first_chunk()?);
    let header = bytes.get(usize::try_from(at).ok()?..)?;
    let machine = header.strip_prefix(b"PE\0\0")?.first_chunk()?;
    Some(u16::from_le_bytes(*machine))
}
