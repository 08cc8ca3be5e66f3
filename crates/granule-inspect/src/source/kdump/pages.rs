//! The pages of a kdump file: which there are, where each is, and what it was compressed with.

use super::bitmap::{Bitmap, is_set};
use crate::source::bytes::{ReadAt, Words};
use crate::source::cache::Cache;
use crate::source::memory::{Memory, ReadError};
use granule::arch::PhysicalAddress;
use std::cell::RefCell;
use std::io::{self, Read};
use std::ops::Range;
use std::rc::Rc;

/// The bytes of a page descriptor.
pub(super) const DESCRIPTOR: u64 = 24;
/// The last descriptors that are looked at for the end of the file: pages of zeros lie at the front.
const LAST: u64 = 1024;
/// The flags of a page descriptor.
const ZLIB: u32 = 0x1;
const LZO: u32 = 0x2;
const SNAPPY: u32 = 0x4;
const ZSTD: u32 = 0x20;

/// The most bytes of memory that a compressed page may require (zstd's window).
const MOST_WINDOW: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct Pages<R> {
    file: R,
    page_bytes: u64,
    /// The offset of the bitmap of the pages that the machine has, for as many pages as the other.
    there: u64,
    /// The pages that the file has.
    dumped: Bitmap,
    /// The offset of the first page descriptor.
    descriptors: u64,
    cache: RefCell<Cache>,
}

impl<R: ReadAt> Pages<R> {
    pub(super) fn new(
        file: R,
        page_bytes: u64,
        there: u64,
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
        let failed = |why| ReadError::Damaged { address, why };
        let no_bit = |error| failed(format!("its bit in the bitmap: {error}"));
        let rank = self.dumped.rank(&self.file, number).map_err(no_bit)?;
        let Some(rank) = rank else {
            let there = number < self.dumped.pages();
            let there = there && is_set(&self.file, self.there, number).map_err(no_bit)?;
            return Err(match there {
                true => ReadError::LeftOut(address),
                false => ReadError::Absent(address),
            });
        };
        let page: Rc<[u8]> = self.read_page(rank).map_err(failed)?.into();
        self.cache.borrow_mut().put(number, &page);
        Ok(page)
    }

    /// The number of bytes by which the file ends before its last pages, as their descriptors have them.
    /// Fails if it ends before the last descriptor.
    pub(super) fn cut_off(&self) -> io::Result<u64> {
        let last = self.dumped.count().min(LAST);
        let place = self.descriptor(self.dumped.count() - last);
        let bytes = last * DESCRIPTOR;
        let descriptors = self.file.take(place, bytes, bytes)?;
        let (descriptors, _) = descriptors.as_chunks::<{ DESCRIPTOR as usize }>();
        let ends = descriptors
            .iter()
            .map(|it| it.u64_at(0).saturating_add(u64::from(it.u32_at(8))));
        Ok(ends
            .max()
            .map_or(0, |end| end.saturating_sub(self.file.bytes())))
    }

    /// The offset of the descriptor of the page that comes after `rank` others.
    const fn descriptor(&self, rank: u64) -> u64 {
        self.descriptors
            .saturating_add(rank.saturating_mul(DESCRIPTOR))
    }

    fn read_page(&self, rank: u64) -> Result<Vec<u8>, String> {
        let place = self.descriptor(rank);
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
        let ranges = self.dumped.ranges(&self.file).into_iter();
        ranges
            .map(|range| scale(range.start)..scale(range.end))
            .collect()
    }
}
