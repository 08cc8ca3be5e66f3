//! Tables that the library made, as a memory that can be read and broken. No test lives here.

use granule::arch::tlbi::TlbCapabilities;
use granule::arch::{
    Attributes, Geometry, Kind, Level, Page, Page4K, Page16K, Page64K, PageSize, PhysicalAddress,
    Stage2Attributes, Stage2Geometry, VaRange, VirtualAddress,
};
use granule::table::{Leaves, PageTables, Stage, Stage1, Stage2, Visit};
use granule_inspect::source::{Memory, ReadError};
use granule_inspect::tree::{Origin, Owner, Shape, Tree};
use granule_testing::host::{self, Host};
use granule_testing::shape::PLAIN;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Pages of table memory, by address.
#[derive(Clone, Default)]
pub struct Pages(pub BTreeMap<u64, Vec<u64>>);

/// The words that are not zero.
impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (page, words) in &self.0 {
            for (index, word) in words.iter().enumerate().filter(|(_, word)| **word != 0) {
                write!(f, "{page:#x}[{index}]={word:#x} ")?;
            }
        }
        Ok(())
    }
}

impl Memory for Pages {
    fn read(&self, address: PhysicalAddress, buffer: &mut [u8]) -> Result<(), ReadError> {
        let absent = || ReadError::Absent(address);
        let (first, words) = self.0.range(..=address.0).next_back().ok_or_else(absent)?;
        let skip = (address.0 - first) as usize / 8;
        let words = words
            .get(skip..skip + buffer.len() / 8)
            .ok_or_else(absent)?;
        for (bytes, word) in buffer.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        self.0
            .iter()
            .map(|(&first, words)| first..first + words.len() as u64 * 8)
            .collect()
    }
}

/// Where the tables of tests are.
pub const TABLES: u64 = 0x9000_0000;

/// A piece to map: an offset in the half, the output, the bytes, the attributes and the leaf sizes.
pub type Piece<A> = (u64, u64, u64, A, Leaves);

/// A memory with one tree.
#[derive(Clone)]
pub struct World {
    pub pages: Pages,
    pub tree: Tree,
}

fn make<P: Page, S: Stage>(
    geometry: S::Geometry,
    first: u64,
    pieces: &[Piece<S::Attributes>],
    input: impl Fn(VirtualAddress) -> S::Input,
) -> (Pages, PhysicalAddress) {
    let shape: Geometry = geometry.into();
    let host = Host::new(&shape, first, 400);
    let environment = host::environment(&host, TlbCapabilities::BASIC);
    let mut tables = PageTables::<P, _, S>::new(geometry, environment).unwrap();
    for &(offset, output, bytes, attributes, leaves) in pieces {
        let start = input(VirtualAddress(shape.base().0.wrapping_add(offset)));
        tables
            .map(start, PhysicalAddress(output), bytes, attributes, leaves)
            .unwrap();
    }
    let root = tables.root_table();
    let page = shape.page_size().bytes();
    let mut found: Vec<u64> = (0..shape.root_tables() as u64)
        .map(|at| root.0 + at * page)
        .collect();
    tables.visit_all(|entry| {
        if entry.kind == Kind::Table {
            found.push(entry.output.0);
        }
        Visit::EVERYTHING
    });
    let words = found.into_iter().map(|table| (table, host.table(table)));
    (Pages(words.collect()), root)
}

impl World {
    /// Stage 1 with these pieces, in tables from `first` on.
    pub fn at(geometry: Geometry, first: u64, pieces: &[Piece<Attributes>]) -> Self {
        let same = |address| address;
        let (pages, root) = match geometry.page_size() {
            PageSize::K4 => make::<Page4K, Stage1>(geometry, first, pieces, same),
            PageSize::K16 => make::<Page16K, Stage1>(geometry, first, pieces, same),
            _ => make::<Page64K, Stage1>(geometry, first, pieces, same),
        };
        Self::of(pages, root, Shape::Stage1(geometry))
    }

    /// The kernel's half with 4K pages and 39 bits of address: the root is of level 1.
    pub fn plain(pieces: &[Piece<Attributes>]) -> Self {
        Self::at(kernel(), TABLES, pieces)
    }

    /// Stage 2.
    pub fn guest(geometry: Stage2Geometry, pieces: &[Piece<Stage2Attributes>]) -> Self {
        let same = |address: VirtualAddress| granule::arch::IntermediateAddress(address.0);
        let (pages, root) = match geometry.shape().page_size() {
            PageSize::K4 => make::<Page4K, Stage2>(geometry, TABLES, pieces, same),
            PageSize::K16 => make::<Page16K, Stage2>(geometry, TABLES, pieces, same),
            _ => make::<Page64K, Stage2>(geometry, TABLES, pieces, same),
        };
        Self {
            tree: Tree {
                owner: Owner::Guest(0),
                ..Self::of(pages.clone(), root, Shape::Stage2(geometry)).tree
            },
            pages,
        }
    }

    fn of(pages: Pages, root: PhysicalAddress, shape: Shape) -> Self {
        let tree = Tree {
            memory_types: Some(granule::arch::registers::Mair::STANDARD),
            ..Tree::new(Owner::Kernel, root, shape, Origin::Options)
        };
        Self { pages, tree }
    }

    /// The table and the index of the entry of `level` for `offset`.
    pub fn entry(&self, offset: u64, level: Level) -> (u64, usize) {
        let geometry = self.tree.geometry();
        let size = geometry.page_size();
        let mut table = self.tree.root;
        let mut at = geometry.start_level();
        while at != level {
            let word = self.pages.0[&table.0][size.index(offset, at)];
            table = geometry.address_of(granule::arch::Descriptor(word), at);
            at = at.next();
        }
        (table.0, size.index(offset, level))
    }

    /// Changes the entry of `level` for `offset`.
    pub fn change(&mut self, offset: u64, level: Level, change: impl FnOnce(u64) -> u64) {
        let (table, index) = self.entry(offset, level);
        let word = &mut self.pages.0.get_mut(&table).unwrap()[index];
        *word = change(*word);
    }
}

/// The kernel's half with 4K pages and 39 bits of address.
pub fn kernel() -> Geometry {
    PLAIN.geometry(PageSize::K4, 39, VaRange::Upper)
}

/// The first address of [`kernel`].
pub const BASE: u64 = 0xffff_ff80_0000_0000;
