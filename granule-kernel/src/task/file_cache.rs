//! The content of programs' files: copied once, into memory that programs of every page size map.
//!
//! A file lies in chunks of the largest page size, each aligned to it, and the rest of the last one is zero. So a
//! page of any size at a multiple of that size in the file is a page of memory. A chunk's frames are single frames
//! of the page allocator, whose first owner is the cache; each page that a program maps is another owner.
//!
//! Files without users go when memory is short, and all of them with user space. If there is no memory for a file's
//! content, a program gets a copy of its own.

use super::frames::sync_instructions;
use super::owned::Array;
use crate::lock::UnmaskedLock;
use crate::mm::kernel_tables::{self, pointer};
use crate::mm::pages;
use granule::arch::{PageSize, PhysicalAddress};

/// Bytes of a chunk.
const CHUNK: u64 = PageSize::MAX.bytes();

/// The most files. Few programs are executed at a time; others give way to them.
const MOST_FILES: usize = 32;

/// The content of one file.
struct File {
    /// Where the file is in the archive, which says which one it is.
    start: usize,
    bytes: usize,
    chunks: Array<PhysicalAddress>,
    /// Programs that are being loaded from it.
    users: usize,
}

/// The lock is held while a file is copied. It is taken with the lock of an address space held, and nothing but
/// the page allocator's locks is taken within.
static FILES: UnmaskedLock<[Option<File>; MOST_FILES]> =
    UnmaskedLock::new([const { None }; MOST_FILES]);

/// Frames of a chunk.
fn frames() -> u64 {
    let page = kernel_tables::kernel().map_or(CHUNK, kernel_tables::Kernel::page);
    CHUNK / page
}

impl File {
    /// Copies a file's content; `None` if there is no memory.
    fn new(content: &[u8]) -> Option<Self> {
        let count = content.len().div_ceil(CHUNK as usize);
        let mut file = Self {
            start: content.as_ptr().addr(),
            bytes: content.len(),
            // An address that is no chunk's, until there is one.
            chunks: Array::new(count, |_| NONE)?,
            users: 0,
        };
        for (chunk, piece) in file.chunks.iter_mut().zip(content.chunks(CHUNK as usize)) {
            let to = pages::allocate_singles(frames())?;
            *chunk = to;
            let start = pointer(to)?;
            // SAFETY: the chunk was just allocated and is of this size. The linear map shows it writable.
            let to_bytes =
                unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), CHUNK as usize) };
            let (filled, rest) = to_bytes.split_at_mut_checked(piece.len())?;
            filled.copy_from_slice(piece);
            rest.fill(0);
            sync_instructions(to, CHUNK);
        }
        Some(file)
    }

    fn is(&self, content: &[u8]) -> bool {
        (self.start, self.bytes) == (content.as_ptr().addr(), content.len())
    }

    /// Whether no program maps a page of it or is being loaded from it.
    fn is_unused(&self) -> bool {
        let alone = |chunk: &PhysicalAddress| {
            let mut rest = (*chunk, frames());
            while rest.1 > 0 {
                let (shared, alike) = pages::sharing(rest.0, rest.1);
                if shared {
                    return false;
                }
                let alike = alike.clamp(1, rest.1);
                rest = (
                    rest.0.wrapping_add(alike * (CHUNK / frames())),
                    rest.1 - alike,
                );
            }
            true
        };
        self.users == 0 && self.chunks.iter().all(alone)
    }
}

/// The place of a chunk that there is not.
const NONE: PhysicalAddress = PhysicalAddress(u64::MAX);

impl Drop for File {
    fn drop(&mut self) {
        for chunk in self.chunks.iter().filter(|chunk| **chunk != NONE) {
            pages::release(*chunk, frames());
        }
    }
}

/// A file whose content is in the cache as long as this lives.
#[derive(Debug)]
pub(super) struct Open {
    place: usize,
    bytes: u64,
}

impl Open {
    /// The file with this content, which lies in the archive. `None` if there is no memory for it.
    pub(super) fn new(content: &'static [u8]) -> Option<Self> {
        if content.is_empty() {
            return None;
        }
        FILES.with(|files| {
            let there = |file: &Option<File>| file.as_ref().is_some_and(|file| file.is(content));
            let place = match files.iter().position(there) {
                Some(place) => place,
                None => {
                    let free = files.iter().position(Option::is_none);
                    let unused = |file: &Option<File>| file.as_ref().is_some_and(File::is_unused);
                    let place = free.or_else(|| files.iter().position(unused))?;
                    let slot = files.get_mut(place)?;
                    *slot = None;
                    *slot = Some(File::new(content)?);
                    place
                }
            };
            files.get_mut(place)?.as_mut()?.users += 1;
            Some(Self {
                place,
                bytes: (content.len() as u64).next_multiple_of(CHUNK),
            })
        })
    }

    /// The bytes with which the content and its zeros end, a multiple of every page size.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory of the content from `offset` to `end` or the end of the chunk, and its bytes.
    pub(super) fn memory(&self, offset: u64, end: u64) -> Option<(PhysicalAddress, u64)> {
        let chunk = FILES.with(|files| {
            let chunks = &files.get(self.place)?.as_ref()?.chunks;
            chunks.get((offset / CHUNK) as usize).copied()
        })?;
        let inside = offset % CHUNK;
        let bytes = (CHUNK - inside).min(end.checked_sub(offset)?);
        Some((chunk.wrapping_add(inside), bytes))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        FILES.with(|files| {
            if let Some(Some(file)) = files.get_mut(self.place) {
                file.users -= 1;
            }
        });
    }
}

/// Drops the content of all unused files. False if there was none.
pub(super) fn shrink() -> bool {
    FILES.with(|files| {
        let mut any = false;
        for slot in files {
            if slot.as_ref().is_some_and(File::is_unused) {
                *slot = None;
                any = true;
            }
        }
        any
    })
}

/// Drops all content, once no program is left.
pub(super) fn close() {
    FILES.with(|files| files.fill_with(|| None));
}
