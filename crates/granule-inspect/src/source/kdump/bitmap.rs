//! A bitmap of a kdump file: a bit for each page from address 0 on. Its size scales with the highest address, so
//! it is read where it is needed; kept is a number for each part that has a set bit, and so for memory that is there.

use crate::source::bytes::{ReadAt, cut_off};
use crate::source::cache::Cache;
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::rc::Rc;

/// The bytes of a bitmap that are counted together.
const PART: u64 = 4096;
/// The bytes that are read together while all bits are counted.
const PIECE: u64 = 256 * PART;

/// One bit for each page.
#[derive(Debug)]
pub(super) struct Bitmap {
    /// The offset of its first byte.
    start: u64,
    pages: u64,
    /// The parts with set bits by ascending number, each with the set bits before it.
    before: Vec<(u64, u64)>,
    count: u64,
    parts: RefCell<Cache>,
}

impl Bitmap {
    /// Counts the bits of the bitmap for `pages` pages from the offset `start` on.
    /// Fails if the file does not have all of it, or cannot be read.
    pub(super) fn new(file: &impl ReadAt, start: u64, pages: u64) -> io::Result<Self> {
        let bytes = pages.div_ceil(8);
        let end = start.checked_add(bytes).filter(|&end| end <= file.bytes());
        let end = end.ok_or_else(cut_off)?;
        let mut bitmap = Self {
            start,
            pages,
            before: Vec::new(),
            count: 0,
            parts: RefCell::default(),
        };
        let mut buffer = vec![0; PIECE.min(bytes) as usize];
        let mut at = 0;
        loop {
            // A hole of the file has no set bit.
            let data = file.data_from(start + at);
            if data >= end || at >= bytes {
                return Ok(bitmap);
            }
            at = (data - start) / PART * PART;
            let piece = buffer.get_mut(..PIECE.min(bytes - at) as usize);
            let piece = piece.unwrap_or_default();
            file.read_at(start + at, piece)?;
            for (number, part) in (at / PART..).zip(piece.chunks(PART as usize)) {
                let ones = ones(part);
                if ones > 0 {
                    bitmap.before.push((number, bitmap.count));
                    bitmap.count += ones;
                    bitmap.parts.borrow_mut().put(number, &part.into());
                }
            }
            at += PIECE;
        }
    }

    /// The number of set bits.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// The number of its bits.
    pub(super) const fn pages(&self) -> u64 {
        self.pages
    }

    /// The number of set bits before that of `page`; `None` if that is not set.
    /// Fails if the file cannot be read.
    pub(super) fn rank(&self, file: &impl ReadAt, page: u64) -> io::Result<Option<u64>> {
        let number = page / 8 / PART;
        let found = self.before.binary_search_by_key(&number, |part| part.0);
        let found = found.ok().and_then(|at| self.before.get(at));
        let Some((_, before)) = found.filter(|_| page < self.pages) else {
            return Ok(None);
        };
        let part = self.part(file, number)?;
        let before_it = part.get(..(page / 8 % PART) as usize).unwrap_or_default();
        let byte = part.get(before_it.len()).copied().unwrap_or(0);
        let bit = 1 << (page % 8);
        let rank = before + ones(before_it) + u64::from((byte & (bit - 1)).count_ones());
        Ok((byte & bit != 0).then_some(rank))
    }

    fn part(&self, file: &impl ReadAt, number: u64) -> io::Result<Rc<[u8]>> {
        if let Some(part) = self.parts.borrow().get(number) {
            return Ok(part);
        }
        let at = number * PART;
        let part = file.take(self.start + at, PART.min(self.pages.div_ceil(8) - at), PART)?;
        let part: Rc<[u8]> = part.into();
        self.parts.borrow_mut().put(number, &part);
        Ok(part)
    }

    /// The pages whose bits are set, as ranges; those of a part that cannot be read any more are left out.
    pub(super) fn ranges(&self, file: &impl ReadAt) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for &(number, _) in &self.before {
            let Ok(part) = self.part(file, number) else {
                continue;
            };
            for (at, byte) in (number * PART..).zip(part.iter()).filter(|it| *it.1 != 0) {
                for page in (0..8)
                    .filter(|bit| byte >> bit & 1 != 0)
                    .map(|bit| at * 8 + bit)
                {
                    match ranges.last_mut() {
                        _ if page >= self.pages => {}
                        Some(last) if last.end == page => last.end += 1,
                        _ => ranges.push(page..page + 1),
                    }
                }
            }
        }
        ranges
    }
}

/// Whether the bit of `page` is set in the bitmap from the offset `start` on, which is not counted.
pub(super) fn is_set(file: &impl ReadAt, start: u64, page: u64) -> io::Result<bool> {
    let byte = file.take(start.saturating_add(page / 8), 1, 1)?;
    Ok(byte.first().is_some_and(|byte| byte >> (page % 8) & 1 != 0))
}

fn ones(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words
        .iter()
        .map(|word| u64::from_le_bytes(*word).count_ones());
    let rest = rest.iter().map(|byte| byte.count_ones());
    words.chain(rest).map(u64::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_ranges_agree_with_counting() {
        // Parts without a bit, and a last one that is not whole.
        let part = PART as u32;
        let mut bytes: Vec<u8> = (0..2000_u32).map(|at| (at * at / 7) as u8).collect();
        bytes.resize(5 * PART as usize, 0);
        bytes.extend((0..part + 77).map(|at| (at * 31) as u8));
        let pages = bytes.len() as u64 * 8 - 10;
        let file = [vec![0xff; 3], bytes].concat();
        let bitmap = Bitmap::new(&file, 3, pages).unwrap();
        // What is kept is forgotten, too.
        for forget in [false, true] {
            let (mut rank, mut found) = (0, Vec::new());
            for page in 0..pages + 20 {
                if forget {
                    bitmap.parts.take();
                }
                let set = page < pages && is_set(&file, 3, page).unwrap();
                let expected = set.then_some(rank);
                assert_eq!(bitmap.rank(&file, page).unwrap(), expected, "{page}");
                rank += u64::from(set);
                found.extend(set.then_some(page));
            }
            let ranges = bitmap.ranges(&file);
            assert!(ranges.windows(2).all(|two| two[0].end < two[1].start));
            assert!(ranges.into_iter().flatten().eq(found));
            assert!(rank <= bitmap.count() && bitmap.count() < rank + 10);
        }
        assert_eq!(bitmap.before.len(), 3);
        assert!(Bitmap::new(&file, 4, pages).is_ok_and(|it| it.pages == pages));
        assert!(Bitmap::new(&file, 6, pages).is_err());
    }
}
