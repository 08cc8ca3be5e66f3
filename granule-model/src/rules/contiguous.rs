//! Contiguous groups: the valid members must agree (RQTRPM, RJQQTC, IPGVGZ, INFFSV).

use crate::arch::context::Space;
use crate::arch::descriptor::{self, Kind};
use crate::arch::format::Format;
use crate::model::{Found, Model};
use crate::state::memory::Memory;
use crate::state::tables::{Path, TableId};
use crate::violation::Rule;

/// What is wrong with a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Some valid members have the bit and some do not.
    Mixed,
    /// They do not map one aligned range, or with different memory attributes.
    Unequal,
    /// They differ in permissions.
    Permissions,
}

/// The bits of a leaf that say where and how memory is accessed, beside the address.
const fn memory_bits(format: Format) -> u64 {
    let shareability = if format.ds { 0 } else { 0b11 << 8 };
    0b111 << 2 | 1 << 5 | shareability
}

/// The bits that may change in place: AP, nG, GP, PXN, UXN.
const PERMISSIONS: u64 = 0b11 << 6 | 1 << 11 | 1 << 50 | 1 << 53 | 1 << 54;

/// Looks at the group whose first entry is at `base`. Invalid members are no fault (IPGVGZ).
fn examine(memory: &Memory, base: u64, level: i8, format: Format) -> Option<Fault> {
    let members = format.group(level);
    let size = 1u64 << format.granule.level_shift(level);
    let mut with: Option<(u64, u64)> = None;
    let mut without = false;
    let mut fault = None;
    for index in 0..members {
        let raw = memory.load(base + index * 8);
        if descriptor::kind(raw, level, format) != Kind::Leaf {
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

impl Model {
    /// Checks the groups that the entries of a table from `from` to `to` belong to.
    pub(crate) fn check_groups(
        &mut self,
        cpu: u32,
        id: TableId,
        from: u64,
        to: u64,
        path: Option<&Path>,
    ) {
        let Some(table) = self.tables.table(id) else {
            return;
        };
        let (base, level, entries, format) = (table.base, table.level, table.entries, table.format);
        let members = format.group(level);
        if members == 1 {
            return;
        }
        let mut group = from & !(members - 1);
        while group <= to {
            let last = (group + members).min(entries);
            let any = (group..last).any(|index| {
                let raw = self.memory.load(base + index * 8);
                raw & (descriptor::VALID | descriptor::CONTIGUOUS)
                    == descriptor::VALID | descriptor::CONTIGUOUS
                    && descriptor::kind(raw, level, format) == Kind::Leaf
            });
            if any {
                let location = base + group * 8;
                let shift = format.granule.level_shift(level);
                let range = path.map_or((location, location + members * 8 - 1), |path| {
                    let va = path.at.va + (group << shift);
                    (va, va.wrapping_add((members << shift) - 1))
                });
                let place = (location, range, path.is_some());
                if members > entries {
                    self.report_group(
                        cpu,
                        place,
                        Rule::ContiguousOutside,
                        "may fault: the contiguous group reaches beyond the top table",
                    );
                } else {
                    self.check_group(cpu, place, id);
                }
            }
            group += members;
        }
    }

    fn check_group(&mut self, cpu: u32, place: (u64, (u64, u64), bool), id: TableId) {
        let Some(table) = self.tables.table(id) else {
            return;
        };
        match examine(&self.memory, place.0, table.level, table.format) {
            None => {}
            Some(Fault::Unequal) => self.report_group(cpu, place, Rule::UnequalContiguous, UNEQUAL),
            // With BBM level 1 and up the bit may be changed entry by entry.
            Some(Fault::Mixed) if self.config.bbm_level == 0 => {
                self.report_group(cpu, place, Rule::MixedContiguous, MIXED);
            }
            Some(Fault::Mixed | Fault::Permissions) => {
                self.suspect_groups.insert((place.0, id));
            }
        }
    }

    fn report_group(
        &mut self,
        cpu: u32,
        (location, range, is_virtual): (u64, (u64, u64), bool),
        rule: Rule,
        text: &str,
    ) {
        let mut found = Found::at(rule, cpu, range, text).located(location);
        found.is_virtual = is_virtual;
        self.report(found);
    }

    /// Checks the groups that were not in order when they were last stored to: all of them, or
    /// those that translate something of a range.
    pub(crate) fn check_suspect_groups(&mut self, cpu: u32, only: Option<(Space, u64, u64)>) {
        for (location, id) in std::mem::take(&mut self.suspect_groups) {
            let Some(table) = self.tables.table(id) else {
                continue;
            };
            let (base, level, format) = (table.base, table.level, table.format);
            let members = format.group(level);
            if location < base || location - base >= table.entries * 8 {
                continue;
            }
            let fault = examine(&self.memory, location, level, format);
            let path = self
                .tables
                .paths(&self.memory, id, &self.contexts)
                .into_iter()
                .next();
            let Some(path) = path else { continue };
            let shift = format.granule.level_shift(level);
            let va = path.at.va + (((location - base) / 8) << shift);
            if let Some((space, first, last)) = only {
                let group_last = va.wrapping_add((members << shift) - 1);
                let root = self.tables.root(path.root);
                let there = root.is_some_and(|root| root.key.context.space == space);
                if !there || group_last < first || va > last {
                    self.suspect_groups.insert((location, id));
                    continue;
                }
            }
            let place = (
                location,
                (va, va.wrapping_add((members << shift) - 1)),
                true,
            );
            match fault {
                None => {}
                Some(Fault::Mixed) => self.report_group(cpu, place, Rule::MixedContiguous, MIXED),
                Some(Fault::Unequal | Fault::Permissions) => {
                    self.report_group(cpu, place, Rule::UnequalContiguous, UNEQUAL);
                }
            }
        }
    }
}

const UNEQUAL: &str =
    "may use the address or attributes of any member of the contiguous group for all of it";
const MIXED: &str = "may find members of a contiguous group with and without the contiguous bit, and use any, \
     or take a TLB conflict abort";
