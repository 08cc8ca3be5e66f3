//! Descriptors, decoded. Written from the architecture's description. [`stage2`] has the attributes
//! of stage 2, which differ.
//!
//! Pure functions of the descriptor and the context it is read in. Nothing here walks.

mod stage2;

use crate::arch::context::Context;
use crate::arch::format::{Format, Granule};
use crate::arch::regime::Regime;

/// Bit 0: the entry is valid.
pub(crate) const VALID: u64 = 1;
/// Bit 5, NS: with [`NSE`], the physical address space of a leaf's output.
const NON_SECURE: u64 = 1 << 5;
/// Bit 7, AP\[2\]: read-only.
pub(crate) const READ_ONLY: u64 = 1 << 7;
/// Bit 10: the access flag.
pub(crate) const ACCESSED: u64 = 1 << 10;
/// Bit 11: not global.
pub(crate) const NOT_GLOBAL: u64 = 1 << 11;
/// Bit 11 of the EL3 regime: NSE.
const NSE: u64 = 1 << 11;
/// Bit 16 of a block: nT.
pub(crate) const NO_TRANSLATION: u64 = 1 << 16;
/// Bit 51: dirty bit modifier.
pub(crate) const DIRTY_MODIFIER: u64 = 1 << 51;
/// Bit 52: contiguous.
pub(crate) const CONTIGUOUS: u64 = 1 << 52;

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EntryKind {
    /// Not valid, or a reserved encoding, which decodes as invalid.
    Invalid,
    /// A block or page.
    Leaf,
    /// A pointer to a table of the next level.
    Table,
}

/// Decodes the two type bits at `level`. A block where none is allowed and 01 at level 3 are
/// invalid.
pub(crate) fn kind(raw: u64, level: i8, format: Format) -> EntryKind {
    match raw & 0b11 {
        0b11 if level == 3 => EntryKind::Leaf,
        0b11 => EntryKind::Table,
        0b01 if level < 3 && format.leaf_allowed(level) => EntryKind::Leaf,
        _ => EntryKind::Invalid,
    }
}

/// Whether a word is data other than a descriptor: it has bit 0, and an encoding that is reserved, or an address
/// bit that the format does not have (RES0).
pub(crate) fn is_other_data(raw: u64, level: i8, format: Format) -> bool {
    let beyond = if format.ds { 0 } else { bits(49, 48) };
    raw & VALID != 0 && (raw & beyond != 0 || kind(raw, level, format) == EntryKind::Invalid)
}

const fn bits(high: u32, low: u32) -> u64 {
    (u64::MAX >> (63 - high)) & (u64::MAX << low)
}

/// The address bits that 52-bit formats keep apart from the others.
const fn high_address(raw: u64, format: Format) -> u64 {
    if format.ds {
        (raw & bits(49, 48)) | ((raw >> 8) & 0b11) << 50
    } else if format.lpa {
        ((raw >> 12) & 0b1111) << 48
    } else {
        0
    }
}

pub(crate) const fn leaf_address(raw: u64, level: i8, format: Format) -> u64 {
    (raw & bits(47, format.granule.level_shift(level))) | high_address(raw, format)
}

pub(crate) const fn table_address(raw: u64, format: Format) -> u64 {
    (raw & bits(47, format.granule.shift())) | high_address(raw, format)
}

/// The limits that table entries put on all entries below them (bits 62:59).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Hierarchy(u8);

impl Hierarchy {
    /// No limits: those of a top table.
    pub(crate) const NONE: Self = Self(0);
    const NO_PRIVILEGED_EXECUTE: u8 = 1 << 0;
    const NO_USER_EXECUTE: u8 = 1 << 1;
    const NO_USER: u8 = 1 << 2;
    const READ_ONLY: u8 = 1 << 3;

    /// These limits and those of one more table entry; TCR.HPD ignores the limits of entries.
    pub(crate) const fn below(self, raw: u64, context: &Context) -> Self {
        if context.no_hierarchy {
            return self;
        }
        Self(self.0 | ((raw >> 59) & 0b1111) as u8)
    }

    const fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

/// The rights of one privilege.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rights {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Instruction fetches.
    pub execute: bool,
}

impl Rights {
    /// Whether `other` allows an access that this does not.
    pub(crate) const fn less_than(self, other: Self) -> bool {
        (other.read && !self.read)
            || (other.write && !self.write)
            || (other.execute && !self.execute)
    }
}

/// The attributes of a leaf: everything but its output address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attributes {
    /// The memory attribute byte of MAIR.
    pub(crate) memory: u8,
    pub(crate) shareability: u8,
    pub(crate) privileged: Rights,
    pub(crate) user: Rights,
    pub(crate) global: bool,
    pub(crate) guarded: bool,
    pub(crate) accessed: bool,
    /// Hardware manages the dirty state, and the page is dirty: it may be written without a note.
    pub(crate) dirty: bool,
    pub(crate) contiguous: bool,
    /// NS, and NSE at EL3: the physical address space of the output.
    pub(crate) output_space: u64,
    /// nT, blocks only.
    pub(crate) no_translation: bool,
}

/// Reads the attributes of a leaf of `level` in a context, under the limits of the tables above.
pub(crate) fn attributes(
    raw: u64,
    level: i8,
    hierarchy: Hierarchy,
    context: &Context,
) -> Attributes {
    let format = context.format;
    let index = (raw >> 2) & 0b111;
    let dirty_managed = context.hardware_dirty && raw & DIRTY_MODIFIER != 0;
    let writable = (raw & READ_ONLY == 0 || dirty_managed) && !hierarchy.has(Hierarchy::READ_ONLY);
    let (privileged, user) = if context.space.regime() == Regime::El10 {
        let reachable = raw & (1 << 6) != 0 && !hierarchy.has(Hierarchy::NO_USER);
        let user_write = writable && reachable;
        // UXN alone decides: code that EL0 can run but not read exists.
        let user_execute = raw & (1 << 54) == 0
            && !hierarchy.has(Hierarchy::NO_USER_EXECUTE)
            && !(context.write_never_execute && user_write);
        // What EL0 can write, EL1 never executes.
        let privileged_execute = raw & (1 << 53) == 0
            && !hierarchy.has(Hierarchy::NO_PRIVILEGED_EXECUTE)
            && !(user_write || context.write_never_execute && writable);
        (
            Rights {
                read: true,
                write: writable,
                execute: privileged_execute,
            },
            Rights {
                read: reachable,
                write: user_write,
                execute: user_execute,
            },
        )
    } else {
        let execute = raw & (1 << 54) == 0
            && !hierarchy.has(Hierarchy::NO_USER_EXECUTE)
            && !(context.write_never_execute && writable);
        let rights = Rights {
            read: true,
            write: writable,
            execute,
        };
        (rights, Rights::default())
    };
    let common = Attributes {
        memory: (context.mair >> (8 * index)) as u8,
        shareability: if format.ds {
            context.shareability
        } else {
            ((raw >> 8) & 0b11) as u8
        },
        privileged,
        user,
        global: is_global(raw, context),
        guarded: raw & (1 << 50) != 0,
        accessed: raw & ACCESSED != 0,
        dirty: dirty_managed && made_dirty(raw, context.space.regime()) == raw,
        contiguous: raw & CONTIGUOUS != 0 && format.group(level) > 1,
        output_space: match context.space.regime() {
            Regime::El10 | Regime::El2 => raw & NON_SECURE,
            Regime::El3 => raw & (NON_SECURE | NSE),
            Regime::Stage2 => 0,
        },
        no_translation: refuses(raw, level, format),
    };
    if context.space.regime() == Regime::Stage2 {
        stage2::attributes(raw, context, common)
    } else {
        common
    }
}

/// Whether a leaf translates in every address space of its regime.
pub(crate) const fn is_global(raw: u64, context: &Context) -> bool {
    match context.space.regime() {
        Regime::El10 => raw & NOT_GLOBAL == 0,
        Regime::El2 | Regime::El3 => true,
        Regime::Stage2 => false,
    }
}

/// The value of a leaf after hardware made its page dirty. A page that hardware does not manage, or
/// that is dirty, stays as it is.
pub(crate) const fn made_dirty(raw: u64, regime: Regime) -> u64 {
    match (raw & DIRTY_MODIFIER != 0, regime) {
        (false, _) => raw,
        (true, Regime::Stage2) => raw | stage2::WRITABLE,
        (true, _) => raw & !READ_ONLY,
    }
}

/// Whether a leaf of `level` has the nT bit, so that a lookup may fault on it (RMRRPW).
pub(crate) const fn refuses(raw: u64, level: i8, format: Format) -> bool {
    level < 3 && raw & NO_TRANSLATION != 0 && format.granule.level_shift(level) > 16
}

/// Whether a walker that reads `old` in place of `new` can only fault, so that a kernel that takes spurious
/// faults may go on without a barrier: the entry was not valid, had no access flag, or allowed less. A
/// hypervisor whose stage 2 allowed less has to invalidate.
pub(crate) const fn may_only_fault(old: u64, new: u64, regime: Regime) -> bool {
    const OF_SOFTWARE: u64 = 0b1111 << 55;
    const GRANTED_BY_0: u64 = READ_ONLY | 0b11 << 53;
    const GRANTED_BY_1: u64 = ACCESSED | DIRTY_MODIFIER;
    let lost = (old & !new & !GRANTED_BY_0) | (new & !old & !GRANTED_BY_1);
    old & VALID == 0 || (!matches!(regime, Regime::Stage2) && lost & !OF_SOFTWARE == 0)
}

/// Whether a TLB may hold a leaf: not one with the access flag clear, unless hardware may set the
/// flag.
pub(crate) const fn cacheable(raw: u64, context: &Context) -> bool {
    raw & ACCESSED != 0 || context.hardware_access
}

/// Whether a MAIR byte is a Normal memory type that data caches hold.
pub(crate) const fn is_cacheable_type(memory: u8) -> bool {
    // 0000xxxx is Device, 0100 in a half is Non-cacheable there.
    memory & 0xf0 != 0 && memory & 0xf0 != 0x40
}

/// The granule that TTL and TG name: 01 4K, 10 16K, 11 64K.
pub(crate) const fn granule_code(code: u64) -> Option<Granule> {
    match code & 0b11 {
        0b01 => Some(Granule::K4),
        0b10 => Some(Granule::K16),
        0b11 => Some(Granule::K64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_not_descriptors_depend_on_the_format() {
        let format = |ds| Format {
            granule: Granule::K4,
            ds,
            lpa: false,
        };
        // Not valid; a page; a block; bit 48, which is of the address with DS; reserved at levels 3 and 0.
        for (raw, level, other, with_ds) in [
            (0xffff_8000_0912_3456, 3, false, false),
            (0x4000_0703, 3, false, false),
            (0x4020_0701, 2, false, false),
            (1 << 48 | 0x4000_0703, 3, true, false),
            (0x4000_0701, 3, true, true),
            (0x4000_0701, 0, true, false),
        ] {
            let found = [false, true].map(|ds| is_other_data(raw, level, format(ds)));
            assert_eq!(found, [other, with_ds], "{raw:#x} at level {level}");
        }
    }
}
