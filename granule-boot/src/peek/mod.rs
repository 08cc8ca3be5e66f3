//! A first look into the flattened device tree, while the MMU is off.
//!
//! This is not a device-tree library. The kernel uses one for memory banks, reservations and
//! devices once the MMU is on. Such a library cannot run earlier: it panics and formats on an
//! inconsistent tree and reads words at unaligned addresses, and code that runs with the MMU off
//! may do none of these. This module finds, byte by byte, only the facts needed before the first
//! table exists: the command line, the console for error messages, the identity of the machine, and
//! how to call its firmware.
//!
//! [`Tree::new`] checks the header. [`Tree::peek`] walks the tree once to its end. A tree that
//! breaks off half way still gives the facts before the break, and [`Peek::damage`] describes the
//! error, so that the error can be printed on the console that the tree names. [`Tree::no_map`]
//! walks the tree again, for memory that no table may map.

mod console;
mod no_map;
mod tree;

pub use console::{Console, ConsoleError};
pub use no_map::{NoMap, Range};
pub use tree::{Name, Token, Tree, TreeError, Walk, total_size};

use super::bytes::{before, same};

/// The facts from the first look.
#[derive(Clone, Copy, Debug)]
pub struct Peek<'a> {
    /// The command line, `/chosen/bootargs`, without the NUL at its end; empty if there is none.
    pub bootargs: &'a [u8],
    /// The console that `/chosen/stdout-path` names.
    pub console: Result<Console, ConsoleError>,
    /// How to call the firmware's power and CPU functions, from `/psci`.
    pub psci: Option<Psci<'a>>,
    /// The identity of the machine: the root's `compatible`, most exact first.
    pub compatible: Strings<'a>,
    /// The error in the tree, if any. The other fields then hold only the facts before it.
    pub damage: Option<TreeError>,
}

/// The firmware interface for power and CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Psci<'a> {
    /// The instruction that calls it; `None` if the tree names neither.
    pub method: Option<Conduit>,
    /// The node's `compatible`: `arm,psci-1.0`, `arm,psci-0.2`, `arm,psci`.
    pub compatible: Strings<'a>,
}

/// The instruction that calls firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conduit {
    /// `hvc #0`.
    Hvc,
    /// `smc #0`.
    Smc,
}

/// The strings of a property that is a list of strings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strings<'a> {
    rest: &'a [u8],
}

impl Strings<'_> {
    /// Whether the list contains this string.
    #[must_use]
    pub fn has(self, wanted: &[u8]) -> bool {
        let mut strings = self;
        strings.any(|string| same(string, wanted))
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let string = before(self.rest, 0);
        let (_, rest) = self.rest.split_at_checked(string.len()).unwrap_or_default();
        self.rest = rest.split_first().map_or(&[], |(_, rest)| rest);
        Some(string)
    }
}

/// The node of a property, as far as this module distinguishes nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Chosen,
    Psci,
    Elsewhere,
}

impl<'a> Tree<'a> {
    /// Walks the tree and collects the facts that the kernel needs first.
    #[must_use]
    pub fn peek(&self) -> Peek<'a> {
        let mut bootargs: &[u8] = &[];
        let mut stdout_path = None;
        let mut compatible = Strings::default();
        let mut psci = None;
        let mut place = Place::Elsewhere;
        let mut walk = Walk::new(*self);
        let damage = loop {
            let token = match walk.next() {
                Ok(Some(token)) => token,
                Ok(None) => break None,
                Err(error) => break Some(error),
            };
            match token {
                Token::Begin { name } => {
                    place = match walk.depth() {
                        1 => Place::Root,
                        2 if same(name, b"chosen") => Place::Chosen,
                        2 if same(name, b"psci") => Place::Psci,
                        _ => Place::Elsewhere,
                    };
                    if place == Place::Psci {
                        psci = Some(Psci {
                            method: None,
                            compatible: Strings::default(),
                        });
                    }
                }
                Token::End => place = Place::Elsewhere,
                Token::Property { name, value } => match place {
                    Place::Root if name.is(b"compatible") => compatible = Strings { rest: value },
                    Place::Chosen if name.is(b"bootargs") => bootargs = before(value, 0),
                    Place::Chosen if name.is(b"stdout-path") => {
                        stdout_path = Some(before(value, 0));
                    }
                    Place::Psci if name.is(b"compatible") => {
                        if let Some(psci) = &mut psci {
                            psci.compatible = Strings { rest: value };
                        }
                    }
                    Place::Psci if name.is(b"method") => {
                        if let Some(psci) = &mut psci {
                            psci.method = conduit(before(value, 0));
                        }
                    }
                    _ => {}
                },
            }
        };
        let console = match stdout_path {
            Some(path) => console::find(*self, path),
            None => Err(ConsoleError::NotNamed),
        };
        Peek {
            bootargs,
            console,
            psci,
            compatible,
            damage,
        }
    }
}

fn conduit(method: &[u8]) -> Option<Conduit> {
    if same(method, b"hvc") {
        Some(Conduit::Hvc)
    } else if same(method, b"smc") {
        Some(Conduit::Smc)
    } else {
        None
    }
}
