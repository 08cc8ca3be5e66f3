//! A first look into the device tree, while the MMU is off: the few facts that are needed before
//! the first table exists.
//!
//! These are the command line, the console, the identity of the machine, how to call its firmware,
//! and the memory that no table may map. [`tree`](super::tree) reads the tree; its format does not
//! belong here.
//!
//! [`Tree::peek`] walks the tree once to its end. A tree that breaks off half way still gives the
//! facts before the break, and [`Peek::damage`] describes the error, so that the error can be
//! printed on the console that the tree names. [`Tree::no_map`] goes through the memory that no
//! table may map, and [`Tree::is_another_kernels`] identifies the memory that another kernel keeps.

mod console;
mod no_map;
mod usable;

pub use console::{ConsoleError, ConsoleSource, Consoles};
pub use usable::USABLE_MEMORY;

use super::bytes::same;
use super::tree::{Node, Strings, Token, Tree, TreeError};

/// The property of `/chosen` with firmware's seed for address randomisation.
pub const KASLR_SEED: &[u8] = b"kaslr-seed";

/// The facts from the first look.
#[derive(Clone, Copy, Debug)]
pub struct Peek<'a> {
    /// The command line, `/chosen/bootargs`, without the NUL at its end; empty if there is none.
    pub bootargs: &'a [u8],
    /// The consoles that are named, not yet checked.
    pub consoles: Consoles,
    /// The call of the firmware's power and CPU functions, from `/psci`.
    pub psci: Option<Psci<'a>>,
    /// The identity of the machine: the root's `compatible`, most exact first.
    pub compatible: Strings<'a>,
    /// The value of `/chosen/kaslr-seed`, if it has eight bytes.
    pub kaslr_seed: Option<&'a [u8; 8]>,
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

impl<'a> Tree<'a> {
    /// Walks the tree and collects the facts that the kernel needs first.
    #[must_use]
    pub fn peek(&self) -> Peek<'a> {
        let mut walk = self.walk();
        let (mut chosen, mut psci, mut aliases) = (None, None, None);
        let damage = loop {
            match walk.next() {
                Ok(Some(Token::Begin { name })) if walk.depth() == 2 => {
                    let node = Node::just_begun(&walk, name);
                    let slot = if node.is_named(b"chosen") {
                        &mut chosen
                    } else if node.is_named(b"psci") {
                        &mut psci
                    } else if node.is_named(b"aliases") {
                        &mut aliases
                    } else {
                        continue;
                    };
                    slot.get_or_insert(node);
                }
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let bootargs = chosen.and_then(|node: Node<'a>| node.text(b"bootargs"));
        let bootargs = bootargs.unwrap_or_default();
        let kaslr_seed = chosen.and_then(|node: Node<'a>| node.property(KASLR_SEED));
        Peek {
            bootargs,
            consoles: console::find(self, bootargs, chosen, aliases),
            psci: psci.map(|node: Node<'a>| Psci {
                method: node.text(b"method").and_then(conduit),
                compatible: node.strings(b"compatible"),
            }),
            compatible: self
                .root()
                .map_or_else(Strings::default, |root| root.strings(b"compatible")),
            kaslr_seed: kaslr_seed.and_then(|value| value.try_into().ok()),
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
