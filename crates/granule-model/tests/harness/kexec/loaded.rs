//! A loaded kernel, and the place of each part: an image of some pages, one of them in place, with
//! a page behind them that the next kernel zeroes itself; a device tree; an initramfs.

use super::cpu::Role;
use super::events::{stored, stored_code};
use super::leaving::Plan;
use crate::machine::Shared;
use crate::random::Random;
use granule_kexec::{Clean, Digest, PhysRange, Segment};

/// RAM that the linear maps show.
pub(super) const RAM: u64 = 0x8000_0000;
pub(super) const RAM_BYTES: u64 = 1 << 27;
pub(super) const IMAGE: u64 = RAM;
pub(super) const TREE: u64 = RAM + (1 << 24);
pub(super) const INITRAMFS: u64 = RAM + (2 << 24);
pub(super) const SOURCES: u64 = RAM + (4 << 24);
pub(super) const LIST: u64 = RAM + (6 << 24);
/// The relocation code's page.
pub(super) const CODE: u64 = RAM + (7 << 24);
/// Transitional tables, which the kernel's linear map shows, and theirs need not.
pub(super) const TABLES: u64 = RAM + (7 << 24) + (1 << 23);
pub(super) const TABLES_END: u64 = RAM + RAM_BYTES;
/// The kernel's own code, and where it is seen.
pub(super) const TEXT: u64 = 0x6000_0000;
pub(super) const TEXT_OFFSET: u64 = 0x60_0000_0000;

/// Returns the segments to be moved, with the pages that they are in.
pub(super) fn segments(page: u64, random: &mut Random) -> Vec<(Segment<'static>, Vec<PhysRange>)> {
    // Sources anywhere among theirs, one after the other now and then.
    let mut next = 0;
    let mut source = || {
        next += page * (1 + random.below(2));
        PhysRange::new(SOURCES + next, page)
    };
    let image = vec![source(), PhysRange::new(IMAGE + page, page), source()];
    let tree = vec![source()];
    let initramfs = vec![source(), source()];
    let segment = |name, destination, pages: &[PhysRange], less, behind, clean| Segment {
        name,
        destination,
        bytes: pages.len() as u64 * page - less,
        memory: (pages.len() as u64 + behind) * page,
        pages: &[],
        clean,
    };
    vec![
        (segment("image", IMAGE, &image, 100, 1, Clean::All), image),
        (segment("device tree", TREE, &tree, 8, 0, Clean::All), tree),
        (
            segment("initramfs", INITRAMFS, &initramfs, 0, 0, Clean::Nothing),
            initramfs,
        ),
    ]
}

pub(super) fn digest(of: &Segment<'_>, word: impl Fn(u64) -> u64) -> u64 {
    let mut digest = Digest::new();
    for at in (0..of.bytes.next_multiple_of(8)).step_by(8) {
        digest.word(word(at));
    }
    digest.value()
}

/// Loads the next kernel's segments: what is in place is stored where it is to be, and what
/// is to be moved past the caches is stored in its sources. Before that all destinations were used,
/// and lines of theirs are dirty.
pub(super) fn load(
    world: &Shared,
    segments: &[(Segment<'static>, Vec<PhysRange>)],
    plan: Plan,
    page: u64,
) -> Vec<Role> {
    let mut roles = Vec::new();
    for (segment, pages) in segments {
        let image = segment.destination == IMAGE;
        let is_recorded = segment.clean != Clean::Nothing || plan.uncached;
        let end = segment.destination + segment.memory;
        roles.push(((segment.destination, end), is_recorded.then_some(image)));
        if is_recorded {
            stored(world, segment.destination, segment.memory);
        }
        let mut at = segment.destination;
        for run in pages {
            if run.start == at && image {
                stored_code(world, at, page);
            } else if run.start == at {
                stored(world, at, page);
            } else if plan.uncached {
                stored(world, run.start, page);
            }
            at += run.bytes;
        }
    }
    roles
}
