//! Attributes of leaves, decoded and in words. The words are those of the Arm ARM where it has one.
//!
//! Only descriptors are decoded here. Other reasons for a fault (SCTLR.WXN, PAN, permission
//! overlays) are not.

use crate::memory_type::MemoryType;
use crate::tree::{Shape, Tree};
use granule::arch::{
    Attributes, Descriptor, Execute, OutputFormat, Shareability, Stage2Attributes,
};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The descriptor encodes it.
    Known(Shareability),
    /// The descriptor has the reserved encoding.
    Reserved,
    /// TCR gives that of every leaf (TCR.DS).
    OfTcr,
    /// Whether the descriptor or TCR gives it is not known: the root was guessed.
    Unknown,
}

/// The permissions and the memory attributes of a leaf, for both stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Whether the privileged level may load, or a guest.
    pub readable: bool,
    /// Whether the privileged level may store, or a guest.
    pub writable: bool,
    /// Whether EL0 may load, and store if the leaf is writable. Always false at stage 2.
    pub user: bool,
    /// Whether the privileged level (of a guest) may execute.
    pub privileged_execute: bool,
    /// Whether EL0 (of a guest) may execute.
    pub user_execute: bool,
    pub accessed: bool,
    /// Whether the translation belongs to one address space (nG).
    pub not_global: bool,
    pub sharing: Sharing,
    pub memory: MemoryType,
    /// DBM: hardware may make it writable at the first store.
    pub dirty_modifier: bool,
    pub guarded: bool,
    /// Whether there are two privileges, each with execute permissions of its own.
    pub two_privileges: bool,
    pub stage2: bool,
}

impl Decoded {
    /// The attributes in the bits of a leaf descriptor of `tree`.
    pub fn new(tree: &Tree, bits: u64) -> Self {
        let leaf = Descriptor(bits);
        let sharing = |shareability| match leaf.0 >> 8 & 0b11 {
            _ if !tree.knows_format() => Sharing::Unknown,
            _ if tree.geometry().format() == OutputFormat::Lpa2 => Sharing::OfTcr,
            0b01 => Sharing::Reserved,
            _ => Sharing::Known(shareability),
        };
        match &tree.shape {
            Shape::Stage1(geometry) => {
                let found = Attributes::decode(leaf, geometry);
                let allowed = found.permissions;
                // What EL0 may store to, the privileged level never executes.
                let by_user = allowed.user && allowed.writable;
                Self {
                    readable: true,
                    writable: allowed.writable,
                    user: allowed.user,
                    privileged_execute: allowed.privileged_execute && !by_user,
                    user_execute: allowed.user_execute,
                    accessed: found.accessed,
                    not_global: !found.global,
                    sharing: sharing(found.shareability),
                    memory: MemoryType::of_stage1(found.memory.index(), tree.memory_types),
                    dirty_modifier: allowed.dirty_modifier,
                    guarded: allowed.guarded,
                    two_privileges: geometry.regime().has_user(),
                    stage2: false,
                }
            }
            Shape::Stage2(geometry) => {
                let found = Stage2Attributes::decode(leaf, geometry);
                let allowed = found.permissions;
                let execute = allowed.execute;
                let memory = (bits >> 2 & 0b1111) as u8;
                Self {
                    readable: allowed.readable,
                    writable: allowed.writable,
                    user: false,
                    privileged_execute: matches!(execute, Execute::Any | Execute::Privileged),
                    user_execute: matches!(execute, Execute::Any | Execute::User),
                    accessed: found.accessed,
                    not_global: false,
                    sharing: sharing(found.shareability),
                    memory: MemoryType::of_stage2(memory, geometry.shape().forced_write_back()),
                    dirty_modifier: allowed.dirty_modifier,
                    guarded: false,
                    two_privileges: geometry.shape().execute_by_privilege(),
                    stage2: true,
                }
            }
        }
    }

    /// Whether the privileged level can store to the leaf and execute it.
    pub const fn privileged_writes_and_executes(&self) -> bool {
        self.writable && self.privileged_execute
    }

    /// Whether EL0 can store to the leaf and execute it.
    pub const fn user_writes_and_executes(&self) -> bool {
        self.writable && self.user && self.user_execute
    }

    /// The words, each in a column of its own; a column is empty where the leaf has no word.
    pub fn columns(&self) -> Vec<Word> {
        let access = match (self.readable, self.writable) {
            (true, true) => "RW",
            (true, false) => "ro",
            (false, true) => "wo",
            (false, false) => "none",
        };
        let when = |there, word| Word::Fixed(if there { word } else { "" });
        let mut columns = vec![Word::Fixed(access)];
        if self.two_privileges {
            let (privileged, user) = (self.privileged_execute, self.user_execute);
            columns.push(Word::Fixed(if privileged { "PX" } else { "PXN" }));
            columns.push(Word::Fixed(if user { "UX" } else { "UXN" }));
        } else {
            let executes = self.privileged_execute;
            columns.push(Word::Fixed(if executes { "X" } else { "XN" }));
        }
        if !self.stage2 {
            columns.push(when(self.user, "user"));
        }
        columns.push(when(self.accessed, "AF"));
        if !self.stage2 {
            columns.push(when(self.not_global, "nG"));
        }
        columns.push(Word::Fixed(match self.sharing {
            Sharing::Known(Shareability::Inner) => "ISH",
            Sharing::Known(Shareability::Outer) => "OSH",
            Sharing::Known(Shareability::None) => "NSH",
            Sharing::Reserved => "SH-reserved",
            Sharing::OfTcr => "SH-TCR",
            Sharing::Unknown => "SH-unknown",
        }));
        columns.push(when(self.dirty_modifier, "DBM"));
        if !self.stage2 {
            columns.push(when(self.guarded, "GP"));
        }
        columns.push(Word::Memory(self.memory));
        columns
    }
}

/// One attribute in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// A word that stands for itself; empty where an attribute is absent.
    Fixed(&'static str),
    Memory(MemoryType),
}

impl Word {
    /// Whether the leaf has this word.
    pub fn is_empty(&self) -> bool {
        *self == Self::Fixed("")
    }

    /// Whether it is this word, in whatever case. `NX` stands for every word that forbids execution.
    pub fn is(&self, word: &str) -> bool {
        match self {
            Self::Fixed(own) => {
                !own.is_empty()
                    && (own.eq_ignore_ascii_case(word)
                        || word.eq_ignore_ascii_case("NX") && matches!(*own, "PXN" | "UXN" | "XN"))
            }
            Self::Memory(memory) => memory.to_string().eq_ignore_ascii_case(word),
        }
    }
}

/// The words that stand for themselves, and `NX`.
pub const WORDS: [&str; 22] = [
    "RW",
    "ro",
    "wo",
    "none",
    "PX",
    "PXN",
    "UX",
    "UXN",
    "X",
    "XN",
    "NX",
    "user",
    "AF",
    "nG",
    "ISH",
    "OSH",
    "NSH",
    "SH-TCR",
    "SH-reserved",
    "SH-unknown",
    "DBM",
    "GP",
];

/// Whether some leaf can have this word, in whatever case.
pub fn is_word(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    let numbered = |kind| {
        let number = lower.strip_prefix(kind);
        number.is_some_and(|number| number.bytes().any(|byte| byte.is_ascii_digit()))
    };
    WORDS.iter().any(|known| known.eq_ignore_ascii_case(word))
        || numbered("index-")
        || numbered("reserved-0x")
        || MemoryType::named().any(|known| known.to_string().eq_ignore_ascii_case(word))
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(word) => f.pad(word),
            Self::Memory(memory) => f.pad(&memory.to_string()),
        }
    }
}

/// The words of all attributes, separated by spaces.
impl fmt::Display for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut columns = self.columns().into_iter().filter(|word| !word.is_empty());
        if let Some(first) = columns.next() {
            write!(f, "{first}")?;
        }
        columns.try_for_each(|word| write!(f, " {word}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Origin, Owner};
    use granule::arch::PhysicalAddress;
    use granule::arch::registers::Mair;
    use granule_testing::shape;

    #[test]
    fn every_word_that_is_printed_is_known() {
        let stage1 = shape::all().into_iter().map(Shape::Stage1);
        let stage2 = shape::stage2().into_iter().map(Shape::Stage2);
        let fields = [6, 7, 8, 9, 10, 11, 50, 51, 53, 54];
        for shape in stage1.chain(stage2) {
            let mut tree = Tree {
                memory_types: Some(Mair(0x4f02_f044_0c08_0400)),
                ..Tree::new(Owner::Kernel, PhysicalAddress(0), shape, Origin::Guess)
            };
            let choices = (0..1_u64 << fields.len()).map(|choice| {
                let set = (0..fields.len()).filter(|at| choice >> at & 1 != 0);
                set.fold(0, |bits, at| bits | 1 << fields[at])
            });
            let types = (0..16).map(|index| index << 2);
            let all: Vec<u64> = choices.chain(types).collect();
            for origin in [Origin::Guess, Origin::Options] {
                tree.origin = origin;
                for word in all
                    .iter()
                    .flat_map(|&bits| Decoded::new(&tree, bits).columns())
                {
                    let word = word.to_string();
                    assert!(word.is_empty() || is_word(&word), "{word}");
                }
            }
            tree.memory_types = None;
            assert!(is_word(&Decoded::new(&tree, 7 << 2).memory.to_string()));
        }
        for word in ["", "NXX", "index-", "reserved-0x", "normal", "device"] {
            assert!(!is_word(word), "{word}");
        }
    }
}
