//! Explains one address level by level: the contents of each descriptor, and the reason for each
//! access that faults.
//!
//! It walks as a CPU does: a table that leads to itself is not an obstacle, and there are at most
//! as many steps as levels.

use crate::attributes::Decoded;
use crate::fields::{self, Reserved};
use crate::tree::Tree;
use crate::walk::{Tables, restricted};
use granule::arch::{Descriptor, Kind, Level, PhysicalAddress, VirtualAddress};
use std::fmt;

#[derive(Clone, Debug)]
pub struct Step {
    pub level: Level,
    pub table: PhysicalAddress,
    pub index: usize,
    pub descriptor: Descriptor,
    /// The meaning of the descriptor, in words.
    pub text: String,
}

/// Where a walk ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The address is not one that these tables translate.
    Outside {
        /// The first one that they translate.
        first: u64,
        /// The last one.
        last: u64,
        /// Whether they ignore a tag, if that is known.
        tags: Option<bool>,
    },
    /// The table cannot be read, so the end is not known.
    Unreadable {
        table: PhysicalAddress,
        level: Level,
    },
    Translation {
        level: Level,
        /// Why the entry translates nothing.
        why: &'static str,
    },
    /// An address size fault: the address in the entry has more bits than output addresses.
    AddressSize {
        level: Level,
        /// The bits of output addresses.
        bits: u32,
        /// The register's field that sets them.
        field: &'static str,
    },
    /// An access flag fault, unless hardware manages the flag.
    AccessFlag {
        level: Level,
        /// The output address without the fault.
        output: PhysicalAddress,
    },
    Output {
        output: PhysicalAddress,
        /// The accesses that fault nevertheless, in words.
        faults: Vec<String>,
    },
}

/// The walk to one address.
#[derive(Clone, Debug)]
pub struct Explained {
    pub address: u64,
    pub steps: Vec<Step>,
    pub end: End,
    /// The place of the output in stage 2, and the use of a tag, in words.
    pub more: Vec<String>,
}

pub fn explain(tables: &Tables<'_>, tree: &Tree, address: u64) -> Explained {
    let mut steps = Vec::new();
    let untagged = tree.untagged(address);
    let end = steps_to(tables, tree, untagged, &mut steps);
    let mut more = Vec::new();
    if let (Some(_), End::Output { output, .. } | End::AccessFlag { output, .. }) =
        (tree.through, &end)
    {
        more.push(match tables.physical(*output) {
            Ok(place) => format!("stage 2 translates {output} to {place}"),
            Err(error) => error.to_string(),
        });
    }
    if untagged != address && !steps.is_empty() {
        let known = match tree.tags {
            Some(_) => "by TCR.TBI",
            None => "if TCR has TBI, which is not known",
        };
        more.push(format!(
            "the tag {:#x} in bits 63:56 is ignored {known}",
            address >> 56
        ));
    }
    Explained {
        address,
        steps,
        end,
        more,
    }
}

impl Explained {
    /// The end in words, with all that belongs to it.
    pub fn end_in_words(&self) -> String {
        let more = self.more.iter().map(String::as_str);
        let end = self.end.to_string();
        let words: Vec<_> = std::iter::once(end.as_str()).chain(more).collect();
        words.join("; ")
    }
}

fn steps_to(tables: &Tables<'_>, tree: &Tree, address: u64, steps: &mut Vec<Step>) -> End {
    let geometry = tree.geometry();
    let size = geometry.page_size();
    let Some(offset) = geometry.offset(VirtualAddress(address)) else {
        let first = geometry.base().0;
        let last = first.wrapping_add(geometry.span() - 1);
        let tags = tree.tags;
        return End::Outside { first, last, tags };
    };
    let mut level = geometry.start_level();
    let number = offset >> (size.level_shift(level) + size.entries().ilog2());
    let mut table = PhysicalAddress(tree.root.0.wrapping_add(number << size.shift()));
    let mut restrictions = 0;
    loop {
        let index = size.index(offset, level);
        let Some(descriptor) = tables.entry(table, index) else {
            return End::Unreadable { table, level };
        };
        let kind = descriptor.kind(geometry, level);
        steps.push(Step {
            level,
            table,
            index,
            descriptor,
            text: text(tree, descriptor, level, kind),
        });
        let output = geometry.address_of(descriptor, level);
        if matches!(kind, Kind::Table | Kind::Leaf)
            && let Some((bits, field)) = fields::beyond(tree, descriptor, level)
        {
            return End::AddressSize { level, bits, field };
        }
        match kind {
            Kind::Invalid | Kind::PresentInvalid => {
                let why = match (kind, descriptor.0 & 1) {
                    (Kind::PresentInvalid, _) => "the entry is present but invalid",
                    (_, 0) => "bit 0 of the entry is clear",
                    _ => "bits 1:0 of the entry are 0b01, and this level has no blocks",
                };
                return End::Translation { level, why };
            }
            Kind::Table => {
                restrictions |= descriptor.0 & Descriptor::RESTRICTIONS;
                table = output;
                level = level.next();
            }
            Kind::Leaf => {
                let leaf = restricted(descriptor, restrictions, geometry.regime());
                let decoded = Decoded::new(tree, leaf.0);
                let into = offset & (size.entry_bytes(level) - 1);
                let output = PhysicalAddress(output.0.wrapping_add(into));
                if !decoded.accessed {
                    return End::AccessFlag { level, output };
                }
                let faults = faults(&decoded);
                return End::Output { output, faults };
            }
        }
    }
}

/// A descriptor in words.
fn text(tree: &Tree, descriptor: Descriptor, level: Level, kind: Kind) -> String {
    let geometry = tree.geometry();
    let output = geometry.address_of(descriptor, level);
    let mut text = match kind {
        Kind::Invalid if !descriptor.is_valid() => return "invalid".to_owned(),
        Kind::Invalid => "block where there are none: invalid".to_owned(),
        Kind::PresentInvalid => "present but invalid".to_owned(),
        Kind::Table => {
            let words = fields::table_words(tree, descriptor);
            let comma = if words.is_empty() { "" } else { ": " };
            format!("table at {output}{comma}{}", words.join(", "))
        }
        Kind::Leaf => format!(
            "{} at {output}: {}",
            fields::leaf_name(geometry.page_size(), level),
            fields::leaf_words(tree, descriptor, level).join(" ")
        ),
    };
    match fields::reserved(tree, level, descriptor) {
        Some(Reserved::Bits(bits)) => text += &format!(", reserved bits {bits:#x} set"),
        Some(Reserved::Shareability) => text += ", reserved shareability 0b01",
        Some(Reserved::MemoryType(bits)) => text += &format!(", reserved memory type {bits:#x}"),
        Some(Reserved::NoBlock) | None => {}
    }
    text
}

/// The accesses that a leaf forbids, in words.
fn faults(decoded: &Decoded) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |allowed: bool, what: &str| {
        if !allowed {
            faults.push(what.to_owned());
        }
    };
    let managed = match decoded.dirty_modifier {
        true => " (unless hardware manages the dirty state, which DBM enables)",
        false => "",
    };
    if decoded.stage2 {
        fault(decoded.readable, "loads of the guest");
        fault(decoded.writable, &format!("stores of the guest{managed}"));
        if decoded.two_privileges {
            fault(decoded.privileged_execute, "execution at the guest's EL1");
            fault(decoded.user_execute, "execution at the guest's EL0");
        } else {
            fault(decoded.privileged_execute, "execution by the guest");
        }
        return faults;
    }
    fault(decoded.writable, &format!("stores{managed}"));
    if decoded.two_privileges {
        fault(decoded.user, "loads and stores of EL0");
        fault(
            decoded.privileged_execute,
            "execution by the privileged level",
        );
        fault(decoded.user_execute, "execution at EL0");
    } else {
        fault(decoded.privileged_execute, "execution");
    }
    faults
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:#x}", self.address)?;
        for step in &self.steps {
            let Step {
                level,
                table,
                index,
                descriptor,
                text,
            } = step;
            writeln!(
                f,
                "  level {:>2}  table {table}  entry {index}  {:#018x}  {text}",
                level.number(),
                descriptor.0
            )?;
        }
        writeln!(f, "  {}", self.end_in_words())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside { first, last, tags } => {
                let tag = match tags {
                    Some(true) => "with any tag in bits 63:56 (TCR.TBI)",
                    Some(false) => "without a tag in bits 63:56 (TCR.TBI is 0)",
                    None => "with a tag in bits 63:56 if TCR has TBI",
                };
                write!(
                    f,
                    "outside: these tables translate {first:#x} to {last:#x}, {tag}"
                )
            }
            Self::Unreadable { table, level } => {
                write!(
                    f,
                    "not known: the table of level {level} at {table} cannot be read"
                )
            }
            Self::Translation { level, why } => {
                write!(f, "translation fault, level {level}: {why}")
            }
            Self::AddressSize { level, bits, field } => write!(
                f,
                "address size fault, level {level}: the address has more than the {bits} bits of {field}"
            ),
            Self::AccessFlag { level, output } => write!(
                f,
                "access flag fault, level {level}, unless hardware sets the flag (HA): then {output}"
            ),
            Self::Output { output, faults } if faults.is_empty() => {
                write!(f, "translated to {output}; no access faults")
            }
            Self::Output { output, faults } => write!(
                f,
                "translated to {output}; permission fault for: {}",
                faults.join(", ")
            ),
        }
    }
}
