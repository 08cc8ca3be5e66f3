//! The step from firmware's tables to a device tree: the tree that EFI firmware or an earlier kernel gives
//! becomes one that describes the whole machine, so that nothing else reads firmware's tables.
//!
//! The new tree has everything of the old one, except that its memory is the EFI memory map's. Where the
//! old tree has nothing but `/chosen`, ACPI's tables supply CPUs, interrupt controller, timer, PSCI and
//! console. Every node that comes from a table is marked ([`FROM_EFI`], [`FROM_ACPI`]), so that a tree for a
//! next kernel can leave it out: that kernel reads the tables itself.
//!
//! Firmware's tables are untrusted. What cannot boot is an [`ExpandError`]; everything else is a [`Note`]
//! and has no effect.
//!
//! No code after this step reads ACPI or EFI's map, and a machine with ACPI boots through the same
//! readers as a board. If a machine has both descriptions, the tree counts; `acpi=` chooses
//! otherwise.
//!
//! - A malformed table is ignored, with one line on the console. Only a map without a sensible size or
//!   without RAM, and a tree that does not fit, end the boot.
//! - Each list is walked once, and each walk is bounded: 2048 CPUs are described, 256 ranges get a NUMA node,
//!   and four million entries of the SRAT are looked at.
//! - An earlier kernel may have made firmware change its addresses to virtual ones. The list of configuration
//!   tables is found through the memory map, which has both addresses.
//! - The memory map, ACPI's tables, the list of memory that an earlier kernel keeps, and that
//!   memory are reserved in the tree, and stay so. Three tables of firmware are reserved too,
//!   because they are read late or by a next kernel, and firmware may leave them in free memory:
//!   the memory attributes table, the system resource table, and that of the supported runtime
//!   services.
//! - The tree for a next kernel keeps the properties of `/chosen` that name the tables, so a Linux reads the
//!   tables itself, as after a boot by EFI.

mod edit;
mod machine;
mod memory;
mod note;
mod request;

pub use note::{ExpandError, Note, Notes};
pub use request::Request;

use super::efi::{self, Map, MemoryReservations, Physical};
use super::tree::{self, Tree};
use super::words::Acpi;
use machine::Machine;
use memory::Banks;

/// The mark of a node that comes from the EFI memory map.
pub const FROM_EFI: &[u8] = b"granule,from-efi";
/// The mark of a node that comes from ACPI's tables, and of a `/chosen` whose `stdout-path` names one.
pub const FROM_ACPI: &[u8] = b"granule,from-acpi";
/// The `compatible` of memory that firmware uses at run time.
pub const EFI_RUNTIME: &[u8] = b"granule,efi-runtime";

/// The tree that was written.
#[derive(Clone, Copy, Debug)]
pub struct Expanded {
    /// Its bytes.
    pub bytes: usize,
    /// Whether ACPI's tables describe the machine.
    pub is_acpi: bool,
    /// The entries of firmware's tables that have no effect.
    pub notes: Notes,
}

/// Writes the tree of the whole machine to `into`. `request` is what `old` contains of firmware's
/// tables, `map` the memory map that it names, and `acpi` the command line's word.
///
/// # Errors
///
/// Fails if the machine cannot boot with these tables.
pub fn expand<'t>(
    old: &Tree<'t>,
    request: &Request,
    map: Map<'_>,
    memory: &impl Physical,
    acpi: Option<Acpi>,
    into: &'t mut [u8],
) -> Result<Expanded, ExpandError> {
    let mut notes = Notes::default();
    let banks = Banks::of(map, &mut notes)?;
    let tables = efi::Tables::read(memory, map, request.system_table);
    let tables = tables.unwrap_or_else(|error| {
        notes.add(Note::System(error));
        efi::Tables::default()
    });
    let is_bare = is_bare(old);
    let is_wanted = match acpi {
        None => is_bare,
        Some(word) => !matches!(word, Acpi::Off),
    };
    let machine = if is_wanted {
        match Machine::read(memory, tables.rsdp, &mut notes) {
            Ok(machine) => Some(machine),
            Err(error) if matches!(acpi, Some(Acpi::Force)) => {
                return Err(ExpandError::Acpi(error));
            }
            Err(error) => {
                notes.add(Note::Acpi(error));
                None
            }
        }
    } else {
        None
    };
    let mut list = MemoryReservations::new(memory, tables.reservations);
    list.by_ref().for_each(drop);
    if list.is_cut {
        notes.add(Note::Reservations);
    }
    let is_acpi = machine.is_some();
    let mut edit = edit::Expand::new(old, is_bare, map, &banks, machine, notes)?;
    let reserved = [request.map]
        .into_iter()
        .chain(memory::tables(map))
        .chain(tables.attributes_range(memory))
        .chain(tables.resources_range(memory))
        .chain(tables.properties_range(memory))
        .chain(MemoryReservations::new(memory, tables.reservations));
    let known = old.reservations().map_err(tree::WriteError::from)?;
    // Each kernel of a row reserves the same ranges, so those that an earlier one reserved are left out.
    let reserved = reserved.filter(move |range| !known.into_iter().any(|one| one == *range));
    let bytes = tree::rewrite(old, known.chain(reserved), &mut edit, into)?;
    Ok(Expanded {
        bytes,
        is_acpi,
        notes: edit.notes,
    })
}

/// Whether a tree does not describe the machine: its root has no child but `/chosen`.
fn is_bare(tree: &Tree<'_>) -> bool {
    let mut children = tree.root().into_iter().flat_map(|root| root.children());
    children.all(|child| child.is_named(b"chosen"))
}
