//! Finds the console's registers, from the command line and from `/chosen/stdout-path`. Drivers for
//! the console do not belong here.

use super::super::bytes::before;
use super::super::tree::{Node, Tree};
use super::super::words;
use core::fmt;

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
    /// `/chosen` has no `stdout-path`, and the command line names no console.
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
            Self::NotNamed => "no console: no stdout-path in /chosen, no earlycon= in its bootargs",
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

/// Finds the console. `/chosen` and `/aliases` may be missing.
pub(super) fn find<'a>(
    tree: &Tree<'a>,
    bootargs: &[u8],
    chosen: Option<Node<'a>>,
    aliases: Option<Node<'a>>,
) -> Result<Console, ConsoleError> {
    // An earlycon that is not understood is told later, on the console that the tree names.
    if let Some(base) = words::find(bootargs, words::EARLYCON_KEY).and_then(words::pl011) {
        return Ok(Console {
            base,
            is_pl011: true,
        });
    }
    let of_chosen = |name: &[u8]| chosen.and_then(|chosen| chosen.text(name));
    let path = of_chosen(b"stdout-path").or_else(|| of_chosen(b"linux,stdout-path"));
    let error = match path.map(|path| at_stdout_path(tree, path, aliases)) {
        Some(Ok(console)) => return Ok(console),
        Some(Err(error)) => error,
        None => ConsoleError::NotNamed,
    };
    // Linux's name of a PL011, which also needs no stdout-path.
    match words::tty_ama(bootargs).and_then(|number| numbered(tree, number, aliases)) {
        Some(node) => of_node(&node),
        None => Err(error),
    }
}

/// The console at a path or an alias, with optional settings after a colon.
fn at_stdout_path<'a>(
    tree: &Tree<'a>,
    stdout_path: &'a [u8],
    aliases: Option<Node<'a>>,
) -> Result<Console, ConsoleError> {
    let mut path = before(stdout_path, b':');
    if path.first() != Some(&b'/') {
        let alias = aliases.and_then(|aliases| aliases.text(path));
        // An alias may carry settings of its own.
        path = before(alias.ok_or(ConsoleError::NoSuchAlias)?, b':');
        if path.first() != Some(&b'/') {
            return Err(ConsoleError::NoSuchNode);
        }
    }
    of_node(&tree.find(path).ok_or(ConsoleError::NoSuchNode)?)
}

/// The PL011 that Linux calls `ttyAMA` and `number`: by the alias `serial` and that number, else
/// the one at that place in the tree.
fn numbered<'a>(tree: &Tree<'a>, number: u8, aliases: Option<Node<'a>>) -> Option<Node<'a>> {
    let digit = b'0'.saturating_add(number);
    let alias = [b's', b'e', b'r', b'i', b'a', b'l', digit];
    let path = aliases.and_then(|aliases| aliases.text(&alias));
    path.and_then(|path| tree.find(path)).or_else(|| {
        tree.nodes()
            .filter(|node| node.is_usable() && node.is_compatible(b"arm,pl011"))
            .nth(usize::from(number))
    })
}

fn of_node(node: &Node<'_>) -> Result<Console, ConsoleError> {
    let registers = node.reg().and_then(|mut reg| reg.next().flatten());
    match registers.and_then(|registers| node.to_cpu(registers.start)) {
        Some(base) => Ok(Console {
            base,
            is_pl011: node.is_compatible(b"arm,pl011"),
        }),
        None => Err(ConsoleError::NoAddress),
    }
}
