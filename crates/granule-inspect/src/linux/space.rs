//! The kernel's memory by its virtual addresses.

use crate::source::Memory;
use crate::tree::{Shape, Tree};
use granule::arch::{Descriptor, Geometry, PhysicalAddress, VirtualAddress};
use granule::table::TableView;
use std::collections::HashSet;

/// Memory through a tree.
pub(crate) struct Space<'a> {
    memory: &'a dyn Memory,
    root: PhysicalAddress,
    pub(crate) shape: Geometry,
}

impl<'a> Space<'a> {
    /// The memory that `tree` maps; `None` for stage 2.
    pub(crate) fn new(memory: &'a dyn Memory, tree: &Tree) -> Option<Self> {
        match tree.shape {
            Shape::Stage1(shape) => Some(Self::below(memory, tree.root, shape)),
            Shape::Stage2(_) => None,
        }
    }

    /// The memory that the tables below `root` map.
    pub(crate) const fn below(
        memory: &'a dyn Memory,
        root: PhysicalAddress,
        shape: Geometry,
    ) -> Self {
        Self {
            memory,
            root,
            shape,
        }
    }

    /// Where `address` is.
    pub(crate) fn physical(&self, address: u64) -> Result<PhysicalAddress, String> {
        self.query(address)?
            .ok_or_else(|| format!("nothing is mapped at {address:#x}"))
    }

    /// Where `address` is, if it is mapped. An error is one line: a table cannot be read.
    pub(crate) fn query(&self, address: u64) -> Result<Option<PhysicalAddress>, String> {
        let read = |table: PhysicalAddress, index: usize| {
            let mut entry = [0; 8];
            let place = PhysicalAddress(table.0.checked_add(8 * index as u64)?);
            self.memory.read(place, &mut entry).ok()?;
            Some(Descriptor(u64::from_le_bytes(entry)))
        };
        let view = TableView::new(self.shape, self.root, read);
        let mapping = view.query(VirtualAddress(address));
        let mapping = mapping.map_err(|error| error.to_string())?;
        Ok(mapping.map(|mapping| mapping.output))
    }

    /// The `bytes` bytes from `address` on; the caller bounds them.
    pub(crate) fn bytes(&self, address: u64, bytes: u64) -> Result<Vec<u8>, String> {
        let mut buffer = vec![0; bytes as usize];
        let page = self.shape.page_size().bytes();
        let (mut at, mut rest) = (address, buffer.as_mut_slice());
        while !rest.is_empty() {
            let now = rest.len().min((page - at % page) as usize);
            let (part, others) = rest.split_at_mut(now);
            let read = self.memory.read(self.physical(at)?, part);
            read.map_err(|error| error.to_string())?;
            at = at.wrapping_add(now as u64);
            rest = others;
        }
        Ok(buffer)
    }

    /// The text at `address` up to its NUL, at most `most` bytes of it. Characters that cannot be
    /// printed are `?`.
    pub(crate) fn text(&self, address: u64, most: usize) -> Result<String, String> {
        let page = self.shape.page_size().bytes();
        let (mut at, mut text) = (address, String::new());
        while text.len() < most {
            // A page at a time, as the text may end before memory that is not mapped.
            let now = (page - at % page).min((most - text.len()) as u64);
            let bytes = self.bytes(at, now)?;
            let (bytes, ended) = match bytes.iter().position(|&byte| byte == 0) {
                Some(end) => (&bytes[..end], true),
                None => (&bytes[..], false),
            };
            text.extend(bytes.iter().map(|byte| match byte {
                b' '..=b'~' => char::from(*byte),
                _ => '?',
            }));
            if ended {
                break;
            }
            at = at.wrapping_add(now);
        }
        Ok(text)
    }

    /// Calls `each` with the nodes of the kernel's list at `head`, `most` at the most, and adds a line for an
    /// end that is not the list's.
    pub(crate) fn list(
        &self,
        what: &str,
        head: u64,
        most: usize,
        notes: &mut Vec<String>,
        mut each: impl FnMut(u64, &mut Vec<String>),
    ) {
        let (mut at, mut seen) = (head, HashSet::new());
        loop {
            at = match self.word(at) {
                Ok(at) if at == head => return,
                Ok(at) => at,
                Err(why) => {
                    notes.push(format!("the list of {what} ends early: {why}"));
                    return;
                }
            };
            let why = match (seen.insert(at), seen.len() > most) {
                (false, _) => format!("never ends: it comes to {at:#x} again"),
                (_, true) => format!("has more than {most}, the most that are read"),
                _ => String::new(),
            };
            if !why.is_empty() {
                notes.push(format!("the list of {what} {why}"));
                return;
            }
            each(at, notes);
        }
    }

    /// The word at `address`.
    pub(crate) fn word(&self, address: u64) -> Result<u64, String> {
        let bytes = self.bytes(address, 8)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte)))
    }
}
