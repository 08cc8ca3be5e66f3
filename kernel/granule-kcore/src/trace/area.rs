//! The memory area for a trace's records: parsing its word of the command line, and checking the area.
//!
//! Pure, and run with the MMU off: nothing here formats or panics.

use crate::layout;
use granule_boot::words;

/// RAM for the records; empty when no trace is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Area {
    /// Physical address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Why an area cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaError {
    /// The value is not a pair of numbers.
    Malformed,
    /// The area is not whole pages of every page size.
    Misaligned,
    /// The area is larger than its window in the address space.
    TooLarge,
    /// The area overlaps the image, the device tree or the initramfs.
    Overlap,
}

impl AreaError {
    /// The error as one line.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Malformed => {
                "granule.trace= cannot be read: expected START,BYTES as two hexadecimal numbers, 0x140000000,0x1000000"
            }
            Self::Misaligned => {
                "granule.trace= does not name whole 64K pages: START and BYTES must be multiples of 0x10000, and BYTES not 0"
            }
            Self::TooLarge => {
                "granule.trace= names more than the trace's window holds: at most 1G (0x40000000)"
            }
            Self::Overlap => {
                "granule.trace= names memory that the image, the device tree or the initramfs is in"
            }
        }
    }
}

impl Area {
    /// Returns the area that the command line requests; empty if it has no such word.
    pub fn of(line: &[u8]) -> Result<Self, AreaError> {
        let Some(value) = words::find(line, b"granule.trace=") else {
            return Ok(Self::default());
        };
        let Some((start, bytes)) = pair(value) else {
            return Err(AreaError::Malformed);
        };
        let mask = layout::FIXMAP_SLOT_BYTES - 1;
        if bytes == 0 || (start | bytes) & mask != 0 {
            return Err(AreaError::Misaligned);
        }
        if bytes > layout::TRACE_MOST_BYTES || start.checked_add(bytes).is_none() {
            return Err(AreaError::TooLarge);
        }
        Ok(Self { start, bytes })
    }

    /// Whether records are wanted.
    pub const fn is_wanted(&self) -> bool {
        self.bytes != 0
    }

    /// Refuses an area that overlaps one of `others`, each a start and a length.
    pub fn keep_off(&self, others: &[(u64, u64)]) -> Result<(), AreaError> {
        for (start, bytes) in others {
            let apart = start.wrapping_sub(self.start) >= self.bytes
                && self.start.wrapping_sub(*start) >= *bytes;
            if self.is_wanted() && !apart {
                return Err(AreaError::Overlap);
            }
        }
        Ok(())
    }
}

/// Two hexadecimal numbers with a comma between them, and nothing else.
pub fn pair(text: &[u8]) -> Option<(u64, u64)> {
    let (first, rest) = number(text)?;
    let (b',', rest) = rest.split_first()? else {
        return None;
    };
    match number(rest)? {
        (second, []) => Some((first, second)),
        _ => None,
    }
}

/// A hexadecimal number at the start of `text`, and the text after it.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let (b'0', text) = text.split_first()? else {
        return None;
    };
    let (b'x' | b'X', mut text) = text.split_first()? else {
        return None;
    };
    let mut value = 0u64;
    let mut digits = 0;
    while let Some((byte, rest)) = text.split_first() {
        let digit = match *byte {
            digit @ b'0'..=b'9' => digit - b'0',
            digit @ b'a'..=b'f' => digit - b'a' + 10,
            digit @ b'A'..=b'F' => digit - b'A' + 10,
            _ => break,
        };
        if value >> 60 != 0 {
            return None;
        }
        value = value << 4 | u64::from(digit);
        digits += 1;
        text = rest;
    }
    (digits > 0).then_some((value, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_read() {
        assert_eq!(Area::of(b"quiet"), Ok(Area::default()));
        let area = Area::of(b"quiet granule.trace=0x13F000000,0x1000000 x").unwrap();
        assert_eq!((area.start, area.bytes), (0x1_3f00_0000, 0x100_0000));
        assert!(area.is_wanted() && !Area::default().is_wanted());
    }

    #[test]
    fn an_unusable_area_is_refused() {
        for (line, error) in [
            (&b"granule.trace=1"[..], AreaError::Malformed),
            (b"granule.trace=", AreaError::Malformed),
            (b"granule.trace=0x,0x10000", AreaError::Malformed),
            (b"granule.trace=0x10000", AreaError::Malformed),
            (b"granule.trace=0x10000,0x10000,", AreaError::Malformed),
            (
                b"granule.trace=0x11112222333344445,0x10000",
                AreaError::Malformed,
            ),
            (b"granule.trace=0x10001,0x10000", AreaError::Misaligned),
            (b"granule.trace=0x10000,0x0", AreaError::Misaligned),
            (b"granule.trace=0x0,0x40010000", AreaError::TooLarge),
            (
                b"granule.trace=0xffffffffffff0000,0x10000",
                AreaError::TooLarge,
            ),
        ] {
            assert_eq!(Area::of(line), Err(error), "{}", line.escape_ascii());
            assert!(error.text().len() <= 224, "the boot record holds no more");
        }
    }

    #[test]
    fn an_area_keeps_off_what_is_there() {
        let area = Area {
            start: 0x20_0000,
            bytes: 0x10_0000,
        };
        let meets = |start, bytes| area.keep_off(&[(0, 1), (start, bytes)]).is_err();
        assert!(!meets(0x10_0000, 0x10_0000) && !meets(0x30_0000, 1));
        assert!(meets(0x10_0000, 0x10_0001) && meets(0x2f_ffff, 1) && meets(0, u64::MAX));
        assert_eq!(Area::default().keep_off(&[(0, u64::MAX)]), Ok(()));
    }
}
