//! A stamp for data that outlives a boot. It names the page size under which the data was written.
//!
//! Where the page size is chosen at boot, the next kernel may run with another one. It would then
//! misread data that counts in pages (frame numbers, swap slots, handover lists). A [`Stamp`] goes
//! before such data. Its reader calls [`Stamp::check`], which refuses another page size with a
//! one-line message; data whose [`Units`] are bytes is readable under every size. A reader that can
//! convert gets the writer's numbers in bytes ([`Stamp::bytes`]) or in its own pages
//! ([`Stamp::pages`]). Memory that one kernel hands to another is meant to have the same stamp.
//!
//! Fixed layout, little-endian, [`BYTES`] long, no padding:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | `GRANSTMP` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | units: 1 bytes, 2 pages |
//! | 16 | 8 | kind of data |
//! | 24 | 8 | page size of the writer, in bytes |
//! | 32 | 8 | bytes of data behind the stamp |
//! | 40 | 4 | CRC-32 of the data |
//! | 44 | 4 | CRC-32 of the 44 bytes before |
//!
//! The checksums detect data that decayed, was cut short or was never written. They do not detect
//! forgery. The place of the data and its writer are not this module's concern.
//!
//! ```
//! use granule::arch::PageSize::{K4, K64};
//! use granule_boot::stamp::{BYTES, Stamp, Units};
//!
//! let data = [7, 0, 0, 0]; // page number 7
//! let stamp = Stamp::new(*b"my-pages", Units::Pages, K4, &data);
//! let bytes = stamp.to_bytes();
//!
//! // The next boot.
//! let stamp = Stamp::read(&bytes, *b"my-pages")?;
//! assert!(stamp.verify(&data).is_ok() && stamp.check(K4).is_ok());
//! assert!(stamp.check(K64).is_err());
//! // Or, by who can convert: page 7 of 4K lies in page 0 of 64K.
//! assert_eq!(stamp.bytes(7), Some(0x7000));
//! assert_eq!(stamp.pages(7, 1, K64), Some(0..1));
//! # Ok::<(), granule_boot::stamp::StampError>(())
//! ```

use core::ops::Range;
use granule::arch::PageSize;
use thiserror::Error;

/// The size of a stamp in bytes.
pub const BYTES: usize = 48;

const MAGIC: [u8; 8] = *b"GRANSTMP";
const VERSION: u32 = 1;
/// The offset of the stamp's own checksum, which covers all bytes before it.
const OWN_CRC: usize = 44;

/// The unit of the numbers in the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Units {
    /// Bytes, or numbers that do not depend on a page size: readable under every page size.
    Bytes,
    /// Pages of the writer's size, or other numbers that depend on that size.
    Pages,
}

/// A tag that distinguishes one reader's data from another's.
pub type StampKind = [u8; 8];

/// The description of the data that follows the stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    kind: StampKind,
    units: Units,
    page_size: PageSize,
    length: u64,
    checksum: u32,
}

impl Stamp {
    /// The stamp for `data`, written under pages of `page_size`.
    #[must_use]
    pub fn new(kind: StampKind, units: Units, page_size: PageSize, data: &[u8]) -> Self {
        Self {
            kind,
            units,
            page_size,
            length: data.len() as u64,
            checksum: crc32(data),
        }
    }

    /// The encoded stamp, which is stored before its data.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let units: u32 = match self.units {
            Units::Bytes => 1,
            Units::Pages => 2,
        };
        let mut bytes = [0; BYTES];
        let mut put = |at: usize, field: &[u8]| {
            for (to, from) in bytes.iter_mut().skip(at).zip(field) {
                *to = *from;
            }
        };
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &units.to_le_bytes());
        put(16, &self.kind);
        put(24, &self.page_size.bytes().to_le_bytes());
        put(32, &self.length.to_le_bytes());
        put(40, &self.checksum.to_le_bytes());
        let own = crc32(bytes.get(..OWN_CRC).unwrap_or_default());
        for (to, from) in bytes.iter_mut().skip(OWN_CRC).zip(own.to_le_bytes()) {
            *to = from;
        }
        bytes
    }

    /// Decodes the stamp at the start of `bytes`. The bytes after it are not read.
    ///
    /// # Errors
    ///
    /// Fails if the stamp is missing, cannot be decoded, or is for data of another kind.
    pub fn read(bytes: &[u8], kind: StampKind) -> Result<Self, StampError> {
        let found = bytes.len();
        let Some((bytes, _)) = bytes.split_first_chunk::<BYTES>() else {
            return Err(StampError::Truncated {
                needed: BYTES as u64,
                found: found as u64,
            });
        };
        if field::<8>(bytes, 0) != MAGIC {
            return Err(StampError::NoStamp);
        }
        // The version comes before the checksum: another version may have its checksum elsewhere.
        let version = u32::from_le_bytes(field(bytes, 8));
        if version != VERSION {
            return Err(StampError::UnknownVersion { found: version });
        }
        let own = crc32(bytes.get(..OWN_CRC).unwrap_or_default());
        if u32::from_le_bytes(field(bytes, OWN_CRC)) != own {
            return Err(StampError::Corrupted { what: "stamp" });
        }
        let units = match u32::from_le_bytes(field(bytes, 12)) {
            1 => Units::Bytes,
            2 => Units::Pages,
            found => return Err(StampError::UnknownUnits { found }),
        };
        let page_bytes = u64::from_le_bytes(field(bytes, 24));
        let Some(page_size) = PageSize::from_bytes(page_bytes) else {
            return Err(StampError::UnknownPageSize { bytes: page_bytes });
        };
        let stamp = Self {
            kind: field(bytes, 16),
            units,
            page_size,
            length: u64::from_le_bytes(field(bytes, 32)),
            checksum: u32::from_le_bytes(field(bytes, 40)),
        };
        if stamp.kind != kind {
            return Err(StampError::OtherKind {
                expected: kind,
                found: stamp.kind,
            });
        }
        Ok(stamp)
    }

    /// Decodes a stamp and verifies that the data after it is intact. [`check`](Self::check) decides
    /// whether the reader's page size may read it.
    ///
    /// # Errors
    ///
    /// Fails as [`read`](Self::read) and [`verify`](Self::verify) do.
    pub fn open(bytes: &[u8], kind: StampKind) -> Result<(Self, &[u8]), StampError> {
        let stamp = Self::read(bytes, kind)?;
        let data = bytes.get(BYTES..).unwrap_or_default();
        let whole = usize::try_from(stamp.length)
            .ok()
            .and_then(|length| data.get(..length));
        let Some(data) = whole else {
            return Err(StampError::Truncated {
                needed: stamp.length,
                found: data.len() as u64,
            });
        };
        stamp.verify(data)?;
        Ok((stamp, data))
    }

    /// Verifies that `data` is the data that was stamped.
    ///
    /// # Errors
    ///
    /// Fails if the length or the checksum differs.
    pub fn verify(&self, data: &[u8]) -> Result<(), StampError> {
        if data.len() as u64 != self.length {
            return Err(StampError::Truncated {
                needed: self.length,
                found: data.len() as u64,
            });
        }
        if crc32(data) != self.checksum {
            return Err(StampError::Corrupted { what: "data" });
        }
        Ok(())
    }

    /// Checks that a kernel with page size `running` may read the data unchanged.
    ///
    /// # Errors
    ///
    /// Fails if the data counts in pages of another size.
    pub fn check(&self, running: PageSize) -> Result<(), StampError> {
        if self.units == Units::Bytes || self.page_size == running {
            return Ok(());
        }
        Err(StampError::OtherPageSize {
            written: self.page_size,
            running,
        })
    }

    /// The unit of the numbers in the data.
    #[must_use]
    pub const fn units(&self) -> Units {
        self.units
    }

    /// The page size under which the data was written.
    #[must_use]
    pub const fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// The length of the data in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// A number of the writer's units, an index or a count, in bytes. `None` if the result exceeds
    /// 64 bits.
    #[must_use]
    pub const fn bytes(&self, number: u64) -> Option<u64> {
        match self.units {
            Units::Bytes => Some(number),
            Units::Pages => number.checked_mul(self.page_size.bytes()),
        }
    }

    /// Converts `count` of the writer's units from `first` on to pages of `running`: every page
    /// that contains a byte of them, and an empty range for none. `None` if the result exceeds 64
    /// bits.
    ///
    /// With larger pages the range covers more bytes than the writer meant. That is right for
    /// memory to avoid and wrong for memory to give away.
    #[must_use]
    pub const fn pages(&self, first: u64, count: u64, running: PageSize) -> Option<Range<u64>> {
        let (Some(start), Some(length)) = (self.bytes(first), self.bytes(count)) else {
            return None;
        };
        let Some(end) = start.checked_add(length) else {
            return None;
        };
        let first = start >> running.shift();
        let (Some(last), 1..) = (end.checked_sub(1), length) else {
            return Some(first..first);
        };
        // Below 2^52, because a page has at least 12 bits: no overflow.
        Some(first..(last >> running.shift()).saturating_add(1))
    }
}

fn field<const N: usize>(bytes: &[u8; BYTES], at: usize) -> [u8; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    field
}

/// CRC-32, as in Ethernet and zip. Crates for it keep a pointer to the polynomial's parameters, and code that
/// nothing relocates reads stamps too.
fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |state, byte| {
        let index = usize::from(state as u8 ^ byte);
        // The index has 8 bits and the table 256 entries.
        state >> 8 ^ TABLE.get(index).copied().unwrap_or_default()
    })
}

/// The remainder of each byte, for the reversed polynomial.
#[allow(
    clippy::indexing_slicing,
    reason = "evaluated when it is compiled, where a panic is an error of the build"
)]
static TABLE: [u32; 256] = {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = value >> 1 ^ if value & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

/// Why data cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum StampError {
    /// The number of bytes is wrong.
    #[error(
        "cut short or overlong: {found} bytes where {needed} were expected; have it written again"
    )]
    Truncated { needed: u64, found: u64 },
    /// The bytes do not begin with a stamp.
    #[error(
        "no stamp: expected GRANSTMP in the first 8 bytes; nothing was stored here, or something else was"
    )]
    NoStamp,
    /// The stamp has an unknown version.
    #[error(
        "a stamp of version {found}, and only {VERSION} is known here; read it with what wrote it"
    )]
    UnknownVersion { found: u32 },
    /// A checksum is wrong: that of the stamp, or that of the data.
    #[error("the {what} is corrupted: its checksum is wrong; have it written again")]
    Corrupted { what: &'static str },
    /// The data counts in unknown units.
    #[error(
        "the stamp's units are {found}, expected 1 (bytes) or 2 (pages); read it with what wrote it"
    )]
    UnknownUnits { found: u32 },
    /// The stamp names a page size that does not exist.
    #[error(
        "the stamp's page size is {bytes} bytes, expected 4096, 16384 or 65536; read it with what wrote it"
    )]
    UnknownPageSize { bytes: u64 },
    /// The data is of another kind.
    #[error(
        "the stamp has {}, expected {}; this is somebody else's data",
        found.escape_ascii(),
        expected.escape_ascii()
    )]
    OtherKind {
        expected: StampKind,
        found: StampKind,
    },
    /// The data counts in pages of another size than the reading kernel's.
    #[error(
        "written under {written} pages, and this kernel runs with {running}: not read; \
         boot with arm64.pagesize={written} to read it"
    )]
    OtherPageSize {
        written: PageSize,
        running: PageSize,
    },
}
