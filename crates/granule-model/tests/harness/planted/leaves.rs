//! Faults in the operations on fields of leaves and in the maps of scattered frames, each at both
//! stages: harvests, dirty states, memory types, frames, tables that are kept, and cursors.

use super::scenes::{BLOCK, OUTPUT, PAGE};
use super::tables::GONE;
use super::taps::*;
use super::{Fault, fault};
use crate::bench::Bench;
use crate::leaves::{AttributeChange, OfLeaves};
use crate::machine::{Shared, Tap};
use crate::operation::{Does, Operation};
use crate::reference::Reference;
use crate::shape::Shape;
use crate::stage::Staged;
use granule::arch::{
    Attributes, MemoryType, Page4K, Permissions, PhysicalAddress, Stage2Attributes, Stage2Memory,
    Stage2Permissions,
};
use granule::table::{EmptyTables, FrameRun, Harvest, Holes, Leaves, Piece, Stage1, Stage2};
use granule_model::Rule::*;
use granule_model::{BitChange, Event, Visibility};

macro_rules! at_both_stages {
    ($($name:literal, $scene:ident, $plant:expr, $rule:expr, $text:expr;)*) => {
        &[
            $({
                #[allow(dead_code, reason = "few faults differ between the stages")]
                type S = Stage1;
                fault($name).planted($scene::<S>, $plant).breaks($rule, $text)
            },)*
            $({
                #[allow(dead_code, reason = "few faults differ between the stages")]
                type S = Stage2;
                fault(concat!("stage 2: ", $name)).planted($scene::<S>, $plant).breaks($rule, $text)
            },)*
        ]
    };
}

pub(super) const FAULTS: &[Fault] = at_both_stages! {
    "access flags are harvested by loads and plain stores",
        harvest_accessed_of_clean, || by_load_and_store(is_update), LostUpdate, "dirty state";
    "one page of a harvest is forgotten by the TLBIs",
        harvest_dirty, || nth(7, is_tlbi, |_| Vec::new()), StaleTranslation,
        "without marking it dirty";
    "no TLBI after pages were set clean",
        set_clean, || drop_all(is_tlbi), StaleTranslation, "without marking it dirty";
    "no DSB ISHST before the TLBIs of pages that were set clean",
        set_clean, || drop_all(is_ishst), StaleTranslation, "without marking it dirty";
    "pages are set dirty by loads and plain stores",
        set_dirty, || by_load_and_store(is_update), LostUpdate, "dirty state";
    "the memory type changes without a break",
        change_memory, || replace(is_broken, in_place::<S>), BreakBeforeMake, "mismatched";
    "no TLBI between the break and the make of another memory type",
        change_memory, || drop_all(is_tlbi), BreakBeforeMake, "mismatched";
    "one page is forgotten by the TLBIs between break and make",
        change_memory, || nth(7, is_tlbi, |_| Vec::new()), BreakBeforeMake, "mismatched";
    "leaves are made again before the DSB after the TLBIs",
        change_memory, || drop_all(is_ish), BreakBeforeMake, "mismatched";
    "no DSB ISHST after leaves of another memory type were made",
        change_memory, || nth(1, is_ishst, |_| Vec::new()), StoreNotVisible, "no DSB";
    "leaves are broken by loads and plain stores",
        change_memory_of_clean, || by_load_and_store(is_broken), LostUpdate, "dirty state";
    "frames that do not follow each other get the contiguous hint",
        map_scattered, || replace(is_page, bits(1 << 52)), UnequalContiguous, "group";
    "a group is made of every other frame",
        map_frames, || replace(is_group, every_other), UnequalContiguous, "group";
    "a table of frames is linked before it is filled",
        map_frames, || delay(is_leaf_fill, is_link), UninitialisedTable, "whatever was";
    "a table that an unmap is to keep is freed",
        unmap_keeping, and_frees, FreedInUse, "still lead to it";
    "no TLBI after a cursor unmapped a page",
        cursor_unmaps, || drop_all(is_tlbi), StaleTranslation, GONE;
    "one of a cursor's pages gets no TLBI",
        cursor_unmaps, || nth(2, is_tlbi, |_| Vec::new()), StaleTranslation, GONE;
    "no DSB ISHST after a cursor mapped a page",
        cursor_maps_again, || drop_all(is_ishst), StoreNotVisible, "no DSB";
};

/// The items that the scenes need of a stage.
pub(crate) trait Plain: Staged {
    const OTHER: Self::Memory;

    fn plain() -> Self::Attributes;
}

impl Plain for Stage1 {
    const OTHER: MemoryType = MemoryType::NormalNonCacheable;

    fn plain() -> Attributes {
        Attributes {
            global: true,
            ..Attributes::normal(Permissions::READ_WRITE)
        }
    }
}

impl Plain for Stage2 {
    const OTHER: Stage2Memory = Stage2Memory::NormalNonCacheable;

    fn plain() -> Stage2Attributes {
        Stage2Attributes::normal(Stage2Permissions::ALL)
    }
}

/// Pages that hardware manages, dirty or clean.
pub(super) fn managed<S: Plain>(dirty: bool) -> S::Attributes {
    let mut attributes = S::plain();
    let parts = S::parts(&mut attributes);
    *parts.dirty_modifier = true;
    *parts.writable = dirty;
    attributes
}

const SHAPE: Shape = Shape::kernel(40);
const HARDWARE: Shape = SHAPE.hardware(true);

impl<S: Plain> Bench<Page4K, S> {
    /// 64 pages.
    fn with_pages(shape: Shape, attributes: S::Attributes) -> Self {
        let mut scene = Self::of(shape, 1);
        scene.does(Operation::Map(scene.piece(0, 64, attributes)));
        scene
    }

    fn piece(
        &self,
        page: u64,
        pages: u64,
        attributes: S::Attributes,
    ) -> Piece<S::Input, S::Attributes> {
        Piece {
            start: S::at(self.geometry.base().0.wrapping_add(page * PAGE)),
            output: PhysicalAddress(OUTPUT + page * PAGE),
            bytes: pages * PAGE,
            attributes,
            leaves: Leaves::PAGES,
        }
    }

    /// With a fault planted the library may find tables that are not its own work.
    fn does(&mut self, operation: Operation<S>) {
        let _ = operation.perform(self, &Reference::new(true));
    }

    /// Of eight pages from the eighth on.
    fn does_of_pages(&mut self, does: OfLeaves<S>) {
        self.does(Operation::on((8 * PAGE, 8 * PAGE), Does::Leaves(does)));
    }
}

/// An operation on the leaves of eight pages.
fn of_pages<S: Plain>(
    shape: Shape,
    attributes: S::Attributes,
    does: OfLeaves<S>,
    tap: Option<Tap>,
) -> Shared {
    Bench::<_, S>::with_pages(shape, attributes).play(tap, |scene| scene.does_of_pages(does))
}

/// Pages that hardware may mark dirty at that very moment.
fn harvest_accessed_of_clean<S: Plain>(tap: Option<Tap>) -> Shared {
    let what = Harvest::Accessed { invalidate: true };
    of_pages::<S>(HARDWARE, managed::<S>(false), OfLeaves::harvest(what), tap)
}

fn harvest_dirty<S: Plain>(tap: Option<Tap>) -> Shared {
    let does = OfLeaves::harvest(Harvest::Dirty);
    of_pages::<S>(HARDWARE, managed::<S>(true), does, tap)
}

fn set_clean<S: Plain>(tap: Option<Tap>) -> Shared {
    let does = dirty_state(false);
    of_pages::<S>(HARDWARE, managed::<S>(true), does, tap)
}

/// Hardware may set the access flags meanwhile: of clean pages that were accessed, it can only do what the store does.
fn set_dirty<S: Plain>(tap: Option<Tap>) -> Shared {
    let does = dirty_state(true);
    let mut young = managed::<S>(false);
    *S::parts(&mut young).accessed = false;
    of_pages::<S>(HARDWARE, young, does, tap)
}

fn dirty_state<S: Plain>(dirty: bool) -> OfLeaves<S> {
    let change = AttributeChange {
        dirty: Some(dirty),
        ..AttributeChange::NONE
    };
    OfLeaves::Modify(change, Holes::Refuse)
}

fn uncached<S: Plain>() -> OfLeaves<S> {
    OfLeaves::Modify(
        AttributeChange {
            memory: Some(S::OTHER),
            ..AttributeChange::NONE
        },
        Holes::Refuse,
    )
}

fn change_memory<S: Plain>(tap: Option<Tap>) -> Shared {
    of_pages::<S>(SHAPE, S::plain(), uncached(), tap)
}

fn change_memory_of_clean<S: Plain>(tap: Option<Tap>) -> Shared {
    of_pages::<S>(HARDWARE, managed::<S>(false), uncached(), tap)
}

/// Maps runs of frames where there is no table.
fn frames<S: Plain>(frames: Vec<FrameRun>, tap: Option<Tap>) -> Shared {
    Bench::<_, S>::with_pages(SHAPE, S::plain()).play(tap, |scene| {
        scene.does(Operation::MapFrames {
            from: 8 * BLOCK,
            frames,
            single: false,
            attributes: S::plain(),
            leaves: Leaves::LARGEST,
        })
    })
}

/// A group, and what is behind it.
fn map_frames<S: Plain>(tap: Option<Tap>) -> Shared {
    let run = |first, count| FrameRun {
        first: PhysicalAddress(OUTPUT + first),
        count,
    };
    frames::<S>(vec![run(BLOCK, 7), run(BLOCK + 7 * PAGE, 9)], tap)
}

/// As many frames as a group has, none of which follows another.
fn map_scattered<S: Plain>(tap: Option<Tap>) -> Shared {
    let frame = |number: u64| FrameRun {
        first: PhysicalAddress(OUTPUT + BLOCK + 2 * number * PAGE),
        count: 1,
    };
    frames::<S>((0..16).map(frame).collect(), tap)
}

/// All pages of a table go, and the table stays.
fn unmap_keeping<S: Plain>(tap: Option<Tap>) -> Shared {
    Bench::<_, S>::with_pages(SHAPE, S::plain()).play(tap, |scene| {
        let unmap = Does::Unmap(EmptyTables::Keep);
        scene.does(Operation::on((0, 64 * PAGE), unmap));
    })
}

/// Four pages of 64 go one by one.
fn cursor_unmaps<S: Plain>(tap: Option<Tap>) -> Shared {
    Bench::<_, S>::with_pages(SHAPE, S::plain()).play(tap, |scene| {
        let start = scene.piece(8, 1, S::plain()).start;
        if let Ok(mut cursor) = scene.tables.cursor(start) {
            for _ in 0..4 {
                let _ = cursor.unmap(EmptyTables::Free);
            }
        }
    })
}

/// The only page of a table goes, and another comes in its place.
fn cursor_maps_again<S: Plain>(tap: Option<Tap>) -> Shared {
    let mut scene = Bench::<_, S>::with_pages(SHAPE, S::plain());
    let page = 8 * BLOCK / PAGE;
    scene.does(Operation::Map(scene.piece(page, 1, S::plain())));
    scene.play(tap, |scene| {
        let start = scene.piece(page, 1, S::plain()).start;
        if let Ok(mut cursor) = scene.tables.cursor(start) {
            let _ = cursor.unmap(EmptyTables::Free);
            let output = PhysicalAddress(OUTPUT + BLOCK);
            let _ = cursor.map(output, S::plain());
        }
    })
}

/// An update that makes a leaf invalid.
const fn is_broken(kind: &Event) -> bool {
    matches!(kind, Event::Update { change, .. } if change.clear & 1 != 0)
}

/// A store of one page.
const fn is_page(kind: &Event) -> bool {
    matches!(kind, Event::Store { count: 1, descriptor, visibility: Visibility::Live, .. } if *descriptor & 0b11 == 0b11)
}

/// An update becomes a load of each entry and a plain store of what the change makes of it.
pub(super) fn by_load_and_store(which: fn(&Event) -> bool) -> Tap {
    Box::new(move |model, kind| {
        let Event::Update {
            address,
            count,
            change: BitChange { of, clear, set },
            ..
        } = kind
        else {
            return vec![kind];
        };
        if !which(&kind) {
            return vec![kind];
        }
        let entries = (0..u64::from(count)).map(|index| address + index * 8);
        let concerned = entries.filter(|&at| model.descriptor(at) & of != 0);
        let store = |at| Event::store(at, model.descriptor(at) & !clear | set);
        concerned.map(store).collect()
    })
}

/// The change of memory type in place of the break.
fn in_place<S: Plain>(kind: Event) -> Vec<Event> {
    let geometry = SHAPE.geometry::<Page4K>();
    let mut other = S::plain();
    *S::parts(&mut other).memory = S::OTHER;
    let [plain, other] = [S::plain(), other].map(|one| S::encode(&one, &geometry));
    vec![match kind {
        Event::Update {
            address,
            count,
            visibility,
            ..
        } => Event::Update {
            address,
            count,
            change: BitChange {
                of: 1,
                clear: plain & !other,
                set: other & !plain,
            },
            visibility,
        },
        other => other,
    }]
}

/// The outputs of a group have gaps.
fn every_other(mut kind: Event) -> Vec<Event> {
    if let Event::Store { step, .. } = &mut kind {
        *step *= 2;
    }
    vec![kind]
}

/// The table of the first update is freed at the end.
fn and_frees() -> Tap {
    let mut table = None;
    Box::new(move |_, kind| match kind {
        Event::Update { address, .. } => {
            table.get_or_insert(address & !(PAGE - 1));
            vec![kind]
        }
        _ if is_isb(&kind) => {
            let freed = table
                .take()
                .map(|start| Event::Freed { start, bytes: PAGE });
            [kind].into_iter().chain(freed).collect()
        }
        _ => vec![kind],
    })
}

/// Pages that are stored after a table was freed go into that table.
pub(super) fn into_freed_table() -> Tap {
    let mut freed = None;
    Box::new(move |_, mut kind| {
        let is_page = is_page(&kind);
        match &mut kind {
            Event::Freed { start, .. } => freed = Some(*start),
            Event::Store { address, .. } if is_page => {
                if let Some(table) = freed {
                    *address = table + *address % PAGE;
                }
            }
            _ => {}
        }
        vec![kind]
    })
}
