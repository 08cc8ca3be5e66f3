//! Finds the console's registers, from the command line and from `/chosen/stdout-path`, and checks
//! that an access there is safe. Drivers for the console do not belong here.
//!
//! The console is the first of these that can be used: `earlycon=NAME,ADDRESS` on the command line,
//! `/chosen/stdout-path` (or `linux,stdout-path`), and the last `console=` on the command line that has one
//! of Linux's names for a UART and a digit, as `ttyAMA0`. The kernel prints a line for each candidate that it
//! passed over. Without a console the kernel boots on, and the boot record has the reason for each candidate.
//!
//! The registers must lie in 4 KiB that begin at a multiple of 4 KiB, because one page is mapped. This page
//! must be outside of the image, the device tree, the area of `granule.trace=`, no-map ranges and the banks
//! of RAM, which are Normal memory in the linear map.

use super::super::bytes::before;
use super::super::tree::{Node, Range, Tree};
use super::super::uart::{self, Device, Uart};
use super::super::words;
use thiserror::Error;

/// The places that name a console, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsoleSource {
    /// `earlycon=` of the command line.
    Earlycon,
    /// `/chosen/stdout-path`, or its older name `linux,stdout-path`.
    StdoutPath,
    /// `console=` of the command line, with Linux's name of a UART and a digit, as in `ttyAMA0`.
    Console,
}

impl ConsoleSource {
    const ALL: [Self; 3] = [Self::Earlycon, Self::StdoutPath, Self::Console];

    /// The name in a line for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Earlycon => "earlycon=",
            Self::StdoutPath => "/chosen/stdout-path",
            Self::Console => "console=",
        }
    }
}

/// Why a console that is named cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}", self.text())]
#[non_exhaustive]
pub enum ConsoleError {
    /// The word's value cannot be read.
    NotUnderstood,
    /// `stdout-path` is an alias that is not in `/aliases`.
    NoSuchAlias,
    /// The node does not exist.
    NoSuchNode,
    /// The node has no address that the CPU can use.
    NoAddress,
    /// The node is not a UART of a known family.
    NotKnown,
    /// The node's `reg-shift` or `reg-io-width` cannot be.
    NoLayout,
    /// The registers are at 0, not aligned to their accesses, or not in one page of the smallest
    /// size.
    Misaligned,
    /// The registers lie beyond the physical addresses.
    OutOfReach,
    /// The registers lie in the memory of the image.
    InImage,
    /// The registers lie in the device tree.
    InTree,
    /// The registers lie in the area of `granule.trace=`.
    InTrace,
    /// The registers lie in memory that must not be mapped.
    InNoMap,
    /// The registers lie in RAM.
    InRam,
}

impl ConsoleError {
    /// The error as the end of a line that begins with the source's name.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotUnderstood => "has a value that is not understood",
            Self::NoSuchAlias => "names no entry of /aliases",
            Self::NoSuchNode => "leads to no node",
            Self::NoAddress => "leads to a node without an address for the CPU",
            Self::NotKnown => "leads to a device that is not a UART of a known kind",
            Self::NoLayout => "leads to a UART whose reg-shift or reg-io-width cannot be",
            Self::Misaligned => "has registers at 0, unaligned, or across a multiple of 4096",
            Self::OutOfReach => "has registers beyond the CPU's physical addresses",
            Self::InImage => "has registers in the memory of the image",
            Self::InTree => "has registers in the memory of the device tree",
            Self::InTrace => "has registers in the area of granule.trace=",
            Self::InNoMap => "has registers in a no-map range of /reserved-memory",
            Self::InRam => "has registers in RAM",
        }
    }
}

/// The consoles that are named: for each source the UART, or why there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consoles {
    /// In the order of [`ConsoleSource::ALL`]; `None` for a source that names nothing.
    named: [Option<Result<Uart, ConsoleError>>; 3],
}

impl Consoles {
    /// No console is named.
    pub const NONE: Self = Self { named: [None; 3] };

    /// The first console without an error.
    #[must_use]
    pub fn first(&self) -> Option<Uart> {
        self.named.iter().flatten().find_map(|named| named.ok())
    }

    /// Returns the UART that `source` leads to, or the reason why there is none; `None` if it names
    /// nothing.
    #[must_use]
    pub fn of(&self, source: ConsoleSource) -> Option<Result<Uart, ConsoleError>> {
        let mut named = ConsoleSource::ALL.into_iter().zip(self.named);
        named.find_map(|(it, named)| named.filter(|_| it == source))
    }

    /// The sources that come before the first console without an error, each with its error.
    pub fn passed_over(&self) -> impl Iterator<Item = (ConsoleSource, ConsoleError)> {
        let named = ConsoleSource::ALL.into_iter().zip(self.named);
        let named = named.filter_map(|(source, named)| Some((source, named?)));
        named.map_while(|(source, named)| Some((source, named.err()?)))
    }

    /// Turns each console whose registers may not be accessed into an error. `limit` is the end of
    /// the physical addresses, and `taken` are ranges that other data has, with the error for each.
    pub fn check(&mut self, tree: &Tree<'_>, limit: u64, taken: &[(Range, ConsoleError)]) {
        for named in self.named.iter_mut().flatten() {
            *named = named.and_then(|uart| check(tree, uart, limit, taken).map(|()| uart));
        }
    }
}

/// Whether an access to the registers is safe. The whole page is mapped as a device.
fn check(
    tree: &Tree<'_>,
    uart: Uart,
    limit: u64,
    taken: &[(Range, ConsoleError)],
) -> Result<(), ConsoleError> {
    let registers = uart.page().filter(|_| uart.base != 0);
    let registers = registers.ok_or(ConsoleError::Misaligned)?;
    let end = registers.start.checked_add(registers.bytes);
    if end.is_none_or(|end| end > limit) {
        return Err(ConsoleError::OutOfReach);
    }
    if let Some((_, error)) = taken.iter().find(|(range, _)| registers.meets(*range)) {
        return Err(*error);
    }
    if tree.no_map().any(|range| registers.meets(range)) {
        return Err(ConsoleError::InNoMap);
    }
    // RAM is Normal memory in the linear map, and the allocator hands it out.
    let nodes = tree.root().into_iter().flat_map(|root| root.children());
    let mut banks = nodes.filter(|node| node.is_memory() && node.is_usable());
    let holds = |node: Node<'_>| {
        let mut reg = node.reg().into_iter().flatten().flatten();
        reg.any(|bank| registers.meets(bank))
    };
    if banks.any(holds) {
        return Err(ConsoleError::InRam);
    }
    Ok(())
}

/// Finds the consoles. `/chosen` and `/aliases` may be missing.
pub(super) fn find<'a>(
    tree: &Tree<'a>,
    bootargs: &[u8],
    chosen: Option<Node<'a>>,
    aliases: Option<Node<'a>>,
) -> Consoles {
    let earlycon = words::find(bootargs, words::EARLYCON_KEY)
        .map(|value| words::earlycon(value).ok_or(ConsoleError::NotUnderstood));
    let of_chosen = |name: &[u8]| chosen.and_then(|chosen| chosen.text(name));
    let path = of_chosen(b"stdout-path").or_else(|| of_chosen(b"linux,stdout-path"));
    let stdout_path = path.map(|path| at_stdout_path(tree, path, aliases));
    let console = words::console(bootargs).map(|value| {
        let (device, number) = words::console_device(value).ok_or(ConsoleError::NotUnderstood)?;
        let node = numbered(tree, device, number, aliases);
        of_node(&node.ok_or(ConsoleError::NoSuchNode)?)
    });
    Consoles {
        named: [earlycon, stdout_path, console],
    }
}

/// The console at a path or an alias, with optional settings after a colon.
fn at_stdout_path<'a>(
    tree: &Tree<'a>,
    stdout_path: &'a [u8],
    aliases: Option<Node<'a>>,
) -> Result<Uart, ConsoleError> {
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

/// The UART that Linux calls `device` and `number`: by the alias `serial` and that number if it leads
/// to such a device, else the one at that place among such devices in the tree.
fn numbered<'a>(
    tree: &Tree<'a>,
    device: Device,
    number: u8,
    aliases: Option<Node<'a>>,
) -> Option<Node<'a>> {
    let fits = |node: &Node<'_>| {
        let family = uart::family(node);
        family.is_some_and(|family| family.device() == device)
    };
    let digit = b'0'.saturating_add(number);
    let alias = [b's', b'e', b'r', b'i', b'a', b'l', digit];
    let path = aliases.and_then(|aliases| aliases.text(&alias));
    let aliased = path.and_then(|path| tree.find(path)).filter(fits);
    aliased.or_else(|| {
        tree.nodes()
            .filter(|node| node.is_usable() && fits(node))
            .nth(usize::from(number))
    })
}

fn of_node(node: &Node<'_>) -> Result<Uart, ConsoleError> {
    let registers = node.reg().and_then(|mut reg| reg.next().flatten());
    let base = registers.and_then(|registers| node.to_cpu(registers.start));
    let base = base.ok_or(ConsoleError::NoAddress)?;
    let family = uart::family(node).ok_or(ConsoleError::NotKnown)?;
    let layout = uart::layout(node).ok_or(ConsoleError::NoLayout)?;
    let offset = node.number(b"reg-offset").unwrap_or_default();
    let base = base.checked_add(offset).ok_or(ConsoleError::NoAddress)?;
    Ok(Uart {
        base,
        family,
        layout,
    })
}
