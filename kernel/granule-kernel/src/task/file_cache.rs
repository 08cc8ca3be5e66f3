//! The content of programs' files: copied once, into memory that programs of every page size map.
//!
//! A file lies in chunks of the largest page size, each aligned to it, and the rest of the last one is zero. So a
//! page of any size at a multiple of that size in the file is a page of memory. A chunk's frames are single frames
//! of the page allocator, whose first owner is the cache; each page that a program maps is another owner.
//!
//! Files without users go when memory is short, and all of them with user space. If there is no memory for a file's
//! content, a program gets a copy of its own.
//!
//! A page of a program is the file's if nothing but content is in it; the first write copies it. Segments at
//! another place in a page than in the file are copied.

#![allow(unsafe_code, reason = "pages through the linear map")]

use super::frames::sync_instructions;
use super::owned::Array;
use crate::arch::cpu;
use crate::lock::UnmaskedLock;
use crate::mm::kernel_tables::{self, pointer};
use crate::mm::pages;
use granule::arch::{PageSize, PhysicalAddress};

const CHUNK: u64 = PageSize::MAX.bytes();

/// The most files. Few programs are executed at a time; others give way to them.
const MOST_FILES: usize = 32;

struct File {
    /// The offset of the file in the archive, which identifies it.
    start: usize,
    bytes: usize,
    content: Content,
    /// Programs that are being loaded from it.
    users: usize,
}

/// The state of a file's content in memory.
enum Content {
    /// Not in memory: the next CPU that needs it copies it.
    Absent,
    /// A CPU copies it; others that need it wait for that.
    Copying,
    There(Chunks),
}

/// The memory of a file's content, which goes with this value.
struct Chunks(Array<PhysicalAddress>);

/// It is taken with the lock of an address space held, and nothing but the page allocator's locks is taken within.
static FILES: UnmaskedLock<[Option<File>; MOST_FILES]> =
    UnmaskedLock::new([const { None }; MOST_FILES]);

fn frames() -> u64 {
    let page = kernel_tables::kernel().map_or(CHUNK, kernel_tables::Kernel::page);
    CHUNK / page
}

impl Chunks {
    /// Copies a file's content; `None` if there is no memory.
    fn of(content: &[u8]) -> Option<Self> {
        let count = content.len().div_ceil(CHUNK as usize);
        // An address without a chunk, until there is one.
        let mut chunks = Self(Array::new(count, |_| NONE)?);
        for (chunk, piece) in chunks.0.iter_mut().zip(content.chunks(CHUNK as usize)) {
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
        Some(chunks)
    }

    /// Whether no program maps a page of them.
    fn are_alone(&self) -> bool {
        let alone = |chunk: &PhysicalAddress| {
            let mut rest = (*chunk, frames());
            while rest.1 > 0 {
                let (shared, alike) = pages::sharing(rest.0, rest.1);
                if shared {
                    return false;
                }
                let alike = alike.clamp(1, rest.1);
                rest = (
                    PhysicalAddress(rest.0.0.wrapping_add(alike * (CHUNK / frames()))),
                    rest.1 - alike,
                );
            }
            true
        };
        self.0.iter().all(alone)
    }
}

/// The place of a chunk that there is not.
const NONE: PhysicalAddress = PhysicalAddress(u64::MAX);

impl Drop for Chunks {
    fn drop(&mut self) {
        for chunk in self.0.iter().filter(|chunk| **chunk != NONE) {
            pages::release(*chunk, frames());
        }
    }
}

impl File {
    fn is(&self, content: &[u8]) -> bool {
        (self.start, self.bytes) == (content.as_ptr().addr(), content.len())
    }

    /// Whether no program maps a page of it or is being loaded from it.
    fn is_unused(&self) -> bool {
        let alone = match &self.content {
            Content::There(chunks) => chunks.are_alone(),
            _ => true,
        };
        self.users == 0 && alone
    }
}

/// The next step of a CPU that needs a file.
enum Next {
    Copy,
    Wait,
    Done,
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
        let open = FILES.with(|files| {
            let there = |file: &Option<File>| file.as_ref().is_some_and(|file| file.is(content));
            let place = match files.iter().position(there) {
                Some(place) => place,
                None => {
                    let free = files.iter().position(Option::is_none);
                    let unused = |file: &Option<File>| file.as_ref().is_some_and(File::is_unused);
                    let place = free.or_else(|| files.iter().position(unused))?;
                    *files.get_mut(place)? = Some(File {
                        start: content.as_ptr().addr(),
                        bytes: content.len(),
                        content: Content::Absent,
                        users: 0,
                    });
                    place
                }
            };
            files.get_mut(place)?.as_mut()?.users += 1;
            Some(Self {
                place,
                bytes: (content.len() as u64).next_multiple_of(CHUNK),
            })
        })?;
        loop {
            let next = open.file(|file| match file.content {
                Content::There(_) => Next::Done,
                Content::Copying => Next::Wait,
                Content::Absent => {
                    file.content = Content::Copying;
                    Next::Copy
                }
            });
            match next? {
                Next::Done => return Some(open),
                // The other CPU goes on to its end: the kernel is not preempted, and no space is locked here.
                Next::Wait => cpu::relax(),
                Next::Copy => {
                    // Not under the lock, so that programs of other files go on meanwhile.
                    let chunks = Chunks::of(content)
                        .or_else(|| shrink().then(|| Chunks::of(content)).flatten());
                    let is_there = chunks.is_some();
                    open.file(|file| file.content = chunks.map_or(Content::Absent, Content::There));
                    return is_there.then_some(open);
                }
            }
        }
    }

    /// Calls `what` with the file, under the lock.
    fn file<R>(&self, what: impl FnOnce(&mut File) -> R) -> Option<R> {
        FILES.with(|files| Some(what(files.get_mut(self.place)?.as_mut()?)))
    }

    /// The bytes with which the content and its zeros end, a multiple of every page size.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory of the content from `offset` to `end` or the end of the chunk, and its bytes.
    pub(super) fn memory(&self, offset: u64, end: u64) -> Option<(PhysicalAddress, u64)> {
        let chunk = self.file(|file| match &file.content {
            Content::There(chunks) => chunks.0.get((offset / CHUNK) as usize).copied(),
            _ => None,
        })??;
        let inside = offset % CHUNK;
        let bytes = (CHUNK - inside).min(end.checked_sub(offset)?);
        Some((PhysicalAddress(chunk.0.wrapping_add(inside)), bytes))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.file(|file| file.users -= 1);
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
