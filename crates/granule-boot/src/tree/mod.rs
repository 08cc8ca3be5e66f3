//! The one reader and the one writer of flattened device trees, for code with the MMU off and on, and
//! on the host.
//!
//! They work byte by byte, allocate nothing and do not panic for any bytes, so that code with
//! the MMU off can use them (see the crate's rules). The reader is as tolerant as Linux: names of any
//! length and any bytes, blocks in any order, versions 16 and 17. The meaning of nodes does not belong
//! here.
//!
//! - [`Tree::new`] checks the header.
//! - [`Tree::walk`] goes through the tokens of the structure block.
//! - [`Tree::root`], [`Tree::find`] and [`Tree::nodes`] give [`Node`]s, with their properties and
//!   children.
//! - [`Node::reg`] reads addresses and sizes; [`Node::to_cpu`] translates an address through the
//!   buses above the node.
//! - [`Tree::reservations`] reads the memory reservation block.
//! - [`Tree::damage`] looks for an error in the structure block, and [`Tree::damaged_node`] names
//!   the node.
//! - [`Writer`] writes a tree, and [`rewrite`] copies one with the changes of an [`Edit`].
//!
//! In a damaged tree all iterators end at the damage.
//!
//! The kernel with the MMU off and on, kexec, the probe, the program `granule` and the fuzz targets use this
//! one reader, so all of them agree on the content of a tree. It is our own code, although the project
//! prefers a crate for everything outside page tables: with the MMU off nothing may panic, format or access
//! memory unaligned, and the crate `dtoolkit` refuses names of more than 31 characters, which real trees
//! have. `dtoolkit` writes trees on the host, and tests compare both readers.
//!
//! `/reserved-memory` has the root's numbers of cells unless it states its own.

mod bus;
mod error;
mod node;
mod path;
mod reservations;
mod rewrite;
mod walk;
mod write;

pub use bus::{Range, Reg};
pub use error::TreeError;
pub use node::{Cells, Children, Node, Property, Strings};
pub use path::Path;
pub use reservations::Reservations;
pub use rewrite::{Edit, EditPlace, rewrite};
pub use walk::{Name, Token, Tree, Walk, total_size};
pub use write::{MOST_NAMES, WriteError, Writer, hexadecimal};
