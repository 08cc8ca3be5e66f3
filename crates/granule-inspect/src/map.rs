//! A map of memory with a bounded number of cells: what a picture is made of. Sums stay exact, whatever
//! is put together. Colours, text and files are not here.
//!
//! While there is room a cell is a range. Then neighbours with the same leaves and attributes become one
//! cell, wherever their outputs are. Then all that lies in one aligned window becomes one, which keeps the
//! bytes by leaf and access; windows grow as far as they must.

use crate::attributes::Decoded;
use crate::ranges::{Merger, Range};
use crate::source::Memory;
use crate::totals::{LeafKind, Totals};
use crate::tree::Tree;
use crate::walk::{EVERYTHING, Event, LeftOut, Tables, Why, walk};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;

/// The permitted accesses: loads, stores and execution, by EL0 or by the privileged level alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// Whether EL0 can use it.
    pub user: bool,
    pub read: bool,
    pub write: bool,
    pub execute: bool,
}

impl Access {
    /// Returns the accesses that the attributes permit.
    pub const fn of(decoded: &Decoded) -> Self {
        let by_user_alone = decoded.user_execute && !decoded.privileged_execute;
        let executed = decoded.two_privileges && by_user_alone && !decoded.stage2;
        let user = decoded.user || executed;
        Self {
            user,
            read: decoded.readable && (decoded.user || !user),
            write: decoded.writable && (decoded.user || !user),
            execute: decoded.privileged_execute || user && decoded.user_execute || {
                decoded.stage2 && decoded.user_execute
            },
        }
    }
}

/// `rw-`, with `u` before it for EL0.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |there, letter| if there { letter } else { '-' };
        if self.user {
            f.write_str("u")?;
        }
        write!(
            f,
            "{}{}{}",
            letter(self.read, 'r'),
            letter(self.write, 'w'),
            letter(self.execute, 'x')
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub start: u64,
    /// The bytes from there to its last address.
    pub bytes: u64,
    pub ranges: u64,
    pub content: Content,
}

/// The mappings of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Leaves of one kind with the same attributes, without a hole.
    Alike {
        /// The physical address of its first byte.
        output: u64,
        kind: LeafKind,
        /// The descriptor bits of their attributes.
        attributes: u64,
    },
    /// Different leaves, or holes between them: the bytes that are mapped by each kind and access.
    Mixed(BTreeMap<(LeafKind, Access), u64>),
}

impl Cell {
    fn of(range: &Range) -> Self {
        let kind = LeafKind {
            leaf_bytes: range.leaf_bytes,
            contiguous: range.contiguous,
        };
        Self {
            start: range.start,
            bytes: range.bytes,
            ranges: 1,
            content: Content::Alike {
                output: range.output,
                kind,
                attributes: range.attributes,
            },
        }
    }

    pub const fn last(&self) -> u64 {
        self.start.wrapping_add(self.bytes - 1)
    }

    /// The bytes by kind and access.
    pub fn parts(&self, tree: &Tree) -> BTreeMap<(LeafKind, Access), u64> {
        let mut parts = BTreeMap::new();
        self.add_to(tree, &mut parts);
        parts
    }

    /// Adds the bytes by kind and access to others.
    fn add_to(&self, tree: &Tree, parts: &mut BTreeMap<(LeafKind, Access), u64>) {
        match &self.content {
            Content::Mixed(own) => {
                for (part, bytes) in own {
                    *parts.entry(*part).or_default() += bytes;
                }
            }
            Content::Alike {
                kind, attributes, ..
            } => {
                let access = Access::of(&Decoded::new(tree, *attributes));
                *parts.entry((*kind, access)).or_default() += self.bytes;
            }
        }
    }

    /// Whether `next` goes on with the same leaves and attributes.
    fn goes_on(&self, next: &Self) -> bool {
        let alike = match (&self.content, &next.content) {
            (
                Content::Alike {
                    kind, attributes, ..
                },
                Content::Alike {
                    kind: other,
                    attributes: others,
                    ..
                },
            ) => kind == other && attributes == others,
            _ => false,
        };
        alike && self.last().wrapping_add(1) == next.start
    }
}

/// The cells of one tree, by address.
#[derive(Clone, Debug, Default)]
pub struct Map {
    pub cells: Vec<Cell>,
    /// The number of ranges that they are made of.
    pub ranges: u64,
    /// The power of two that is the size of the windows, if cells had to be put together by them.
    pub window: Option<u32>,
}

impl Map {
    /// The map of ranges, which come by ascending address.
    pub fn of<'r>(tree: &Tree, ranges: impl IntoIterator<Item = &'r Range>, most: usize) -> Self {
        let mut map = Self::default();
        for range in ranges {
            map.push(tree, range, most);
        }
        map.shrink(tree, most);
        map
    }

    /// Adds the next range by address.
    fn push(&mut self, tree: &Tree, range: &Range, most: usize) {
        self.ranges += 1;
        let cell = Cell::of(range);
        // Cells that the next shrinking would put together anyway.
        if let (Some(shift), Some(last)) = (self.window, self.cells.last_mut())
            && in_one(last, &cell, shift)
        {
            join(tree, last, &cell);
            return;
        }
        self.cells.push(cell);
        // Seldom, so that a long list is looked at a few times only.
        if self.cells.len() >= most.saturating_mul(2).max(64) {
            self.shrink(tree, most);
        }
    }

    /// Puts cells together until there are at most `most`, or one.
    pub fn shrink(&mut self, tree: &Tree, most: usize) {
        if self.cells.len() <= most {
            return;
        }
        let mut joined: Vec<Cell> = Vec::new();
        for cell in self.cells.drain(..) {
            match joined.last_mut() {
                Some(last) if last.goes_on(&cell) => {
                    last.bytes += cell.bytes;
                    last.ranges += cell.ranges;
                }
                _ => joined.push(cell),
            }
        }
        self.cells = joined;
        if self.cells.len() <= most {
            return;
        }
        let least = tree.geometry().page_size().shift() + 1;
        let shift = (self.window.unwrap_or(least)..u64::BITS)
            .find(|&shift| groups(&self.cells, shift) <= most)
            .unwrap_or(u64::BITS);
        self.window = Some(shift);
        let mut joined: Vec<Cell> = Vec::new();
        for cell in self.cells.drain(..) {
            match joined.last_mut() {
                Some(last) if in_one(last, &cell, shift) => join(tree, last, &cell),
                _ => joined.push(cell),
            }
        }
        self.cells = joined;
    }
}

/// The window of an address. A shift of all bits is one window for everything.
const fn window(address: u64, shift: u32) -> u64 {
    match address.checked_shr(shift) {
        Some(window) => window,
        None => 0,
    }
}

/// Whether both cells lie in one window.
const fn in_one(cell: &Cell, next: &Cell, shift: u32) -> bool {
    window(cell.start, shift) == window(next.last(), shift)
}

/// The cells that remain with windows of that size.
fn groups(cells: &[Cell], shift: u32) -> usize {
    cells
        .chunk_by(|cell, next| in_one(cell, next, shift))
        .count()
}

fn join(tree: &Tree, cell: &mut Cell, next: &Cell) {
    if let Content::Alike { .. } = cell.content {
        cell.content = Content::Mixed(cell.parts(tree));
    }
    if let Content::Mixed(parts) = &mut cell.content {
        next.add_to(tree, parts);
    }
    cell.bytes = next.last().wrapping_sub(cell.start).wrapping_add(1);
    cell.ranges += next.ranges;
}

/// One tree, looked at once.
#[derive(Debug, Default)]
pub struct Drawn {
    pub map: Map,
    pub totals: Totals,
    /// The tables that are left out: a few of them.
    pub left_out: Vec<LeftOut>,
    /// The number of the others.
    pub more_left_out: u64,
    pub no_root: bool,
}

/// The most tables that are left out which [`draw`] keeps; a damaged dump may lack very many.
const MOST_LEFT_OUT: usize = 20;

/// Walks a tree, and keeps at most `most` cells. `progress` is called with the number of tables.
pub fn draw(memory: &dyn Memory, tree: &Tree, most: usize, progress: &mut dyn FnMut(u64)) -> Drawn {
    let mut drawn = Drawn::default();
    let mut merger = Merger::default();
    let mut read = 0;
    let tables = Tables::new(memory, tree);
    let _: ControlFlow<()> = walk(&tables, tree, EVERYTHING, |event| {
        match event {
            Event::Table(table) => {
                read += 1;
                progress(read);
                if table.before.is_none() {
                    drawn.totals.add_table(tree);
                }
            }
            Event::Leaves(leaves) => {
                if let Some(range) = merger.push(Range::of(tree, leaves)) {
                    drawn.totals.add_range(tree, &range);
                    drawn.map.push(tree, &range, most);
                }
            }
            Event::LeftOut(table) => {
                let root = table.level == tree.geometry().start_level();
                drawn.no_root |= root && matches!(table.why, Why::Unreadable(_));
                if drawn.left_out.len() < MOST_LEFT_OUT {
                    drawn.left_out.push(table.clone());
                } else {
                    drawn.more_left_out += 1;
                }
            }
        }
        ControlFlow::Continue(())
    });
    if let Some(range) = merger.end() {
        drawn.totals.add_range(tree, &range);
        drawn.map.push(tree, &range, most);
    }
    drawn.map.shrink(tree, most);
    drawn
}

/// The most that each may have so that all together have at most `most`: who needs less leaves the rest
/// to the others. At least one each.
pub fn share(needs: &[usize], most: usize) -> usize {
    let mut needs = needs.to_vec();
    needs.sort_unstable();
    let mut left = most;
    for (at, need) in needs.iter().enumerate() {
        let each = left / (needs.len() - at);
        if *need > each {
            return each.max(1);
        }
        left -= need;
    }
    most.max(1)
}
