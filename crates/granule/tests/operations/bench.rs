//! Tables under test together with everything that watches them.

use crate::reference::Reference;
pub use crate::setting::Setting;
use granule::arch::bbm::BbmLevel;
use granule::arch::{Geometry, Page, PhysicalAddress};
use granule::linear::LeafStats;
use granule::table::{
    FrameRun, Frames, Harvest, Holes, Leaves, Merged, PageTables, Piece, Stage1, TableError,
    Visibility,
};
use granule_testing::held::Held;
use granule_testing::host::{self, Event, Host, HostEnvironment, Runs};
use granule_testing::performed::{Operation, Performed};
use granule_testing::stage::{AttributeChangeOf, TestStage};
use granule_testing::walk::{Arch, Tree};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Tables, their host and the reference.
pub struct Bench<P: Page, S: TestStage = Stage1> {
    pub host: Rc<Host>,
    pub tables: Held<P, HostEnvironment, S>,
    pub reference: Reference<S>,
    pub arch: Arch,
    pub setting: Setting,
    /// The tree after the last operation.
    pub tree: Tree,
}

impl<P: Page> Bench<P> {
    /// Tables of stage 1.
    pub fn new(geometry: &Geometry, setting: Setting) -> Self {
        Self::of(*geometry, setting)
    }
}

impl<P: Page, S: TestStage> Bench<P, S> {
    /// Tables of either stage.
    pub fn of(geometry: S::Geometry, setting: Setting) -> Self {
        let shape: Geometry = geometry.into();
        let host = Host::new(&shape, setting.first, setting.pages);
        // The root comes from the middle, so that the first page (physical address zero in some
        // tests) is a table that can be unlinked.
        host.set_runs(Runs::Scattered);
        if !setting.reserves {
            host.without_reservations();
        }
        let environment = host::environment(&host, setting.capabilities());
        let mut tables = PageTables::<P, _, S>::new(geometry, environment).unwrap();
        S::set_asid(&mut tables, setting.asid);
        // SAFETY: no CPU walks the tables.
        unsafe { tables.set_bbm(BbmLevel::from_number(setting.bbm)) };
        let tables = Held::new(tables, setting.live);
        host.set_runs(Runs::Long);
        host.take_events();
        let arch = Arch::of(&shape);
        let tree = arch.walk(&host, tables.root_table());
        let mut reference = Reference::new(&shape);
        reference.live = setting.live;
        reference.bbm = setting.bbm;
        Self {
            host,
            tables,
            reference,
            arch,
            setting,
            tree,
        }
    }

    /// Every word of every table, with its table's address.
    pub fn dump(&self) -> Vec<(u64, Vec<u64>)> {
        let mut tables = self.arch.walk(&self.host, self.tables.root_table()).tables;
        tables.sort_unstable();
        tables
            .iter()
            .map(|table| (table.address, self.host.table(table.address)))
            .collect()
    }

    pub fn map(
        &mut self,
        offset: u64,
        output: u64,
        bytes: u64,
        attributes: S::Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        let start = self.reference.address(offset);
        let output_address = PhysicalAddress(output);
        let found = self
            .tables
            .map(start, output_address, bytes, attributes, leaves);
        let expected = self
            .reference
            .map(offset, output, bytes, attributes, leaves);
        assert_eq!(found, expected, "map {start} {output:#x} {bytes:#x}");
        self.settle_as(Operation::Map, found);
        found
    }

    /// Maps what can be mapped.
    pub fn lay(
        &mut self,
        offset: u64,
        output: u64,
        bytes: u64,
        attributes: S::Attributes,
        leaves: Leaves,
    ) {
        self.map(offset, output, bytes, attributes, leaves).unwrap();
    }

    /// A piece at an offset.
    pub fn piece(
        &self,
        offset: u64,
        output: u64,
        bytes: u64,
        attributes: S::Attributes,
        leaves: Leaves,
    ) -> Piece<S::Input, S::Attributes> {
        Piece {
            start: self.reference.address(offset),
            output: PhysicalAddress(output),
            bytes,
            attributes,
            leaves,
        }
    }

    pub fn map_pieces(
        &mut self,
        pieces: &[Piece<S::Input, S::Attributes>],
    ) -> Result<(), TableError> {
        let stats = self
            .reference
            .mapped
            .is_empty()
            .then(|| S::stats(self.tables.geometry(), pieces))
            .flatten();
        let found = self.tables.map_pieces(pieces);
        let expected = self.reference.map_pieces(pieces);
        assert_eq!(found, expected, "map {pieces:x?}");
        self.settle_as(Operation::Map, found);
        if let (Some(stats), Ok(())) = (stats, found) {
            self.compare_stats(&stats);
        }
        found
    }

    /// Frames from an offset on. The reference maps each longest run of consecutive frames.
    pub fn map_frames(
        &mut self,
        offset: u64,
        frames: Frames<'_>,
        attributes: S::Attributes,
        leaves: Leaves,
    ) -> Result<(), TableError> {
        let page = self.arch.page();
        let all: Vec<u64> = match frames {
            Frames::Single(frames) => frames.iter().map(|frame| frame.0).collect(),
            Frames::Runs(runs) => {
                let frames = |run: &FrameRun| {
                    let first = run.first.0;
                    (0..run.count).map(move |number| first + number * page)
                };
                runs.iter().flat_map(frames).collect()
            }
        };
        let start = self.reference.address(offset);
        let found = self.tables.map_frames(start, frames, attributes, leaves);
        let mut pieces = Vec::new();
        let mut at = offset;
        for run in all.chunk_by(|first, second| first + page == *second) {
            let bytes = run.len() as u64 * page;
            pieces.push(self.piece(at, run[0], bytes, attributes, leaves));
            at += bytes;
        }
        let expected = if at > self.arch.span() {
            let va_bits = self.arch.va_bits;
            let bytes = at - offset;
            Err(TableError::OutsideSpace {
                start: S::address(start),
                bytes,
                va_bits,
            })
        } else {
            self.reference.map_pieces(&pieces)
        };
        assert_eq!(found, expected, "map {frames:x?}");
        self.settle_as(Operation::Map, found);
        found
    }

    /// Compares the leaves and tables that were counted beforehand with those of the reference.
    fn compare_stats(&self, stats: &LeafStats) {
        assert_eq!(stats.tables as usize, self.reference.tables() - 1);
        let mut expected: BTreeMap<(u64, bool), u64> = BTreeMap::new();
        for mapped in self.reference.mapped.values() {
            let (first, bytes) = (mapped.leaf.offset, mapped.leaf.bytes);
            let (group, size) = mapped.group.unwrap_or((first, bytes));
            // A group counts once, at its first member.
            let new = u64::from(group == first);
            *expected.entry((size, mapped.group.is_some())).or_default() += new;
        }
        let total: u64 = expected.iter().map(|((size, _), count)| size * count).sum();
        assert_eq!(stats.bytes, total);
        let found: BTreeMap<(u64, bool), u64> = stats
            .leaves()
            .map(|(leaf, count)| ((leaf.bytes, leaf.contiguous), count))
            .collect();
        assert_eq!(found, expected, "leaves counted beforehand");
    }

    pub fn unmap(&mut self, offset: u64, bytes: u64) -> Result<(), TableError> {
        let start = self.reference.address(offset);
        let found = self.tables.unmap(start, bytes);
        let expected = self.reference.unmap(offset, bytes);
        assert_eq!(found, expected, "unmap {start} {bytes:#x}");
        self.settle_as(Operation::Unmap, found);
        found
    }

    pub fn protect(
        &mut self,
        offset: u64,
        bytes: u64,
        change: S::PermissionChange,
        holes: Holes,
    ) -> Result<(), TableError> {
        let start = self.reference.address(offset);
        let found = self.tables.protect(start, bytes, change, holes);
        let expected = self.reference.protect(offset, bytes, change, holes);
        assert_eq!(found, expected, "protect {start} {bytes:#x} {change:?}");
        self.settle_as(Operation::Protect, found);
        found
    }

    pub fn set_invalid(&mut self, offset: u64, bytes: u64) -> Result<(), TableError> {
        let start = self.reference.address(offset);
        let found = self.tables.set_invalid(start, bytes);
        let expected = self.reference.set_invalid(offset, bytes);
        assert_eq!(found, expected, "hide {start} {bytes:#x}");
        self.settle_as(Operation::SetInvalid, found);
        found
    }

    pub fn set_valid(&mut self, offset: u64, bytes: u64) -> Result<(), TableError> {
        let start = self.reference.address(offset);
        let found = self.tables.set_valid(start, bytes);
        let expected = self.reference.set_valid(offset, bytes);
        assert_eq!(found, expected, "show {start} {bytes:#x}");
        self.settle_as(Operation::SetValid, found);
        found
    }

    pub fn merge(&mut self, offset: u64, bytes: u64, leaves: Leaves) -> Result<Merged, TableError> {
        let start = self.reference.address(offset);
        let found = self.tables.merge(start, bytes, leaves);
        let expected = self.reference.merge(offset, bytes, leaves);
        assert_eq!(found, expected, "merge {start} {bytes:#x} {leaves:?}");
        self.settle_as(Operation::Merge, found.map(|_| ()));
        found
    }

    /// Makes private tables live.
    pub fn make_live(self) -> Self {
        let Held::Private(tables) = self.tables else {
            return self;
        };
        let mut setting = self.setting;
        setting.live = true;
        let mut reference = self.reference;
        reference.live = true;
        Self {
            tables: Held::new(tables, true),
            setting,
            reference,
            ..self
        }
    }

    pub fn set_bbm(&mut self, bbm: u32) {
        // SAFETY: no CPU walks the tables.
        unsafe { self.tables.set_bbm(BbmLevel::from_number(bbm)) };
        self.setting.bbm = bbm;
        self.reference.bbm = bbm;
    }

    pub fn modify(
        &mut self,
        offset: u64,
        bytes: u64,
        change: AttributeChangeOf<S>,
        holes: Holes,
    ) -> Result<(), TableError> {
        let start = self.reference.address(offset);
        let arch = self.arch;
        let found = self.tables.modify(start, bytes, holes, |attributes| {
            *attributes = S::with_attributes(*attributes, &change, &arch);
        });
        let expected = self.reference.modify(offset, bytes, change, holes);
        assert_eq!(found, expected, "modify {start} {bytes:#x} {change:?}");
        self.settle_as(Operation::Attributes, found);
        found
    }

    /// Harvests, and compares the runs that are found with the reference.
    pub fn harvest(
        &mut self,
        offset: u64,
        bytes: u64,
        what: Harvest,
    ) -> Result<Vec<(u64, u64)>, TableError> {
        let start = self.reference.address(offset);
        let base = self.arch.address(0);
        let mut runs = Vec::new();
        let found = self.tables.harvest(start, bytes, what, |start, bytes| {
            runs.push((S::address(start).0.wrapping_sub(base), bytes));
        });
        let expected = self.reference.harvest(offset, bytes, what);
        let found = found.map(|()| runs);
        assert_eq!(found, expected, "harvest {start} {bytes:#x} {what:?}");
        let operation = match what {
            Harvest::Accessed { invalidate: false } => Operation::Unflushed,
            _ => Operation::Attributes,
        };
        self.settle_as(operation, found.as_ref().map(|_| ()).map_err(|e| *e));
        found
    }

    /// Limits leaves; the reference follows the tables, which other tests compare.
    pub fn limit_leaves(
        &mut self,
        offset: u64,
        bytes: u64,
        leaves: Leaves,
    ) -> Result<usize, TableError> {
        let start = self.reference.address(offset);
        let found = self.tables.limit_leaves(start, bytes, leaves);
        self.host.take_events();
        self.tree = self.arch.walk(&self.host, self.tables.root_table());
        found
    }

    /// The events since the last call, without the stores by which a tree holds pages: one into each
    /// page, before anything else happens to it, of the address of another page.
    fn take_events(&self) -> Vec<Event> {
        let all = self.host.take_events();
        if self.setting.reserves {
            return all;
        }
        let (mut all, mut events) = (all.into_iter(), Vec::new());
        while let Some(event) = all.next() {
            events.push(event);
            if let Event::Allocate { first: page, count } = event {
                let next = all.next();
                let is_held = matches!(
                    next,
                    Some(Event::Store { table, first: 0, count: 1, descriptor, visibility, .. })
                        if table == page
                            && descriptor % self.arch.page() == 0
                            && visibility == Visibility::Private
                );
                assert!(count == 1 && is_held, "{event:x?} {next:x?}");
            }
        }
        events
    }

    /// Checks the events of an operation that needed `needed` tables where there were `budget`.
    pub fn ran_out(&self, needed: usize, budget: usize) {
        let events = self.take_events();
        if self.setting.reserves {
            assert_eq!(events, [Event::Reserve(needed)], "with {budget}");
            return;
        }
        let (allocated, freed) = events.split_at(budget);
        let mut pages: Vec<u64> = freed
            .iter()
            .map(|event| match event {
                Event::Free(page) => *page,
                other => panic!("with {budget}: {other:x?}"),
            })
            .collect();
        pages.reverse();
        let pages = pages
            .into_iter()
            .map(|first| Event::Allocate { first, count: 1 });
        assert_eq!(allocated, pages.collect::<Vec<_>>(), "with {budget}");
    }

    /// Compares everything after an operation.
    fn settle_as(&mut self, operation: Operation, found: Result<(), TableError>) {
        let done = found.is_ok();
        let after = self.arch.walk(&self.host, self.tables.root_table());
        self.reference.compare(&after);
        let events = self.take_events();
        if done {
            Performed {
                arch: self.arch,
                operation,
                live: self.setting.live,
                asid: self.setting.asid,
                before: &self.tree,
                after: &after,
                events: &events,
            }
            .check();
        } else {
            // A change of private tables may be made and taken back, because nothing sees it
            // meanwhile.
            let change = matches!(operation, Operation::Protect | Operation::Attributes);
            let restores = change && !self.setting.live;
            assert!(
                events.iter().all(|event| match event {
                    Event::Reserve(_) => true,
                    // Pages that were held and are too few.
                    Event::Allocate { .. } | Event::Free(_) => !self.setting.reserves,
                    Event::Change { .. } => restores,
                    _ => false,
                }),
                "an operation that fails does nothing: {events:x?}"
            );
            assert_eq!(after, self.tree, "an operation that fails changes nothing");
        }
        assert_eq!(
            self.host.given_out(),
            after.tables.len(),
            "pages given out, against tables in the tree"
        );
        assert_eq!(self.host.reserved_in_vain(), 0, "tables reserved in vain");
        self.tree = after;
    }
}
