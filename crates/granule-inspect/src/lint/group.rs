//! The rules `contiguous` and `contiguous-state`: groups of entries with the contiguous hint.
//!
//! All valid entries of a group must have the hint, translate to one aligned range in order, and
//! have the same attributes (RQTRPM, RJQQTC). Invalid entries among them are not a fault (IPGVGZ).
//! Access flag and dirty state may differ, because hardware updates one entry. Software that sees the difference
//! must not take it for one that is not there.

use super::Whole;
use super::finding::Findings;
use super::rule::{Rule, Severity};
use crate::tree::Shape;
use granule::arch::{Descriptor, Kind};

/// Bits that members of a group may differ in.
const FREE: u64 = Descriptor::ACCESS_FLAG | Descriptor::SOFTWARE;

pub(super) fn check(whole: &Whole<'_>, findings: &mut Findings) {
    let group = whole
        .tree
        .geometry()
        .page_size()
        .contiguous_entries(whole.level);
    if group == 1 {
        return;
    }
    for (number, members) in whole.words.chunks(group).enumerate() {
        let hint = |word: &u64| {
            Descriptor(*word).is_contiguous()
                && Descriptor(*word).kind(whole.tree.geometry(), whole.level) == Kind::Leaf
        };
        // Most groups have no hint at all.
        let any = members.iter().fold(0, |all, word| all | word) & Descriptor::CONTIGUOUS != 0;
        if !any || !members.iter().any(hint) {
            continue;
        }
        let found = match fault(whole, members, group) {
            Some(what) => Some(((Rule::Contiguous, Severity::Error), what)),
            None => {
                state(whole, members).map(|what| ((Rule::ContiguousState, Severity::Info), what))
            }
        };
        if let Some((rule, what)) = found {
            findings.add(
                rule,
                &whole.tree.owner,
                (whole.address(number * group), whole.bytes(members.len())),
                || {
                    format!(
                        "in the group of {group} entries at {} of the table at {}, {what}",
                        number * group,
                        whole.table
                    )
                },
            );
        }
    }
}

/// Returns how the valid members of a group without a fault differ in what hardware updates.
fn state(whole: &Whole<'_>, members: &[u64]) -> Option<String> {
    let words = || members.iter().filter(|word| Descriptor(**word).is_valid());
    let (any, all) = words().fold((0, u64::MAX), |(any, all), word| (any | word, all & word));
    let differ = any & !all;
    let dirty = match whole.tree.shape {
        Shape::Stage1(_) => "AP[2]",
        Shape::Stage2(_) => "S2AP[1]",
    };
    let [with, what] = [
        (Descriptor::ACCESS_FLAG, "the access flag"),
        (Descriptor::AP_READ_ONLY, dirty),
    ]
    .into_iter()
    .find(|(bit, _)| differ & bit != 0)
    .map(|(bit, what)| {
        [
            words().filter(|word| **word & bit != 0).count().to_string(),
            what.to_owned(),
        ]
    })?;
    Some(format!(
        "{with} of {} valid ones have {what}",
        words().count()
    ))
}

/// Returns the fault of a group that has the hint.
fn fault(whole: &Whole<'_>, members: &[u64], group: usize) -> Option<String> {
    let geometry = whole.tree.geometry();
    let bytes = geometry.page_size().entry_bytes(whole.level);
    if members.len() < group {
        return Some("some lie beyond the end of the address space".to_owned());
    }
    let valid: Vec<(u64, Descriptor)> = (0..)
        .zip(members)
        .map(|(at, &word)| (at, Descriptor(word)))
        .filter(|(_, entry)| matches!(entry.kind(geometry, whole.level), Kind::Leaf | Kind::Table))
        .collect();
    let leaf = |entry: Descriptor| entry.kind(geometry, whole.level) == Kind::Leaf;
    let with = valid
        .iter()
        .filter(|(_, entry)| leaf(*entry) && entry.is_contiguous())
        .count();
    if with < valid.len() {
        let all = valid.len();
        return Some(format!("only {with} of {all} valid ones have the hint"));
    }
    let (first_at, first) = *valid.first()?;
    let output = |entry| geometry.address_of(entry, whole.level).0;
    // The output of the group's first entry, whether that is valid or not.
    let base = output(first).wrapping_sub(first_at * bytes);
    if let Some((at, _)) = valid
        .iter()
        .find(|(at, entry)| output(*entry) != base.wrapping_add(at * bytes))
    {
        return Some(format!(
            "the output of number {at} does not follow the first's"
        ));
    }
    if base % (group as u64 * bytes) != 0 {
        return Some(format!("the output {base:#x} is not aligned to the group"));
    }
    let fixed = |entry: Descriptor| {
        let managed = match entry.0 & Descriptor::DIRTY_MODIFIER {
            0 => 0,
            // At stage 1 AP[2], at stage 2 S2AP[1].
            _ => Descriptor::AP_READ_ONLY,
        };
        geometry.attribute_bits(entry, whole.level) & !(FREE | managed)
    };
    let (at, other) = valid
        .iter()
        .find(|(_, entry)| fixed(*entry) != fixed(first))?;
    let bits = fixed(*other) ^ fixed(first);
    Some(format!(
        "number {at} has other attributes than the first: bits {bits:#x} differ"
    ))
}
