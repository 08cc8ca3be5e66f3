//! The pages of a kdump file: which there are, where each is, and what it was compressed with.

use crate::source::bytes::{ReadAt, Words};
use crate::source::cache::Cache;
use crate::source::memory::{Memory, ReadError};
use granule::arch::PhysicalAddress;
use std::cell::RefCell;
use std::io::Read;
use std::ops::Range;
use std::rc::Rc;

/// The bytes of a page descriptor.
pub(super) const DESCRIPTOR: u64 = 24;
/// The flags of a page descriptor.
const ZLIB: u32 = 0x1;
const LZO: u32 = 0x2;
const SNAPPY: u32 = 0x4;
const ZSTD: u32 = 0x20;

/// The most bytes of memory that a compressed page may require (zstd's window).
const MOST_WINDOW: u64 = 8 << 20;

/// The bytes of a bitmap that are counted together.
const CHUNK: usize = 512;

/// One bit for each page.
#[derive(Debug)]
pub(super) struct Bitmap {
    bytes: Vec<u8>,
    pages: u64,
    /// The set bits before each chunk.
    before: Vec<u64>,
}

impl Bitmap {
    pub(super) fn new(bytes: Vec<u8>, pages: u64) -> Self {
        let mut before = Vec::new();
        let mut count = 0;
        for chunk in bytes.chunks(CHUNK) {
            before.push(count);
            count += ones(chunk);
        }
        Self {
            bytes,
            pages,
            before,
        }
    }

    /// The number of set bits.
    pub(super) fn count(&self) -> u64 {
        ones(&self.bytes)
    }

    fn has(&self, page: u64) -> bool {
        let byte = usize::try_from(page / 8).ok();
        let byte = byte.and_then(|at| self.bytes.get(at)).copied();
        page < self.pages && byte.unwrap_or(0) >> (page % 8) & 1 != 0
    }

    /// The number of set bits before that of `page`, which there is.
    fn rank(&self, page: u64) -> u64 {
        let at = usize::try_from(page / 8).unwrap_or(usize::MAX);
        let chunk = at / CHUNK;
        let (Some(before), Some(bytes)) =
            (self.before.get(chunk), self.bytes.get(chunk * CHUNK..=at))
        else {
            return 0;
        };
        let last = bytes.last().map_or(0, |byte| byte >> (page % 8));
        before + ones(bytes) - u64::from(last.count_ones())
    }

    /// The pages whose bits are set, as ranges.
    fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (at, byte) in self
            .bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte != 0)
        {
            for bit in (0..8).filter(|bit| byte >> bit & 1 != 0) {
                let page = at as u64 * 8 + bit;
                match ranges.last_mut() {
                    _ if page >= self.pages => {}
                    Some(last) if last.end == page => last.end += 1,
                    _ => ranges.push(page..page + 1),
                }
            }
        }
        ranges
    }
}

fn ones(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(byte.count_ones())).sum()
}

#[derive(Debug)]
pub(super) struct Pages<R> {
    file: R,
    page_bytes: u64,
    /// The pages that the machine has.
    there: Bitmap,
    /// Those that the file has.
    dumped: Bitmap,
    /// The offset of the first page descriptor.
    descriptors: u64,
    cache: RefCell<Cache>,
}

impl<R: ReadAt> Pages<R> {
    pub(super) fn new(
        file: R,
        page_bytes: u64,
        there: Bitmap,
        dumped: Bitmap,
        descriptors: u64,
    ) -> Self {
        Self {
            file,
            page_bytes,
            there,
            dumped,
            descriptors,
            cache: RefCell::default(),
        }
    }

    fn page(&self, number: u64) -> Result<Rc<[u8]>, ReadError> {
        let address = PhysicalAddress(number * self.page_bytes);
        if let Some(page) = self.cache.borrow().get(number) {
            return Ok(page);
        }
        let page: Rc<[u8]> = if self.dumped.has(number) {
            let bytes = self.read_page(number);
            bytes
                .map_err(|why| ReadError::Damaged { address, why })?
                .into()
        } else if self.there.has(number) {
            return Err(ReadError::LeftOut(address));
        } else {
            return Err(ReadError::Absent(address));
        };
        self.cache.borrow_mut().put(number, &page);
        Ok(page)
    }

    fn read_page(&self, number: u64) -> Result<Vec<u8>, String> {
        let place = DESCRIPTOR
            .checked_mul(self.dumped.rank(number))
            .and_then(|offset| offset.checked_add(self.descriptors))
            .ok_or("its descriptor lies outside the file")?;
        let descriptor = self
            .file
            .take(place, DESCRIPTOR, DESCRIPTOR)
            .map_err(|error| format!("its descriptor: {error}"))?;
        let (offset, bytes) = (descriptor.u64_at(0), u64::from(descriptor.u32_at(8)));
        // A page that does not get smaller is stored as it is.
        if bytes > self.page_bytes {
            return Err(format!(
                "{bytes} bytes are stored for it, more than a page has"
            ));
        }
        let stored = self
            .file
            .take(offset, bytes, self.page_bytes)
            .map_err(|error| format!("{bytes} bytes at offset {offset:#x}: {error}"))?;
        let page = expand(&stored, descriptor.u32_at(12), self.page_bytes as usize)?;
        if page.len() as u64 != self.page_bytes {
            return Err(format!(
                "it expands to {} bytes instead of {}",
                page.len(),
                self.page_bytes
            ));
        }
        Ok(page)
    }
}

/// The page that was compressed; at most one byte more than `bytes`.
fn expand(stored: &[u8], flags: u32, bytes: usize) -> Result<Vec<u8>, String> {
    let most = bytes as u64 + 1;
    let mut page = Vec::new();
    match flags & (ZLIB | LZO | SNAPPY | ZSTD) {
        0 => page.extend_from_slice(stored),
        ZLIB => {
            let mut zlib = flate2::read::ZlibDecoder::new(stored).take(most);
            zlib.read_to_end(&mut page)
                .map_err(|error| format!("zlib: {error}"))?;
        }
        LZO => {
            page.resize(bytes, 0);
            let length = lzokay::decompress::decompress(stored, &mut page)
                .map_err(|error| format!("lzo: {error}"))?;
            page.truncate(length);
        }
        SNAPPY => {
            page.resize(bytes, 0);
            let length = snap::raw::Decoder::new()
                .decompress(stored, &mut page)
                .map_err(|error| format!("snappy: {error}"))?;
            page.truncate(length);
        }
        ZSTD => {
            let mut decoder = ruzstd::decoding::FrameDecoder::new();
            decoder.set_max_window_size(MOST_WINDOW);
            let zstd = ruzstd::decoding::StreamingDecoder::new_with_decoder(stored, decoder)
                .map_err(|error| format!("zstd: {error}"))?;
            zstd.take(most)
                .read_to_end(&mut page)
                .map_err(|error| format!("zstd: {error}"))?;
        }
        flags => return Err(format!("its compression {flags:#x} is not known")),
    }
    Ok(page)
}

impl<R: ReadAt> Memory for Pages<R> {
    fn read(&self, address: PhysicalAddress, buffer: &mut [u8]) -> Result<(), ReadError> {
        let (mut at, mut rest) = (address.0, buffer);
        while !rest.is_empty() {
            let page = self.page(at / self.page_bytes)?;
            let page = page
                .get((at % self.page_bytes) as usize..)
                .unwrap_or_default();
            let now = rest.len().min(page.len());
            let (part, others) = rest.split_at_mut(now);
            part.copy_from_slice(page.get(..now).unwrap_or_default());
            rest = others;
            let next = at.checked_add(now as u64).filter(|_| now > 0);
            match next {
                Some(next) => at = next,
                None if rest.is_empty() => {}
                None => return Err(ReadError::Absent(PhysicalAddress(at))),
            }
        }
        Ok(())
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        let scale = |page: u64| page.saturating_mul(self.page_bytes);
        let ranges = self.dumped.ranges().into_iter();
        ranges
            .map(|range| scale(range.start)..scale(range.end))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_ranges_agree_with_counting() {
        let bytes: Vec<u8> = (0..2000_u32).map(|at| (at * at / 7) as u8).collect();
        let bitmap = Bitmap::new(bytes, 15_990);
        let (mut rank, mut pages) = (0, Vec::new());
        for page in 0..16_000 {
            if bitmap.has(page) {
                assert_eq!(bitmap.rank(page), rank, "{page}");
                rank += 1;
                pages.push(page);
            }
        }
        assert!(pages.last().is_some_and(|last| *last < 15_990));
        let ranges = bitmap.ranges();
        assert!(ranges.windows(2).all(|two| two[0].end < two[1].start));
        assert!(ranges.into_iter().flatten().eq(pages));
    }
}
