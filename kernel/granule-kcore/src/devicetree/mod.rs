//! Readers of the device tree for use with the MMU on: memory, CPUs, interrupt controller, timer and virtio devices.
//! The library reads the tree before the tables exist.

pub mod cpus;
pub mod intc;
pub mod memory;
pub mod virtio;

use crate::line::Line;
use core::fmt::Write;
use granule_boot::tree::{Node, Path, Tree};

/// The path of a node, cut off if it is very long. Errors outlive the tree, so they own it.
type OwnPath = Line<80>;

/// The root's child of that name.
pub(crate) fn child<'a>(tree: &Tree<'a>, name: &[u8]) -> Option<Node<'a>> {
    tree.root()?.child(name)
}

fn own(path: Path<'_>) -> OwnPath {
    let mut line = OwnPath::new();
    // Text that does not fit is cut off.
    let _ = write!(line, "{path}");
    line
}
