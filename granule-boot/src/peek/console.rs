//! Finds the console's registers from `/chosen/stdout-path`. Drivers for the console do not belong
//! here.

use super::super::bytes::{be32, before, same};
use super::Strings;
use super::tree::{Name, Token, Tree, Walk};
use core::fmt;

/// The deepest level of a console below the root, in nodes.
const MAX_LEVELS: usize = 8;

/// The console's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Console {
    /// The physical address of the device's registers.
    pub base: u64,
    /// Whether the device is a PL011 (`arm,pl011`).
    pub is_pl011: bool,
}

/// Why no console is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsoleError {
    /// `/chosen` has no `stdout-path`.
    NotNamed,
    /// `stdout-path` is an alias that is not in `/aliases`.
    NoSuchAlias,
    /// The path leads to no node.
    NoSuchNode,
    /// The node has no address that the CPU can use.
    NoAddress,
}

impl ConsoleError {
    /// The reason code for the boot record; it never changes its meaning.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::NotNamed => 0x0201,
            Self::NoSuchAlias => 0x0202,
            Self::NoSuchNode => 0x0203,
            Self::NoAddress => 0x0204,
        }
    }

    /// The error as one line.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotNamed => "no console: /chosen has no stdout-path",
            Self::NoSuchAlias => "no console: /chosen/stdout-path names no entry of /aliases",
            Self::NoSuchNode => "no console: /chosen/stdout-path leads to no node",
            Self::NoAddress => "no console: its node has no address that the CPU can use",
        }
    }
}

impl fmt::Display for ConsoleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for ConsoleError {}

/// Finds the console that `stdout_path` names: a path or an alias, with optional settings after a
/// colon.
pub(super) fn find(tree: Tree<'_>, stdout_path: &[u8]) -> Result<Console, ConsoleError> {
    let path = before(stdout_path, b':');
    if path.first() == Some(&b'/') {
        return at_path(tree, path);
    }
    // An alias may carry options of its own.
    at_path(
        tree,
        before(alias(tree, path).ok_or(ConsoleError::NoSuchAlias)?, b':'),
    )
}

fn alias<'a>(tree: Tree<'a>, alias: &[u8]) -> Option<&'a [u8]> {
    let mut walk = Walk::new(tree);
    let mut here = false;
    // A damaged tree ends the search; `Tree::peek` reports the damage.
    while let Ok(Some(token)) = walk.next() {
        match token {
            Token::Begin { name } => here = walk.depth() == 2 && same(name, b"aliases"),
            Token::End => here = false,
            Token::Property { name, value } if here && name.is(alias) => {
                return Some(before(value, 0));
            }
            Token::Property { .. } => {}
        }
    }
    None
}

/// How a node describes the addresses of its children.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bus<'a> {
    pub(super) address_cells: u32,
    pub(super) size_cells: u32,
    /// `None` if absent, empty if children have the parent's addresses, else a table.
    ranges: Option<&'a [u8]>,
}

impl Bus<'_> {
    /// The defaults for a node without such properties (Devicetree Specification 2.3.5).
    pub(super) const SILENT: Self = Self {
        address_cells: 2,
        size_cells: 1,
        ranges: None,
    };
}

impl<'a> Bus<'a> {
    pub(super) fn read(&mut self, name: Name<'_>, value: &'a [u8]) {
        if name.is(b"#address-cells") {
            self.address_cells = be32(value, 0).unwrap_or(0);
        } else if name.is(b"#size-cells") {
            self.size_cells = be32(value, 0).unwrap_or(0);
        } else if name.is(b"ranges") {
            self.ranges = Some(value);
        }
    }
}

fn at_path(tree: Tree<'_>, path: &[u8]) -> Result<Console, ConsoleError> {
    let mut walk = Walk::new(tree);
    // The root and the nodes on the path to the console.
    let mut buses = [Bus::SILENT; MAX_LEVELS];
    // The number of nodes of the path, root included, that the walk is in.
    let mut matched = 0_u32;
    // The rest of the path below each of these nodes.
    let mut rests: [&[u8]; MAX_LEVELS] = [&[]; MAX_LEVELS];
    let mut reg: &[u8] = &[];
    let mut compatible = Strings::default();
    let mut found = false;

    while let Ok(Some(token)) = walk.next() {
        match token {
            Token::Begin { name } => {
                if walk.depth() != matched.wrapping_add(1) {
                    continue;
                }
                let rest = match matched.checked_sub(1) {
                    None => Some(path),
                    Some(parent) => rests.get(parent as usize).and_then(|rest| step(rest, name)),
                };
                let Some(rest) = rest else { continue };
                let slot = (
                    buses.get_mut(matched as usize),
                    rests.get_mut(matched as usize),
                );
                let (Some(bus), Some(slot)) = slot else {
                    continue;
                };
                *bus = Bus::SILENT;
                *slot = rest;
                matched = walk.depth();
                found = no_name_left(rest);
            }
            Token::End => {
                if found {
                    break;
                }
                // The walk is now one level above the node that ended.
                matched = matched.min(walk.depth());
            }
            Token::Property { name, value } if walk.depth() == matched => {
                if found && name.is(b"reg") {
                    reg = value;
                } else if found && name.is(b"compatible") {
                    compatible = Strings { rest: value };
                } else if let Some(bus) = matched
                    .checked_sub(1)
                    .and_then(|level| buses.get_mut(level as usize))
                {
                    bus.read(name, value);
                }
            }
            Token::Property { .. } => {}
        }
    }
    if !found {
        return Err(ConsoleError::NoSuchNode);
    }
    // The last entry is the node itself; the others are the buses that its address passes.
    let above = matched.saturating_sub(1) as usize;
    let base = buses.get(..above).and_then(|buses| address(buses, reg));
    match base {
        Some(base) => Ok(Console {
            base,
            is_pl011: compatible.has(b"arm,pl011"),
        }),
        None => Err(ConsoleError::NoAddress),
    }
}

/// The rest of `path` below the node `name`, if the path leads through that node. A path may leave
/// out the unit address, as elsewhere in a device tree.
fn step<'p>(path: &'p [u8], name: &[u8]) -> Option<&'p [u8]> {
    let path = without_slashes(path);
    let wanted = before(path, b'/');
    let (_, rest) = path.split_at_checked(wanted.len())?;
    let fits = !wanted.is_empty() && (same(wanted, name) || same(wanted, before(name, b'@')));
    fits.then_some(rest)
}

fn without_slashes(mut path: &[u8]) -> &[u8] {
    while let Some((b'/', rest)) = path.split_first() {
        path = rest;
    }
    path
}

fn no_name_left(path: &[u8]) -> bool {
    without_slashes(path).is_empty()
}

/// Translates the first entry of `reg` to the CPU's address, through the buses from the root
/// (first) to the node's parent (last).
fn address(buses: &[Bus<'_>], reg: &[u8]) -> Option<u64> {
    let (mut bus, mut above) = buses.split_last()?;
    let mut address = number(reg, 0, bus.address_cells)?;
    // No bus lies above the root: the addresses of its children are the CPU's.
    while let Some((parent, further)) = above.split_last() {
        address = translate(bus, parent.address_cells, address)?;
        bus = parent;
        above = further;
    }
    Some(address)
}

/// Translates an address on `bus` to the bus above it, whose addresses have `parent_cells` cells.
fn translate(bus: &Bus<'_>, parent_cells: u32, address: u64) -> Option<u64> {
    // Without `ranges` the CPU cannot reach the bus.
    let ranges = bus.ranges?;
    if ranges.is_empty() {
        return Some(address);
    }
    let parent_at = bytes_of(bus.address_cells)?;
    let size_at = parent_at.checked_add(bytes_of(parent_cells)?)?;
    let entry = size_at.checked_add(bytes_of(bus.size_cells)?)?;
    let mut rest = ranges;
    while let Some((range, further)) = rest.split_at_checked(entry) {
        let child = number(range, 0, bus.address_cells)?;
        let parent = number(range, parent_at, parent_cells)?;
        let size = number(range, size_at, bus.size_cells)?;
        match address.checked_sub(child) {
            Some(offset) if offset < size => return parent.checked_add(offset),
            _ => {}
        }
        rest = further;
    }
    None
}

/// A number of one or two cells. More cells (PCI has three) are not a plain address.
pub(super) fn number(bytes: &[u8], at: usize, cells: u32) -> Option<u64> {
    let first = u64::from(be32(bytes, at)?);
    match cells {
        1 => Some(first),
        2 => Some((first << 32) | u64::from(be32(bytes, at.checked_add(4)?)?)),
        _ => None,
    }
}

pub(super) fn bytes_of(cells: u32) -> Option<usize> {
    match cells {
        1 => Some(4),
        2 => Some(8),
        _ => None,
    }
}
