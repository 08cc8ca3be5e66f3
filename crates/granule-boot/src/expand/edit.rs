//! The changes from the tree that firmware gave to the tree of the whole machine.

use super::super::chosen::USABLE_MEMORY_RANGE;
use super::super::efi::Map;
use super::super::tree::{Cells, Edit, EditPlace, Name, Node, Reg, Tree, WriteError, Writer};
use super::machine::{self, Machine};
use super::memory::{self, Banks};
use super::{ExpandError, FROM_ACPI, FROM_EFI, Notes};

/// The cells of a root that describes nothing else of the machine.
const TWO: Cells = Cells {
    address: 2,
    size: 2,
};

/// The properties of `/chosen` that name memory with the root's cells: what another kernel leaves, and its headers.
const OF_THE_ROOT: [&[u8]; 2] = [USABLE_MEMORY_RANGE.as_bytes(), b"linux,elfcorehdr"];

type Done<T = ()> = Result<T, WriteError>;

pub(super) struct Expand<'e> {
    map: Map<'e>,
    banks: &'e Banks,
    machine: Option<Machine<'e>>,
    /// Whether the root's cells are written new.
    has_own_cells: bool,
    cells: Cells,
    /// The root's cells in the old tree.
    old_cells: Cells,
    /// The entries of [`OF_THE_ROOT`], where the root's cells change.
    changed: [Option<Reg<'e>>; 2],
    has_reserved: bool,
    pub(super) notes: Notes,
}

impl<'e> Expand<'e> {
    pub(super) fn new(
        old: &Tree<'e>,
        is_bare: bool,
        map: Map<'e>,
        banks: &'e Banks,
        machine: Option<Machine<'e>>,
        notes: Notes,
    ) -> Result<Self, ExpandError> {
        let has_own_cells = is_bare || machine.is_some();
        let old_cells = old.root().map_or(TWO, |root| root.child_cells());
        let cells = if has_own_cells { TWO } else { old_cells };
        if !memory::can_hold(cells) {
            return Err(ExpandError::Cells);
        }
        let mut changed = [None; 2];
        let chosen = old.root().and_then(|root| root.child(b"chosen"));
        if let Some(chosen) = chosen.filter(|_| cells != old_cells) {
            for (entries, name) in changed.iter_mut().zip(OF_THE_ROOT) {
                let all = chosen.property(name);
                let all = all.map(|value| Reg::new(value, old_cells).whole().0);
                // A range that is lost could be memory that another kernel keeps.
                if all.is_some_and(|mut all| all.any(|one| one.is_none())) {
                    return Err(ExpandError::ChosenMemory);
                }
                *entries = all;
            }
        }
        Ok(Self {
            map,
            banks,
            machine,
            has_own_cells,
            cells,
            old_cells,
            changed,
            has_reserved: false,
            notes,
        })
    }
}

impl<'t> Edit<'t> for Expand<'_> {
    fn keeps(&mut self, place: &EditPlace<'t>, node: &Node<'t>) -> bool {
        match place {
            EditPlace::Root | EditPlace::Chosen => true,
            // Nodes that an earlier kernel added from the same tables.
            _ if is_marked(node) => false,
            EditPlace::Child(node) if node.is_named(b"reserved-memory") => true,
            // ACPI describes the machine, and no second description counts.
            EditPlace::Child(node) => self.machine.is_none() && !node.is_memory(),
            _ => true,
        }
    }

    fn keeps_property(&mut self, place: &EditPlace<'t>, name: Name<'t>) -> bool {
        match place {
            EditPlace::Root => {
                !(self.has_own_cells && (name.is(b"#address-cells") || name.is(b"#size-cells")))
            }
            // The node that it names is not copied.
            EditPlace::Chosen => {
                let names_console = name.is(b"stdout-path") || name.is(b"linux,stdout-path");
                let changes =
                    self.cells != self.old_cells && OF_THE_ROOT.iter().any(|one| name.is(one));
                !(name.is(FROM_ACPI) || (self.machine.is_some() && names_console) || changes)
            }
            _ => true,
        }
    }

    fn begins(&mut self, place: &EditPlace<'t>, to: &mut Writer<'t>) -> Done {
        match place {
            EditPlace::Root if self.has_own_cells => {
                to.cells(b"#address-cells", &[self.cells.address])?;
                to.cells(b"#size-cells", &[self.cells.size])
            }
            EditPlace::Chosen => {
                for (entries, name) in self.changed.into_iter().zip(OF_THE_ROOT) {
                    if let Some(entries) = entries {
                        memory::reg(to, name, self.cells, entries.flatten())?;
                    }
                }
                match self.machine.and_then(|machine| machine.console) {
                    Some(console) => machine::stdout(to, console),
                    None => Ok(()),
                }
            }
            // Cells that it does not state are the root's, which change.
            EditPlace::Child(node)
                if self.cells != self.old_cells && node.is_named(b"reserved-memory") =>
            {
                let cells = node.child_cells_or(self.old_cells);
                if node.property(b"#address-cells").is_none() {
                    to.cells(b"#address-cells", &[cells.address])?;
                }
                if node.property(b"#size-cells").is_none() {
                    to.cells(b"#size-cells", &[cells.size])?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn ends(&mut self, place: &EditPlace<'t>, to: &mut Writer<'t>) -> Done {
        match place {
            EditPlace::Child(node) if !self.has_reserved && node.is_named(b"reserved-memory") => {
                self.has_reserved = true;
                let cells = node.child_cells_or(self.old_cells);
                memory::runtime(to, cells, self.map, &mut self.notes)
            }
            EditPlace::Root => {
                let near = self.machine.and_then(|machine| machine.srat);
                memory::nodes(to, self.cells, self.banks, near, &mut self.notes)?;
                if !self.has_reserved {
                    to.begin(b"reserved-memory")?;
                    to.cells(b"#address-cells", &[self.cells.address])?;
                    to.cells(b"#size-cells", &[self.cells.size])?;
                    to.property(b"ranges", &[])?;
                    to.property(FROM_EFI, &[])?;
                    memory::runtime(to, self.cells, self.map, &mut self.notes)?;
                    to.end()?;
                }
                match self.machine {
                    Some(machine) => machine.nodes(to, &mut self.notes),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Whether a node comes from firmware's tables.
fn is_marked(node: &Node<'_>) -> bool {
    node.property(FROM_EFI).is_some() || node.property(FROM_ACPI).is_some()
}
