//! Copies a device tree with changes: one pass over the old tree writes the new one.
//!
//! The structure is copied token by token, and the strings are copied unchanged, with new names behind
//! them. So nothing of the tree has to be stored, and nodes that nobody here understands arrive unchanged.
//! The pass ends for any bytes. The changes are made by an [`Edit`]; they do not belong here.

use super::bus::Range;
use super::node::Node;
use super::walk::{Name, Token, Tree};
use super::write::{WriteError, Writer};

/// A node of the tree that is copied, in the classes that an [`Edit`] distinguishes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum EditPlace<'t> {
    /// The root.
    Root,
    /// `/chosen`, as [`Node::child`] finds it: the first, with or without a unit address.
    Chosen,
    /// Another child of the root.
    Child(Node<'t>),
    /// A node further inside.
    Inner,
}

/// The changes from the old tree. Each function has a default that changes nothing.
pub trait Edit<'t> {
    /// Whether a node is copied, with all that it contains.
    fn keeps(&mut self, _place: &EditPlace<'t>, _node: &Node<'t>) -> bool {
        true
    }

    /// Whether a property is copied.
    fn keeps_property(&mut self, _place: &EditPlace<'t>, _name: Name<'t>) -> bool {
        true
    }

    /// Writes the properties that a node begins with.
    fn begins(&mut self, _place: &EditPlace<'t>, _to: &mut Writer<'t>) -> Result<(), WriteError> {
        Ok(())
    }

    /// Writes the nodes that a node ends with.
    fn ends(&mut self, _place: &EditPlace<'t>, _to: &mut Writer<'t>) -> Result<(), WriteError> {
        Ok(())
    }
}

/// Copies `tree` to `into` with the changes of `edit`, and returns the bytes of the new tree. It has
/// these memory reservations instead of the old ones, and always a `/chosen`: the last child of the root,
/// if the old tree has none.
///
/// # Errors
///
/// Fails with the error in the old tree, or the writer's.
pub fn rewrite<'t>(
    tree: &Tree<'t>,
    reservations: impl IntoIterator<Item = Range>,
    edit: &mut impl Edit<'t>,
    into: &'t mut [u8],
) -> Result<usize, WriteError> {
    let mut to = Writer::with_strings(into, tree.strings(), reservations)?;
    let mut walk = tree.walk();
    // The innermost open child of the root.
    let mut child = EditPlace::Root;
    let mut has_chosen = false;
    // The depth of the node that is left out.
    let mut without = None;
    while let Some(token) = walk.next()? {
        // Of the node that begins or has the property, or around the one that ended.
        let depth = walk.depth();
        if let Some(left_out) = without {
            if depth < left_out {
                without = None;
            }
            continue;
        }
        match token {
            Token::Begin { name } => {
                let node = Node::just_begun(&walk, name);
                if depth == 2 {
                    child = if !has_chosen && node.is_named(b"chosen") {
                        has_chosen = true;
                        EditPlace::Chosen
                    } else {
                        EditPlace::Child(node)
                    };
                }
                let place = at(depth, child);
                if edit.keeps(&place, &node) {
                    to.begin(name)?;
                    edit.begins(&place, &mut to)?;
                } else {
                    without = Some(depth);
                }
            }
            Token::Property { name, value } => {
                if edit.keeps_property(&at(depth, child), name) {
                    to.copy(name, value)?;
                }
            }
            Token::End => {
                let place = at(depth.wrapping_add(1), child);
                if matches!(place, EditPlace::Root) && !has_chosen {
                    to.begin(b"chosen")?;
                    edit.begins(&EditPlace::Chosen, &mut to)?;
                    edit.ends(&EditPlace::Chosen, &mut to)?;
                    to.end()?;
                }
                edit.ends(&place, &mut to)?;
                to.end()?;
            }
        }
    }
    to.finish(tree.boot_cpu())
}

/// The place of a node at this depth, inside this child of the root.
const fn at(depth: u32, child: EditPlace<'_>) -> EditPlace<'_> {
    match depth {
        1 => EditPlace::Root,
        2 => child,
        _ => EditPlace::Inner,
    }
}
