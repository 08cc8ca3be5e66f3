//! The rules `reserved-bits` and `output-size`: single descriptors. Neighbours with the same fault
//! are one finding.

use super::Whole;
use super::finding::Findings;
use super::rule::{Rule, Severity};
use crate::fields::{self, Reserved};
use granule::arch::{Descriptor, Kind, Level, PhysicalAddress};

/// A fault of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Reserved(Reserved),
    Beyond(Kind, u32, &'static str),
}

pub(super) fn check(whole: &Whole<'_>, findings: &mut Findings) {
    let mut begun: Option<(usize, Fault)> = None;
    // Entries that differ from a clean one only in bits that output addresses have are clean.
    let geometry = whole.tree.geometry();
    let reached = (1 << geometry.pa_bits()) - whole.bytes(1);
    let free = Descriptor::leaf(geometry, Level::L3, PhysicalAddress(reached), 0).0 & !0b11;
    let mut clean: Option<u64> = None;
    for (index, &word) in whole.words.iter().enumerate() {
        let like_clean = clean.is_some_and(|clean| (word ^ clean) & !free == 0);
        let found = if word & Descriptor::VALID == 0 || like_clean {
            None
        } else {
            let found = fault(whole, Descriptor(word));
            if found.is_none() {
                clean = Some(word);
            }
            found
        };
        if begun.map(|(_, fault)| fault) == found {
            continue;
        }
        if let Some((first, fault)) = begun {
            report(whole, fault, first, index, findings);
        }
        begun = found.map(|fault| (index, fault));
    }
    if let Some((first, fault)) = begun {
        report(whole, fault, first, whole.words.len(), findings);
    }
}

fn fault(whole: &Whole<'_>, entry: Descriptor) -> Option<Fault> {
    if let Some(found) = fields::reserved(whole.tree, whole.level, entry) {
        return Some(Fault::Reserved(found));
    }
    let kind = entry.kind(whole.tree.geometry(), whole.level);
    let translates = matches!(kind, Kind::Leaf | Kind::Table);
    let (bits, field) = fields::beyond(whole.tree, entry, whole.level).filter(|_| translates)?;
    Some(Fault::Beyond(kind, bits, field))
}

fn report(whole: &Whole<'_>, fault: Fault, first: usize, end: usize, findings: &mut Findings) {
    let place = || {
        let table = whole.table;
        match end - first {
            1 => format!("entry {first} of the table at {table}"),
            _ => format!("entries {first} to {} of the table at {table}", end - 1),
        }
    };
    let word = whole.words.get(first).copied().unwrap_or_default();
    let what = || match fault {
        Fault::Reserved(Reserved::Bits(bits)) => format!("reserved bits {bits:#x} are set"),
        Fault::Reserved(Reserved::NoBlock) => {
            "bits 1:0 are 0b01, and this level has no blocks".to_owned()
        }
        Fault::Reserved(Reserved::Shareability) => {
            "the shareability is the reserved 0b01".to_owned()
        }
        Fault::Reserved(Reserved::MemoryType(bits)) => {
            format!("the memory type is the reserved {bits:#04x}")
        }
        Fault::Beyond(kind, bits, field) => {
            let what = match kind {
                Kind::Table => "the next table's address",
                _ => "the output",
            };
            let geometry = whole.tree.geometry();
            let address = geometry.address_of(Descriptor(word), whole.level);
            format!("{what} {address} has more than the {bits} bits of {field}")
        }
    };
    let rule = match fault {
        Fault::Reserved(_) => (Rule::ReservedBits, Severity::Warning),
        Fault::Beyond(..) => (Rule::OutputSize, Severity::Error),
    };
    findings.add(
        rule,
        &whole.tree.owner,
        (whole.address(first), whole.bytes(end - first)),
        || format!("in {} ({word:#x}), {}", place(), what()),
    );
}
