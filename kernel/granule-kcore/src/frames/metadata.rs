//! Page metadata: one entry of 12 bytes for each frame, in RAM that the caller provides. All `unsafe`
//! of the allocator is here.
//!
//! The memory may hold anything at first. Entries are initialised a chunk at a time, when the first
//! entry of the chunk is written; a bit per chunk records that. An entry of an untouched chunk is not
//! read: it counts as `PageMetadata::Inside`, as a fresh entry would. So a boot with much RAM
//! initialises only the bits (64 KiB for 512 GiB of 4K pages) and the chunks of a few large blocks.
//!
//! An entry has three words. The first is the state: kind, order, and two bytes for the owner. The
//! other two are list links while the frame heads a free block. While the frame is allocated they
//! belong to the owner: a reference count and one more word. The two of a frame that is
//! [subdivided](super::subdivide) are the place of its record.

#![allow(unsafe_code, reason = "entries in memory that is not initialised yet")]

use core::mem::MaybeUninit;

/// Words of an entry: the state and two more.
const ENTRY_WORDS: usize = 3;

/// Log2 of the entries that are initialised at a time: 3 KiB, so that the bits stay small and the
/// first touch of a chunk is cheap.
const CHUNK_SHIFT: u32 = 8;

/// Entries that are initialised at a time.
pub(super) const CHUNK_ENTRIES: u32 = 1 << CHUNK_SHIFT;

/// The null link.
pub(super) const NONE: u32 = u32::MAX;

const KIND_FREE: u32 = 1;
const KIND_ALLOCATED: u32 = 2;
const KIND_RUN: u32 = 3;
const ORDER_SHIFT: u32 = 8;
/// In the byte of the order: a frame allocated by itself that is subdivided. So it is not a single
/// frame for [`ALONE_MASK`], and of no order that a caller could free; nothing else has to check it.
pub(super) const SUBDIVIDED: u32 = 0x40;
/// Mask of kind and order: a frame allocated by itself has [`KIND_ALLOCATED`] there.
const ALONE_MASK: u32 = 0xffff;
/// The most owners of a frame beside its first.
const MOST_FURTHER_OWNERS: u32 = u32::MAX;

/// One word of metadata memory, which may hold anything.
pub type Word = MaybeUninit<u32>;

const fn bit_words(frames: u64) -> u64 {
    frames
        .div_ceil(CHUNK_ENTRIES as u64)
        .div_ceil(u32::BITS as u64)
}

/// The bytes of metadata that a span of `frames` frames needs: 12 a frame and the bits.
pub const fn metadata_bytes(frames: u64) -> u64 {
    metadata_words(frames).saturating_mul(size_of::<Word>() as u64)
}

/// [`metadata_bytes`] in words.
pub(super) const fn metadata_words(frames: u64) -> u64 {
    frames
        .saturating_mul(ENTRY_WORDS as u64)
        .saturating_add(bit_words(frames))
}

/// The memory of [`metadata_bytes`]`(frames)` bytes at `start`, as the allocator takes it.
///
/// # Safety
///
/// That memory must be mapped writable, aligned to a word, and used by no other code for `'m`. It
/// need not be initialised.
pub unsafe fn metadata_at<'m>(start: *mut Word, frames: u64) -> &'m mut [Word] {
    // SAFETY: the caller keeps the conditions on the memory. A `Word` may be uninitialised.
    unsafe { core::slice::from_raw_parts_mut(start, metadata_words(frames) as usize) }
}

/// The state of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageMetadata {
    /// No block begins here: the frame lies inside one, or was never given in.
    Inside,
    /// The first frame of a free block, and its neighbours in the list of its order.
    Free { order: u32, next: u32, prev: u32 },
    /// The first frame of an allocated block; with the order [`SUBDIVIDED`] a single frame.
    Allocated { order: u32 },
    /// The first of `2^order` frames, more than one, that are allocated as single frames and have the same
    /// owners. So one count serves all of them, until one of them is shared or released without the others.
    Run { order: u32 },
}

/// The words of an entry.
///
/// # Safety
///
/// All of them were written.
const unsafe fn initialised(entry: &[Word; ENTRY_WORDS]) -> [u32; ENTRY_WORDS] {
    let [state, owners, rest] = entry;
    // SAFETY: the caller promises it.
    unsafe {
        [
            state.assume_init(),
            owners.assume_init(),
            rest.assume_init(),
        ]
    }
}

/// The metadata entries of a span.
pub(super) struct Entries<'m> {
    /// A bit for each chunk whose entries are all initialised.
    touched: &'m mut [u32],
    entries: &'m mut [[Word; ENTRY_WORDS]],
    /// Number of entries in those chunks.
    touched_entries: u32,
}

impl<'m> Entries<'m> {
    /// No entries.
    pub(super) const fn empty() -> Self {
        Self {
            touched: &mut [],
            entries: &mut [],
            touched_entries: 0,
        }
    }

    /// Entries for `frames` frames in `memory`, or `None` if it is too small.
    pub(super) fn new(memory: &'m mut [Word], frames: u32) -> Option<Self> {
        let bit_words = bit_words(u64::from(frames)) as usize;
        let (bits, rest) = memory.split_at_mut_checked(bit_words)?;
        let (entries, _) = rest.as_chunks_mut();
        let entries = entries.get_mut(..frames as usize)?;
        for word in &mut *bits {
            word.write(0);
        }
        let bits: *mut [Word] = bits;
        // SAFETY: every word was just written, and a `MaybeUninit<u32>` has the layout of a `u32`. The
        // original slice is not used again for `'m`.
        let touched = unsafe { &mut *(bits as *mut [u32]) };
        Some(Self {
            touched,
            entries,
            touched_entries: 0,
        })
    }

    /// Number of entries initialised so far.
    pub(super) fn touched(&self) -> u64 {
        u64::from(self.touched_entries)
    }

    fn chunk_is_touched(&self, chunk: u32) -> bool {
        self.touched
            .get((chunk / u32::BITS) as usize)
            .is_some_and(|word| word >> (chunk % u32::BITS) & 1 != 0)
    }

    /// The entry at `offset`. An entry that was never written, or does not exist, reads as inside.
    pub(super) fn read(&self, offset: u32) -> PageMetadata {
        if !self.chunk_is_touched(offset >> CHUNK_SHIFT) {
            return PageMetadata::Inside;
        }
        let Some(words) = self.entries.get(offset as usize) else {
            return PageMetadata::Inside;
        };
        // SAFETY: only `touch` sets the chunk's bit, after it wrote every word of every entry of the
        // chunk. No code here makes a word uninitialised again, and no other code writes the memory
        // (promised to `metadata_at`, or by the borrow).
        let [state, next, prev] = words.map(|word| unsafe { word.assume_init() });
        let order = state >> ORDER_SHIFT & 0xff;
        match state & 0xff {
            KIND_FREE => PageMetadata::Free { order, next, prev },
            KIND_ALLOCATED => PageMetadata::Allocated { order },
            KIND_RUN => PageMetadata::Run { order },
            _ => PageMetadata::Inside,
        }
    }

    /// Writes the entry at `offset`, and initialises its chunk if it is the chunk's first entry.
    pub(super) fn write(&mut self, offset: u32, entry: PageMetadata) {
        let chunk = offset >> CHUNK_SHIFT;
        if !self.chunk_is_touched(chunk) {
            if entry == PageMetadata::Inside {
                return;
            }
            self.touch(chunk);
        }
        let words = match entry {
            PageMetadata::Inside => [0; ENTRY_WORDS],
            PageMetadata::Free { order, next, prev } => {
                [KIND_FREE | order << ORDER_SHIFT, next, prev]
            }
            // The owner's two words begin as zero.
            PageMetadata::Allocated { order } => [KIND_ALLOCATED | order << ORDER_SHIFT, 0, 0],
            PageMetadata::Run { order } => [KIND_RUN | order << ORDER_SHIFT, 0, 0],
        };
        if let Some(slot) = self.entries.get_mut(offset as usize) {
            *slot = words.map(Word::new);
        }
    }

    /// Changes the link to the next block of the free block at `offset`.
    pub(super) fn set_next(&mut self, offset: u32, next: u32) {
        if let Some([_, slot, _]) = self.entries.get_mut(offset as usize) {
            slot.write(next);
        }
    }

    /// Changes the link to the previous block of the free block at `offset`.
    pub(super) fn set_prev(&mut self, offset: u32, prev: u32) {
        if let Some([_, _, slot]) = self.entries.get_mut(offset as usize) {
            slot.write(prev);
        }
    }

    /// Owners, beside the first, of the single frame allocated at `offset`, if there is one.
    #[inline(always)]
    pub(super) fn further_owners(&self, offset: u32) -> Option<u32> {
        if !self.chunk_is_touched(offset >> CHUNK_SHIFT) {
            return None;
        }
        let [state, owners, _] = self.entries.get(offset as usize)?;
        // SAFETY: as in `read`: the chunk is touched, so each of its words was written.
        let (state, owners) = unsafe { (state.assume_init(), owners.assume_init()) };
        (state & ALONE_MASK == KIND_ALLOCATED).then_some(owners)
    }

    /// Whether the single frame allocated at `offset` has owners beside its first, and for how many of
    /// the `count` single frames from `offset` on the answer is the same, at most to the end of the
    /// chunk. `None` if there is no such frame.
    pub(super) fn sharing(&self, offset: u32, count: u32) -> Option<(bool, u32)> {
        let owners = self.further_owners(offset)?;
        let shared = owners > 0;
        if count == 1 {
            // Every copy on write queries one frame only.
            return Some((shared, 1));
        }
        let left = CHUNK_ENTRIES - offset % CHUNK_ENTRIES;
        let rest = self.entries.get(offset as usize..)?;
        let rest = rest.get(..count.min(left) as usize).unwrap_or(rest);
        let other = |[state, owners, _]: &[Word; ENTRY_WORDS]| {
            // SAFETY: as in `read`. These words are in the same chunk as the first entry, which is
            // touched, so each was written.
            let (state, owners) = unsafe { (state.assume_init(), owners.assume_init()) };
            state & ALONE_MASK != KIND_ALLOCATED || (owners > 0) != shared
        };
        let alike = rest.iter().position(other).unwrap_or(rest.len());
        Some((shared, alike as u32))
    }

    /// Sets [`further_owners`](Self::further_owners).
    pub(super) fn set_further_owners(&mut self, offset: u32, owners: u32) {
        if let Some([_, slot, _]) = self.entries.get_mut(offset as usize) {
            slot.write(owners);
        }
    }

    /// Adds an owner to each of the single frames from `first` to `end`, or to the frames of the run that
    /// begins there, up to the first one that is neither, is in a run that reaches beyond `end`, or has the
    /// most owners, at most to the end of the chunk. Returns their number.
    pub(super) fn share(&mut self, first: u32, end: u32) -> u32 {
        let mut shared = 0;
        for entry in self.chunk_from(first, end) {
            // SAFETY: `chunk_from` returns initialised entries.
            let [state, owners, _] = unsafe { initialised(entry) };
            if state & ALONE_MASK != KIND_ALLOCATED || owners == MOST_FURTHER_OWNERS {
                break;
            }
            let [_, slot, _] = entry;
            slot.write(owners + 1);
            shared += 1;
        }
        if shared == 0
            && let Some((count, owners)) = self.run(first)
            && count <= end - first
            && owners < MOST_FURTHER_OWNERS
        {
            self.set_further_owners(first, owners + 1);
            shared = count;
        }
        shared
    }

    /// Removes an owner from each of the single frames from `first` to `end`, or from the frames of the run
    /// that begins there, up to the first one that is neither, is in a run that reaches beyond `end`, or has
    /// `further` owners where the first one has none, and the other way round, at most to the end of the
    /// chunk. Frames without owners are not blocks any more. Returns the number of frames, and
    /// whether they have no owners left.
    pub(super) fn unshare(&mut self, first: u32, end: u32) -> (u32, bool) {
        let Some(further) = self.further_owners(first) else {
            return self.unshare_run(first, end);
        };
        let gone = further == 0;
        let mut done = 0;
        for entry in self.chunk_from(first, end) {
            // SAFETY: `chunk_from` returns initialised entries.
            let [state, owners, _] = unsafe { initialised(entry) };
            if state & ALONE_MASK != KIND_ALLOCATED || (owners == 0) != gone {
                break;
            }
            if gone {
                *entry = [Word::new(0); ENTRY_WORDS];
            } else {
                let [_, slot, _] = entry;
                slot.write(owners - 1);
            }
            done += 1;
        }
        (done, gone)
    }

    fn unshare_run(&mut self, first: u32, end: u32) -> (u32, bool) {
        let Some((count, owners)) = self.run(first).filter(|(count, _)| *count <= end - first)
        else {
            return (0, false);
        };
        match owners.checked_sub(1) {
            Some(left) => self.set_further_owners(first, left),
            None => self.write(first, PageMetadata::Inside),
        }
        (count, owners == 0)
    }

    /// The frames of the run that begins at `offset`, and their owners beside the first.
    pub(super) fn run(&self, offset: u32) -> Option<(u32, u32)> {
        match self.read(offset) {
            PageMetadata::Run { order } => {
                let [_, owners, _] = self.entries.get(offset as usize)?;
                // SAFETY: as in `read`, which found a run there, so the chunk is touched.
                Some((1 << order, unsafe { owners.assume_init() }))
            }
            _ => None,
        }
    }

    /// Makes two runs, or two single frames, of the run that begins at `offset`.
    pub(super) fn halve(&mut self, offset: u32) {
        let (PageMetadata::Run { order }, Some((count, owners))) =
            (self.read(offset), self.run(offset))
        else {
            return;
        };
        let half = match order {
            1 => PageMetadata::Allocated { order: 0 },
            _ => PageMetadata::Run { order: order - 1 },
        };
        for part in [offset, offset + count / 2] {
            self.write(part, half);
            self.set_further_owners(part, owners);
        }
    }

    /// The entries from `first` on, at most to `end` and to the end of their chunk; none if the chunk
    /// was never touched. All of their words are initialised.
    fn chunk_from(&mut self, first: u32, end: u32) -> &mut [[Word; ENTRY_WORDS]] {
        if !self.chunk_is_touched(first >> CHUNK_SHIFT) {
            return &mut [];
        }
        let chunk_end = (first | (CHUNK_ENTRIES - 1)).saturating_add(1);
        let end = end.min(chunk_end) as usize;
        let end = end.min(self.entries.len());
        self.entries
            .get_mut(first as usize..end)
            .unwrap_or_default()
    }

    /// Marks the single frame at `offset`, which has one owner, as subdivided with this record. False,
    /// and nothing has changed, if there is no such frame.
    pub(super) fn subdivide(&mut self, offset: u32, record: u64) -> bool {
        let sound = self.further_owners(offset) == Some(0);
        if sound && let Some(slot) = self.entries.get_mut(offset as usize) {
            let words = [
                KIND_ALLOCATED | SUBDIVIDED << ORDER_SHIFT,
                record as u32,
                (record >> u32::BITS) as u32,
            ];
            *slot = words.map(Word::new);
        }
        sound
    }

    /// The record of the subdivided frame at `offset`; `None` if there is no such frame.
    pub(super) fn record(&self, offset: u32) -> Option<u64> {
        if !self.chunk_is_touched(offset >> CHUNK_SHIFT) {
            return None;
        }
        let words = self.entries.get(offset as usize)?;
        // SAFETY: as in `read`: the chunk is touched, so each of its words was written.
        let [state, low, high] = words.map(|word| unsafe { word.assume_init() });
        let subdivided = KIND_ALLOCATED | SUBDIVIDED << ORDER_SHIFT;
        (state & ALONE_MASK == subdivided).then(|| u64::from(high) << u32::BITS | u64::from(low))
    }

    /// The first frame in `start..end` that heads a block. Skips untouched chunks.
    pub(super) fn first_head(&self, start: u32, end: u32) -> Option<u32> {
        let mut at = start;
        while at < end {
            let chunk = at >> CHUNK_SHIFT;
            let bits = self.touched.get((chunk / u32::BITS) as usize)?;
            let skipped = match bits >> (chunk % u32::BITS) {
                0 => u32::BITS - chunk % u32::BITS,
                bits => bits.trailing_zeros(),
            };
            if skipped > 0 {
                at = (chunk + skipped).checked_mul(CHUNK_ENTRIES)?;
                continue;
            }
            let chunk_end = (at | (CHUNK_ENTRIES - 1)).saturating_add(1).min(end);
            if let Some(head) = (at..chunk_end).find(|at| self.read(*at) != PageMetadata::Inside) {
                return Some(head);
            }
            at = chunk_end;
        }
        None
    }

    #[cold]
    fn touch(&mut self, chunk: u32) {
        let first = (chunk as usize) << CHUNK_SHIFT;
        let end = (first + CHUNK_ENTRIES as usize).min(self.entries.len());
        let (Some(entries), Some(bits)) = (
            self.entries.get_mut(first..end),
            self.touched.get_mut((chunk / u32::BITS) as usize),
        ) else {
            return;
        };
        entries.fill([Word::new(0); ENTRY_WORDS]);
        *bits |= 1 << (chunk % u32::BITS);
        self.touched_entries += (end - first) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_never_takes_more_than_sixteen_bytes() {
        let most = u64::from(u32::MAX);
        for frames in [1, 2, 255, 256, 257, 8192, 8193, 1 << 27, most] {
            assert!(metadata_bytes(frames) <= 16 * frames, "{frames} frames");
            assert!(metadata_bytes(frames) >= 12 * frames, "{frames} frames");
        }
    }

    #[test]
    fn memory_one_word_short_is_refused() {
        for frames in [1u32, 256, 257, 9000] {
            let words = metadata_words(u64::from(frames)) as usize;
            let mut memory = Box::<[u32]>::new_uninit_slice(words);
            assert!(Entries::new(&mut memory, frames).is_some());
            let short = memory.get_mut(1..).unwrap();
            assert!(Entries::new(short, frames).is_none());
            assert!(Entries::new(&mut [], frames).is_none());
        }
    }

    #[test]
    fn entries_are_initialised_by_the_chunk_that_is_written() {
        let frames = 3 * CHUNK_ENTRIES + 10;
        let mut memory = Box::<[u32]>::new_uninit_slice(metadata_words(u64::from(frames)) as usize);
        // The entries are made through a pointer, as in the kernel.
        // SAFETY: the box has the words of so many frames, and is used only through this slice.
        let words = unsafe { metadata_at(memory.as_mut_ptr(), u64::from(frames)) };
        let mut entries = Entries::new(words, frames).unwrap();
        assert_eq!(entries.touched(), 0);
        assert_eq!(entries.first_head(0, frames), None);
        // An entry that would not change is not written.
        entries.write(300, PageMetadata::Inside);
        assert_eq!(entries.touched(), 0);

        let (order, next, prev) = (22, NONE, 7);
        let free = PageMetadata::Free { order, next, prev };
        entries.write(300, free);
        assert_eq!(entries.touched(), 256);
        assert_eq!(entries.read(300), free);
        for offset in (0..300).chain(301..frames + 300) {
            assert_eq!(entries.read(offset), PageMetadata::Inside, "{offset}");
        }
        // The last chunk is a partial one.
        let allocated = PageMetadata::Allocated { order: 1 };
        entries.write(frames - 1, allocated);
        assert_eq!(entries.touched(), 256 + 10);
        assert_eq!(entries.read(frames - 1), allocated);
        entries.write(frames, allocated);
        assert_eq!(entries.read(frames), PageMetadata::Inside);
        assert_eq!(entries.touched(), 256 + 10);

        assert_eq!(entries.first_head(0, frames), Some(300));
        assert_eq!(entries.first_head(0, 300), None);
        assert_eq!(entries.first_head(300, 301), Some(300));
        assert_eq!(entries.first_head(301, frames), Some(frames - 1));
        assert_eq!(entries.first_head(301, frames - 1), None);
        entries.set_next(300, 1);
        entries.set_prev(300, 2);
        let (order, next, prev) = (22, 1, 2);
        assert_eq!(entries.read(300), PageMetadata::Free { order, next, prev });
    }
}
