//! Contiguous groups: the valid members must agree (RQTRPM, RJQQTC, IPGVGZ, INFFSV).

use crate::arch::descriptor::{self, EntryKind};
use crate::arch::format::Format;
use crate::config::Config;
use crate::state::ids::TableId;
use crate::state::memory::Memory;
use crate::state::relied::Relied;
use crate::state::tables::{Path, Table};
use crate::state::trees::Trees;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};
use std::collections::BTreeSet;

const UNEQUAL: &str =
    "may use the address or attributes of any member of the contiguous group for all of it";
const MIXED: &str = "may find members of a contiguous group with and without the contiguous bit, and use any, \
     or take a TLB conflict abort";

/// The state of the rule: what has to be checked again.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContiguousGroups {
    /// Groups that are broken now and must be correct when they are next relied on: first entry and
    /// table.
    suspects: BTreeSet<(u64, TableId)>,
}

#[derive(Clone, Copy)]
struct GroupPlace {
    cpu: u32,
    /// Its first entry.
    location: u64,
    /// The addresses that it translates, or the physical ones of its entries where no path to it is
    /// known.
    range: (u64, u64),
    is_virtual: bool,
}

/// The kinds of broken groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Some valid members have the bit and some have not.
    Mixed,
    /// The members do not map one aligned range, or their memory attributes differ.
    Unequal,
    /// The permissions of the members differ.
    Permissions,
}

/// The bits of a leaf that give its attributes and permissions: all but the address.
const fn memory_bits(format: Format) -> u64 {
    let shareability = if format.ds { 0 } else { 0b11 << 8 };
    0b111 << 2 | 1 << 5 | shareability
}

/// The bits that may change in place: AP, nG, GP, PXN, UXN.
const PERMISSIONS: u64 = 0b11 << 6 | 1 << 11 | 1 << 50 | 1 << 53 | 1 << 54;

/// Checks the group whose first entry is at `base`. Invalid members are allowed (IPGVGZ).
fn examine(memory: &Memory, base: u64, level: i8, format: Format) -> Option<Fault> {
    let members = format.group(level);
    let size = 1u64 << format.granule.level_shift(level);
    let mut with: Option<(u64, u64)> = None;
    let mut without = false;
    let mut fault = None;
    for index in 0..members {
        let raw = memory.load(base + index * 8);
        if descriptor::kind(raw, level, format) != EntryKind::Leaf {
            continue;
        }
        if raw & descriptor::CONTIGUOUS == 0 {
            without = true;
            continue;
        }
        let start = descriptor::leaf_address(raw, level, format).wrapping_sub(index * size);
        let Some((first_start, first)) = with else {
            with = Some((start, raw));
            if start & (members * size - 1) != 0 {
                fault = Some(Fault::Unequal);
            }
            continue;
        };
        let differs = raw ^ first;
        if start != first_start || differs & memory_bits(format) != 0 {
            fault = Some(Fault::Unequal);
        }
        // Hardware sets the dirty state of one member only (INFFSV).
        let dirty = if raw & first & descriptor::DIRTY_MODIFIER != 0 {
            descriptor::READ_ONLY
        } else {
            0
        };
        if differs & PERMISSIONS & !dirty != 0 && fault.is_none() {
            fault = Some(Fault::Permissions);
        }
    }
    if with.is_some() && without && fault != Some(Fault::Unequal) {
        return Some(Fault::Mixed);
    }
    fault
}

impl ContiguousGroups {
    /// Checks the groups of the entries of a table from the first to the last, which `cpu` stored
    /// or made reachable.
    pub(crate) fn check(
        &mut self,
        trees: Trees<'_>,
        config: &Config,
        cpu: u32,
        (id, from, to): (TableId, u64, u64),
        path: Option<&Path>,
        report: &mut Report,
    ) {
        let Some(table) = trees.tables.table(id) else {
            return;
        };
        let members = table.format.group(table.level);
        if members == 1 {
            return;
        }
        let shift = table.format.granule.level_shift(table.level);
        let mut group = from & !(members - 1);
        while group <= to {
            let last = (group + members).min(table.entries);
            if has_contiguous(trees.memory, table, group, last) {
                let location = table.base + group * 8;
                let place = GroupPlace {
                    cpu,
                    location,
                    range: path.map_or((location, location + members * 8 - 1), |path| {
                        let va = path.at.va + (group << shift);
                        (va, va.wrapping_add((members << shift) - 1))
                    }),
                    is_virtual: path.is_some(),
                };
                if members > table.entries {
                    let text = "may fault: the contiguous group reaches beyond the top table";
                    place.found(Rule::ContiguousOutside, text, report);
                } else {
                    self.check_group(trees.memory, config, (id, table), place, report);
                }
            }
            group += members;
        }
    }

    fn check_group(
        &mut self,
        memory: &Memory,
        config: &Config,
        (id, table): (TableId, &Table),
        place: GroupPlace,
        report: &mut Report,
    ) {
        match examine(memory, place.location, table.level, table.format) {
            None => {}
            Some(Fault::Unequal) => place.found(Rule::UnequalContiguous, UNEQUAL, report),
            // From BBM level 1 the bit may be changed entry by entry.
            Some(Fault::Mixed) if config.bbm_level == 0 => {
                place.found(Rule::MixedContiguous, MIXED, report);
            }
            Some(Fault::Mixed | Fault::Permissions) => {
                self.suspects.insert((place.location, id));
            }
        }
    }

    /// Checks the groups that were broken after their last store: all of them, or those that
    /// translate part of a range.
    pub(crate) fn check_relied(
        &mut self,
        trees: Trees<'_>,
        cpu: u32,
        only: Option<Relied>,
        report: &mut Report,
    ) {
        for (location, id) in std::mem::take(&mut self.suspects) {
            let Some(table) = trees.tables.table(id) else {
                continue;
            };
            let (base, level, format) = (table.base, table.level, table.format);
            if location < base || location - base >= table.entries * 8 {
                continue;
            }
            let fault = examine(trees.memory, location, level, format);
            let Some(path) = trees.first_path(id) else {
                continue;
            };
            let shift = format.granule.level_shift(level);
            let va = path.at.va + (((location - base) / 8) << shift);
            let group_last = va.wrapping_add((format.group(level) << shift) - 1);
            if let Some(relied) = only {
                let root = trees.tables.root(path.root);
                let there = root.is_some_and(|root| relied.concerns(root));
                if !there || group_last < relied.first || va > relied.last {
                    self.suspects.insert((location, id));
                    continue;
                }
            }
            let place = GroupPlace {
                cpu,
                location,
                range: (va, group_last),
                is_virtual: true,
            };
            match fault {
                None => {}
                Some(Fault::Mixed) => place.found(Rule::MixedContiguous, MIXED, report),
                Some(Fault::Unequal | Fault::Permissions) => {
                    place.found(Rule::UnequalContiguous, UNEQUAL, report);
                }
            }
        }
    }
}

impl GroupPlace {
    fn found(self, rule: Rule, text: &str, report: &mut Report) {
        let mut found = Violation::at(rule, self.cpu, self.range, text).located(self.location);
        found.is_virtual = self.is_virtual;
        report.add(found);
    }
}

/// Whether a valid leaf among some entries of a table has the contiguous bit.
fn has_contiguous(memory: &Memory, table: &Table, from: u64, to: u64) -> bool {
    (from..to).any(|index| {
        let raw = memory.load(table.base + index * 8);
        raw & (descriptor::VALID | descriptor::CONTIGUOUS)
            == descriptor::VALID | descriptor::CONTIGUOUS
            && descriptor::kind(raw, table.level, table.format) == EntryKind::Leaf
    })
}
