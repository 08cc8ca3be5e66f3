//! TLBIs as the judge reads them: by the assembler's names.

use granule_trace::System;

use super::entry::{Entry, NOT_GLOBAL};

/// Until when a walker may still read an entry that was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Until this step.
    Over(u64),
    /// Until a DSB of this CPU.
    Dsb(u32),
    /// Until an ISB of this CPU.
    Isb(u32),
}

impl Wait {
    /// Ends the wait for a condition.
    pub(super) fn over(&mut self, what: Self, now: u64) {
        if *self == what {
            *self = Self::Over(now);
        }
    }

    pub(super) const fn is_before(self, step: u64) -> bool {
        matches!(self, Self::Over(at) if at < step)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    All,
    Asid(u16),
    Range {
        first: u64,
        last: u64,
        last_level: bool,
        asid: Option<u16>,
        level: Option<u8>,
        page_shift: Option<u32>,
    },
}

/// A TLBI that was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tlbi {
    what: What,
    pub(super) local: bool,
    pub(super) issued: u64,
}

const fn page_shift(code: u64) -> Option<u32> {
    match code & 3 {
        1 => Some(12),
        2 => Some(14),
        3 => Some(16),
        _ => None,
    }
}

impl Tlbi {
    /// Reads a TLBI of EL1&0; `None` for one of another regime.
    pub(super) fn read(system: System, operand: u64, ds: bool, issued: u64) -> Option<Self> {
        let name = system.name()?;
        let (name, local) = match name.strip_suffix("is").or_else(|| name.strip_suffix("os")) {
            Some(name) => (name, false),
            None => (name, true),
        };
        let name = name.strip_suffix("e1")?;
        let asid = (operand >> 48) as u16;
        let what = match name {
            "vmall" | "all" => What::All,
            "asid" => What::Asid(asid),
            "va" | "vaa" | "val" | "vaal" => {
                let address = (operand << 20) as i64 >> 8;
                let code = operand >> 44;
                let size = page_shift(code >> 2);
                What::Range {
                    first: address as u64,
                    last: address as u64,
                    last_level: name.ends_with('l'),
                    asid: (!name.starts_with("vaa")).then_some(asid),
                    level: size.map(|_| (code & 3) as u8),
                    page_shift: size,
                }
            }
            "rva" | "rvaa" | "rval" | "rvaal" => {
                let size = page_shift(operand >> 46)?;
                let unit = if ds { 16 } else { size };
                let first = ((operand << 27) as i64 >> 27 << unit) as u64;
                let pages = ((operand >> 39 & 31) + 1) << (5 * (operand >> 44 & 3) + 1);
                let level = (operand >> 37 & 3) as u8;
                What::Range {
                    first,
                    last: first + ((pages << size) - 1),
                    last_level: name.ends_with('l'),
                    asid: (!name.starts_with("rvaa")).then_some(asid),
                    level: (level != 0).then_some(level),
                    page_shift: Some(size),
                }
            }
            _ => return None,
        };
        Some(Self {
            what,
            local,
            issued,
        })
    }

    pub(super) fn removes(&self, entry: &Entry) -> bool {
        match self.what {
            What::All => true,
            What::Asid(asid) => entry.asid == Some(asid),
            What::Range {
                first,
                last,
                last_level,
                asid,
                level,
                page_shift,
            } => {
                let there = entry.va <= last && entry.last() >= first;
                let size = page_shift.is_none_or(|shift| shift == entry.page_shift);
                let kind = if entry.leaf {
                    level.is_none_or(|level| level == entry.level)
                } else {
                    !last_level && level.is_none_or(|level| entry.level < level)
                };
                // Global leaves go whatever the ASID; other entries of the kernel's half have none.
                let space = match (asid, entry.asid) {
                    (Some(asid), Some(other)) => asid == other,
                    (Some(_), None) => entry.leaf && entry.raw & NOT_GLOBAL == 0,
                    (None, _) => true,
                };
                there && size && kind && space
            }
        }
    }

    pub(super) fn removes_tree(&self, asid: Option<u16>) -> bool {
        match self.what {
            What::All => true,
            What::Asid(own) => asid == Some(own),
            What::Range { .. } => false,
        }
    }
}
