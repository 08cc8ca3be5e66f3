//! Reads the cpio archive of an initramfs: "newc" (magic 070701, or 070702 with checksums),
//! uncompressed, one archive or several in sequence.
//!
//! This file turns bytes into entries only; [`file_tree`](super::file_tree) makes a tree of them. The reader
//! neither allocates nor panics on any input, and each error names its offset.

use core::num::Wrapping;
use core::ops::Range;
use thiserror::Error;

/// Bytes of a header: the magic number and thirteen numbers of eight hexadecimal digits.
const HEADER: usize = 110;
const MAGIC: &[u8] = b"070701";
const MAGIC_WITH_SUM: &[u8] = b"070702";
/// The name of the entry that ends an archive.
const TRAILER: &[u8] = b"TRAILER!!!";
/// The alignment of headers and data.
const ALIGNMENT: usize = 4;

/// One entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The inode number. With the device number it identifies the hard links of one file.
    pub ino: u32,
    /// File type and permissions.
    pub mode: u32,
    /// The user number.
    pub uid: u32,
    /// The group number.
    pub gid: u32,
    /// The number of hard links.
    pub links: u32,
    /// Seconds since 1970.
    pub mtime: u32,
    /// The device number of the file system.
    pub device: (u32, u32),
    /// The device number of a device file.
    pub rdev: (u32, u32),
    /// The path, without its NUL.
    pub name: &'a [u8],
    /// The offset of the name in the archive.
    pub name_at: usize,
    /// The range of the content in the archive.
    pub data: Range<usize>,
}

/// A fault in an archive.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("initramfs, byte {at:#x}: {what}")]
pub struct CpioError {
    /// The offset of the faulty entry.
    pub at: usize,
    /// The fault.
    pub what: Wrong,
}

/// A fault in an entry.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages explain the variants")]
pub enum Wrong {
    #[error(
        "no entry begins there; expected an uncompressed cpio archive as `cpio -o -H newc` makes it"
    )]
    Magic,
    #[error("the entry reaches beyond the archive's end; is it whole?")]
    Truncated,
    #[error("a number of the header has something else than hexadecimal digits")]
    Digit,
    #[error("the name is empty or does not end with a NUL")]
    Name,
    #[error("the content's sum is not the one that the header has")]
    Sum,
}

/// Iterates over the entries of `archive`, up to its end or the first fault.
pub const fn entries(archive: &[u8]) -> Entries<'_> {
    Entries { archive, at: 0 }
}

/// The iterator of [`entries`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    archive: &'a [u8],
    at: usize,
}

impl<'a> Entries<'a> {
    /// Skips zeros up to the next non-zero word; false at the end.
    fn skip_zeros(&mut self) -> bool {
        let rest = self.archive.get(self.at..).unwrap_or_default();
        match rest.iter().position(|byte| *byte != 0) {
            // Padding is whole words of zeros.
            Some(zeros) => {
                self.at += zeros - zeros % ALIGNMENT;
                true
            }
            None => false,
        }
    }

    fn read(&mut self) -> Result<Option<Entry<'a>>, Wrong> {
        let all = self.archive.get(self.at..).unwrap_or_default();
        let with_sum = match all.get(..MAGIC.len()) {
            Some(MAGIC) => false,
            Some(MAGIC_WITH_SUM) => true,
            _ => return Err(Wrong::Magic),
        };
        let header = all.get(MAGIC.len()..HEADER).ok_or(Wrong::Truncated)?;
        let (fields, _) = header.as_chunks::<8>();
        let mut numbers = [0; 13];
        for (number, field) in numbers.iter_mut().zip(fields) {
            *number = hexadecimal(field).ok_or(Wrong::Digit)?;
        }
        let [
            ino,
            mode,
            uid,
            gid,
            links,
            mtime,
            bytes,
            major,
            minor,
            rdev_major,
            rdev_minor,
            name_bytes,
            sum,
        ] = numbers;
        let name_end = HEADER
            .checked_add(name_bytes as usize)
            .ok_or(Wrong::Truncated)?;
        let name = all.get(HEADER..name_end).ok_or(Wrong::Truncated)?;
        let [name @ .., 0] = name else {
            return Err(Wrong::Name);
        };
        // A NUL in the middle would give two readers two different names.
        if name.is_empty() || name.contains(&0) {
            return Err(Wrong::Name);
        }
        let start = aligned(name_end).ok_or(Wrong::Truncated)?;
        let end = start.checked_add(bytes as usize).ok_or(Wrong::Truncated)?;
        // An empty file at the very end needs no padding behind its name.
        let data = match bytes {
            0 => &[],
            _ => all.get(start..end).ok_or(Wrong::Truncated)?,
        };
        let sum_of = |data: &[u8]| data.iter().map(|byte| Wrapping(u32::from(*byte))).sum();
        if with_sum && Wrapping(sum) != sum_of(data) {
            return Err(Wrong::Sum);
        }
        let whole = aligned(end).ok_or(Wrong::Truncated)?;
        let base = self.at;
        self.at = base.saturating_add(whole).min(self.archive.len());
        if name == TRAILER {
            return Ok(None);
        }
        Ok(Some(Entry {
            ino,
            mode,
            uid,
            gid,
            links,
            mtime,
            device: (major, minor),
            rdev: (rdev_major, rdev_minor),
            name,
            name_at: base + HEADER,
            data: base + start..base + start + data.len(),
        }))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, CpioError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // Zeros may follow each archive.
            if !self.skip_zeros() {
                return None;
            }
            match self.read() {
                Ok(Some(entry)) => return Some(Ok(entry)),
                Ok(None) => {}
                Err(what) => {
                    let at = self.at;
                    self.at = self.archive.len();
                    return Some(Err(CpioError { at, what }));
                }
            }
        }
    }
}

/// The next multiple of [`ALIGNMENT`], for an offset in an entry, which is aligned itself.
fn aligned(offset: usize) -> Option<usize> {
    offset.checked_next_multiple_of(ALIGNMENT)
}

fn hexadecimal(digits: &[u8; 8]) -> Option<u32> {
    digits.iter().try_fold(0, |number: u32, digit| {
        Some(number << 4 | char::from(*digit).to_digit(16)?)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An entry in the format of `cpio -H newc`.
    pub(crate) fn entry(
        (ino, mode, links): (u32, u32, u32),
        rdev: (u32, u32),
        name: &str,
        data: &[u8],
    ) -> Vec<u8> {
        let mut out = format!(
            "070701{ino:08x}{mode:08X}{:08x}{:08x}{links:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{name}\0",
            7, 8, 1_700_000_000, data.len(), 3, 1, rdev.0, rdev.1, name.len() + 1, 0
        )
        .into_bytes();
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    pub(crate) fn trailer() -> Vec<u8> {
        entry((0, 0, 1), (0, 0), "TRAILER!!!", b"")
    }

    fn read(archive: &[u8]) -> Result<Vec<(String, Vec<u8>)>, CpioError> {
        entries(archive)
            .map(|entry| {
                let entry = entry?;
                let name = String::from_utf8_lossy(entry.name).into_owned();
                Ok((name, archive[entry.data].to_vec()))
            })
            .collect()
    }

    #[test]
    fn entries_come_with_their_numbers_names_and_content() {
        let mut archive = entry((5, 0o100755, 1), (0, 0), "init", b"hello");
        archive.extend(entry((6, 0o020600, 1), (5, 1), "dev/console", b""));
        archive.extend(trailer());
        archive.resize(archive.len() + 512, 0);
        let found: Vec<_> = entries(&archive).map(Result::unwrap).collect();
        let [first, second] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((first.ino, first.mode, first.links), (5, 0o100755, 1));
        assert_eq!((first.uid, first.gid, first.mtime), (7, 8, 1_700_000_000));
        assert_eq!((first.device, second.rdev), ((3, 1), (5, 1)));
        assert_eq!(&archive[first.data.clone()], b"hello");
        assert_eq!(second.name, b"dev/console");
    }

    #[test]
    fn archives_in_a_row_are_one_and_what_has_no_trailer_ends_with_its_bytes() {
        let mut archive = entry((1, 0o100644, 1), (0, 0), "a", b"1");
        archive.extend(trailer());
        archive.extend([0; 8]);
        archive.extend(entry((1, 0o100644, 1), (0, 0), "b", b""));
        let names: Vec<_> = read(&archive).unwrap().into_iter().map(|e| e.0).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(read(&[]), Ok(vec![]));
        assert_eq!(read(&[0; 3]), Ok(vec![]));
    }

    #[test]
    fn damage_is_reported_with_its_place() {
        let good = entry((1, 0o100644, 1), (0, 0), "name", b"12345678");
        let first = good.len();
        let wrong = |archive: &[u8]| read(archive).unwrap_err();
        let at_start = |what| CpioError { at: 0, what };
        assert_eq!(wrong(b"\x1f\x8b\x08"), at_start(Wrong::Magic));
        for cut in 6..first {
            let cut_off = wrong(&good[..cut]);
            assert_eq!(cut_off, at_start(Wrong::Truncated), "cut at {cut}");
        }
        let mut two = good.clone();
        two.extend_from_slice(b"070707");
        assert_eq!(wrong(&two).at, first);
        let mut digit = good.clone();
        digit[20] = b'g';
        assert_eq!(wrong(&digit), at_start(Wrong::Digit));
        let mut no_nul = good.clone();
        no_nul[114] = b'x';
        assert_eq!(wrong(&no_nul), at_start(Wrong::Name));
        no_nul[112] = 0;
        no_nul[114] = 0;
        assert_eq!(wrong(&no_nul), at_start(Wrong::Name));
        assert!(wrong(&two).to_string().contains("cpio -o -H newc"));
    }

    #[test]
    fn sums_are_checked_where_there_are_any() {
        let mut with_sum = entry((1, 0o100644, 1), (0, 0), "name", b"12345678");
        with_sum[5] = b'2';
        let sum: u32 = b"12345678".iter().map(|byte| u32::from(*byte)).sum();
        with_sum[102..110].copy_from_slice(format!("{sum:08x}").as_bytes());
        assert_eq!(read(&with_sum).unwrap().len(), 1);
        with_sum[102..110].copy_from_slice(format!("{:08x}", sum + 1).as_bytes());
        assert_eq!(read(&with_sum).unwrap_err().what, Wrong::Sum);
    }

    #[test]
    fn sizes_that_overflow_are_truncated_archives() {
        for field in [54, 94] {
            let mut huge = entry((1, 0o100644, 1), (0, 0), "name", b"x");
            huge[field..field + 8].copy_from_slice(b"ffffffff");
            assert_eq!(read(&huge).unwrap_err().what, Wrong::Truncated);
        }
    }
}
