//! The two stages of translation as the checks see them: what each attribute and each change of
//! permissions means as descriptor bits, and how to draw them at random.
//!
//! The bits are literals from the architecture's descriptor tables. Only the types come from the
//! library.

#![allow(unsafe_code, reason = "no CPU walks the tables")]

use super::walk::{Arch, Leaf};
use granule::arch::{
    Attributes, Execute, Geometry, MemoryType, OutputSpace, Permissions, Shareability,
    Stage2Attributes, Stage2Memory, Stage2Permissions, VirtualAddress,
};
use granule::linear::LeafStats;
use granule::table::{
    Leaves, PageTables, PermissionChange, Piece, Stage, Stage1, Stage2, Stage2PermissionChange,
    TableEnvironment,
};
use proptest::prelude::*;

/// The functions of [`TestStage`] that differ only in the types of the stage.
macro_rules! same_in_both_stages {
    ($attributes:ty, $memory:ty, $change:ty) => {
        fn parts(attributes: &mut $attributes) -> Parts<'_, $memory> {
            Parts {
                memory: &mut attributes.memory,
                shareability: &mut attributes.shareability,
                accessed: &mut attributes.accessed,
                writable: &mut attributes.permissions.writable,
                dirty_modifier: &mut attributes.permissions.dirty_modifier,
            }
        }

        fn change_of(
            writable: Option<bool>,
            dirty_modifier: Option<bool>,
            software: Option<u8>,
        ) -> $change {
            Self::PermissionChange {
                writable,
                dirty_modifier,
                software,
                ..<$change>::NONE
            }
        }
    };
}

mod second;

/// A change of attributes for `modify`: of those that are named.
#[derive(Clone, Copy, Debug)]
pub struct AttributeChange<M, P> {
    pub memory: Option<M>,
    pub shareability: Option<Shareability>,
    pub accessed: Option<bool>,
    /// Of leaves whose dirty state hardware manages.
    pub dirty: Option<bool>,
    pub permissions: Option<P>,
}

impl<M, P> AttributeChange<M, P> {
    /// No change.
    pub const NONE: Self = Self {
        memory: None,
        shareability: None,
        accessed: None,
        dirty: None,
        permissions: None,
    };
}

/// The change of attributes of a stage.
pub type AttributeChangeOf<S> =
    AttributeChange<<S as TestStage>::Memory, <S as Stage>::PermissionChange>;

pub trait TestStage: Stage {
    /// The kind of memory.
    type Memory: Copy + std::fmt::Debug + Eq;
    /// Two kinds of memory besides that of RAM.
    const OTHER_MEMORY: [Self::Memory; 2];

    /// The bits of a leaf besides its address, its kind and its contiguous hint.
    fn attribute_bits(attributes: &Self::Attributes, arch: &Arch) -> u64;
    /// The attributes that decoding gives of encoded ones: the rest has no place in a descriptor.
    fn as_decoded(attributes: Self::Attributes, arch: &Arch) -> Self::Attributes;
    /// The attributes after a change.
    fn changed(
        attributes: Self::Attributes,
        change: &Self::PermissionChange,
        arch: &Arch,
    ) -> Self::Attributes;
    /// Whether a change names no permission that the tables have.
    fn changes_nothing(change: &Self::PermissionChange, arch: &Arch) -> bool;
    /// Attributes of all kinds.
    fn any_attributes() -> BoxedStrategy<Self::Attributes>;
    /// Changes of all kinds.
    fn any_change() -> BoxedStrategy<Self::PermissionChange>;
    /// Kinds of memory.
    fn any_memory() -> BoxedStrategy<Self::Memory>;
    /// Attributes of writable memory.
    fn read_write() -> Self::Attributes;
    /// The parts of attributes that both stages have.
    fn parts(attributes: &mut Self::Attributes) -> Parts<'_, Self::Memory>;
    /// A change of the permissions that both stages have.
    fn change_of(
        writable: Option<bool>,
        dirty_modifier: Option<bool>,
        software: Option<u8>,
    ) -> Self::PermissionChange;
    /// Gives the tables an address space, where the stage has any.
    fn set_asid<P: granule::arch::Page, E: TableEnvironment>(
        tables: &mut PageTables<P, E, Self>,
        asid: Option<u16>,
    );
    /// Counts before a map of an empty tree, where the stage has that.
    fn stats(
        geometry: &Geometry,
        pieces: &[Piece<Self::Input, Self::Attributes>],
    ) -> Option<LeafStats>;

    fn read_only() -> Self::PermissionChange {
        Self::change_of(Some(false), None, None)
    }

    /// A change that concerns neither stores nor the dirty state.
    fn marking() -> Self::PermissionChange {
        Self::change_of(None, None, Some(0b0101))
    }

    /// The change by which hardware manages the dirty state no more.
    fn unmanaged() -> Self::PermissionChange {
        Self::change_of(None, Some(false), None)
    }

    /// Attributes of memory that hardware may update: clean if it manages the dirty state.
    fn watched(dirty_modifier: bool, accessed: bool) -> Self::Attributes {
        let mut attributes = Self::read_write();
        let parts = Self::parts(&mut attributes);
        *parts.writable = false;
        *parts.dirty_modifier = dirty_modifier;
        *parts.accessed = accessed;
        attributes
    }

    /// Attributes after a change of any of them.
    fn with_attributes(
        mut attributes: Self::Attributes,
        change: &AttributeChangeOf<Self>,
        arch: &Arch,
    ) -> Self::Attributes {
        let parts = Self::parts(&mut attributes);
        *parts.memory = change.memory.unwrap_or(*parts.memory);
        *parts.shareability = change.shareability.unwrap_or(*parts.shareability);
        *parts.accessed = change.accessed.unwrap_or(*parts.accessed);
        if *parts.dirty_modifier {
            *parts.writable = change.dirty.unwrap_or(*parts.writable);
        }
        match &change.permissions {
            Some(permissions) => Self::changed(attributes, permissions, arch),
            None => attributes,
        }
    }

    /// Whether the page is dirty; `None` where hardware does not manage that.
    fn dirty_state(attributes: &Self::Attributes) -> Option<bool> {
        let mut attributes = *attributes;
        let parts = Self::parts(&mut attributes);
        parts.dirty_modifier.then_some(*parts.writable)
    }

    /// The attributes of a page that hardware manages, dirty or clean.
    fn with_dirty_state(mut attributes: Self::Attributes, dirty: bool) -> Self::Attributes {
        *Self::parts(&mut attributes).writable = dirty;
        attributes
    }

    /// The access flag.
    fn accessed(attributes: &Self::Attributes) -> bool {
        let mut attributes = *attributes;
        *Self::parts(&mut attributes).accessed
    }

    /// An address as the tables' own type.
    fn at(address: u64) -> Self::Input {
        Self::input(VirtualAddress(address))
    }
}

/// The parts of attributes that both stages have.
#[derive(Debug)]
pub struct Parts<'a, M> {
    pub memory: &'a mut M,
    pub shareability: &'a mut Shareability,
    pub accessed: &'a mut bool,
    pub writable: &'a mut bool,
    pub dirty_modifier: &'a mut bool,
}

impl Arch {
    /// The complete leaf descriptor that a mapping must produce.
    pub fn leaf_word<S: TestStage>(
        &self,
        output: u64,
        level: i32,
        contiguous: bool,
        attributes: &S::Attributes,
    ) -> u64 {
        let kind = if level == 3 { 0b11 } else { 0b01 };
        self.place(output)
            | kind
            | u64::from(contiguous) << 52
            | S::attribute_bits(attributes, self)
    }

    /// The leaves of a mapping, chosen greedily: at each address the largest block, group or page
    /// that the alignment of input and output, the rest of the range and `leaves` allow. The second
    /// value of each is the group of the leaf, as first offset and bytes.
    pub fn greedy<S: TestStage>(
        &self,
        offset: u64,
        output: u64,
        bytes: u64,
        leaves: Leaves,
        attributes: &S::Attributes,
    ) -> Vec<(Leaf, Option<(u64, u64)>)> {
        let mut sizes = Vec::new();
        for level in self.start_level()..=3 {
            if level < leaves.top.number() || !self.leaf_allowed(level) {
                continue;
            }
            if leaves.contiguous && self.contiguous(level) > 1 {
                sizes.push((level, self.contiguous(level)));
            }
            sizes.push((level, 1));
        }
        let mut found = Vec::new();
        let mut at = 0;
        while at < bytes {
            let (level, count) = *sizes
                .iter()
                .find(|&&(level, count)| {
                    let size = count * self.entry_bytes(level);
                    let aligned = (offset + at) % size == 0 && (output + at) % size == 0;
                    aligned && bytes - at >= size
                })
                .expect("a page always fits");
            let entry = self.entry_bytes(level);
            let group = (count > 1).then_some((offset + at, count * entry));
            for _ in 0..count {
                let leaf = Leaf {
                    offset: offset + at,
                    bytes: entry,
                    level,
                    output: output + at,
                    word: self.leaf_word::<S>(output + at, level, count > 1, attributes),
                };
                found.push((leaf, group));
                at += entry;
            }
        }
        found
    }
}

fn bit(word: &mut u64, at: u32, set: bool) {
    *word |= u64::from(set) << at;
}

/// The bits of shareability and access flag, which both stages have.
fn common_bits(arch: &Arch, shareability: Shareability, accessed: bool) -> u64 {
    let mut word = 0;
    if !arch.ds {
        word |= match shareability {
            Shareability::None => 0,
            Shareability::Outer => 0b10 << 8,
            _ => 0b11 << 8,
        };
    }
    bit(&mut word, 10, accessed);
    word
}

pub fn any_shareability() -> impl Strategy<Value = Shareability> {
    prop_oneof![
        Just(Shareability::None),
        Just(Shareability::Outer),
        Just(Shareability::Inner)
    ]
}

fn maybe() -> impl Strategy<Value = Option<bool>> {
    proptest::option::of(any::<bool>())
}

impl TestStage for Stage1 {
    type Memory = MemoryType;

    const OTHER_MEMORY: [MemoryType; 2] = [MemoryType::Device, MemoryType::NormalNonCacheable];

    fn attribute_bits(attributes: &Attributes, arch: &Arch) -> u64 {
        let permissions = attributes.permissions;
        let mut word = common_bits(arch, attributes.shareability, attributes.accessed);
        word |= u64::from(attributes.memory.index()) << 2;
        bit(&mut word, 7, !permissions.writable);
        bit(&mut word, 50, permissions.guarded);
        bit(&mut word, 51, permissions.dirty_modifier);
        if arch.user {
            bit(&mut word, 6, permissions.user);
            bit(&mut word, 11, !attributes.global);
            bit(&mut word, 53, !permissions.privileged_execute);
            bit(&mut word, 54, !permissions.user_execute);
        } else {
            // One privilege level: AP[1] is RES1, bit 53 RES0, bit 54 XN, and nG does not exist.
            bit(&mut word, 6, true);
            bit(&mut word, 54, !permissions.privileged_execute);
        }
        let (ns, nse) = match attributes.output_space {
            OutputSpace::Unmarked => (false, false),
            OutputSpace::NonSecure => (true, false),
            OutputSpace::Root => (false, true),
            OutputSpace::Realm => (true, true),
        };
        bit(&mut word, 5, ns);
        if arch.el3 {
            bit(&mut word, 11, nse);
        }
        word | u64::from(permissions.software & 0b1111) << 55
    }

    fn as_decoded(mut attributes: Attributes, arch: &Arch) -> Attributes {
        attributes.permissions.software &= 0b1111;
        if arch.ds {
            attributes.shareability = Shareability::Inner;
        }
        if !arch.user {
            attributes.permissions.user = false;
            attributes.permissions.user_execute = false;
            attributes.global = true;
        }
        if !arch.el3 {
            attributes.output_space = match attributes.output_space {
                OutputSpace::NonSecure | OutputSpace::Realm => OutputSpace::NonSecure,
                OutputSpace::Unmarked | OutputSpace::Root => OutputSpace::Unmarked,
            };
        }
        attributes
    }

    fn changed(mut attributes: Attributes, change: &PermissionChange, arch: &Arch) -> Attributes {
        let permissions = &mut attributes.permissions;
        let set = |to: &mut bool, from: Option<bool>| *to = from.unwrap_or(*to);
        set(&mut permissions.writable, change.writable);
        if change.writable == Some(false) {
            // With the modifier left set, hardware management of the dirty state would let the
            // store through.
            permissions.dirty_modifier = false;
        }
        set(&mut permissions.dirty_modifier, change.dirty_modifier);
        set(&mut permissions.guarded, change.guarded);
        set(
            &mut permissions.privileged_execute,
            change.privileged_execute,
        );
        if arch.user {
            set(&mut permissions.user, change.user);
            set(&mut permissions.user_execute, change.user_execute);
        }
        if let Some(software) = change.software {
            permissions.software = software & 0b1111;
        }
        attributes
    }

    fn changes_nothing(change: &PermissionChange, arch: &Arch) -> bool {
        let mut change = *change;
        if !arch.user {
            change.user = None;
            change.user_execute = None;
        }
        change == PermissionChange::NONE
    }

    fn any_attributes() -> BoxedStrategy<Attributes> {
        let memory = Self::any_memory();
        let permissions =
            any::<(bool, bool, bool, bool, bool, bool, u8)>().prop_map(|bits| Permissions {
                writable: bits.0,
                user: bits.1,
                privileged_execute: bits.2,
                user_execute: bits.3,
                guarded: bits.4,
                dirty_modifier: bits.5,
                software: bits.6,
            });
        let flags = any::<(bool, bool)>();
        use OutputSpace::{NonSecure, Realm, Root, Unmarked};
        let space = proptest::sample::select(&[Unmarked, NonSecure, Root, Realm]);
        (memory, any_shareability(), permissions, flags, space)
            .prop_map(
                |(memory, shareability, permissions, (accessed, global), space)| Attributes {
                    memory,
                    shareability,
                    accessed,
                    global,
                    output_space: space,
                    ..Attributes::normal(permissions)
                },
            )
            .boxed()
    }

    fn any_change() -> BoxedStrategy<PermissionChange> {
        let software = proptest::option::of(any::<u8>());
        let others = (maybe(), maybe(), maybe(), maybe());
        (maybe(), maybe(), others, software)
            .prop_map(|bits| {
                let (writable, dirty_modifier, others, software) = bits;
                let mut change = Self::change_of(writable, dirty_modifier, software);
                (change.user, change.guarded) = (others.0, others.3);
                (change.privileged_execute, change.user_execute) = (others.1, others.2);
                change
            })
            .boxed()
    }

    fn any_memory() -> BoxedStrategy<Self::Memory> {
        prop_oneof![
            Just(MemoryType::Normal),
            Just(MemoryType::Device),
            Just(MemoryType::NormalNonCacheable),
            Just(MemoryType::DeviceStrict),
            Just(MemoryType::NormalTagged),
            (5..8_u8).prop_map(MemoryType::Index),
        ]
        .boxed()
    }

    fn read_write() -> Attributes {
        Attributes::normal(Permissions::READ_WRITE)
    }

    same_in_both_stages!(Attributes, MemoryType, PermissionChange);

    fn set_asid<P: granule::arch::Page, E: TableEnvironment>(
        tables: &mut PageTables<P, E>,
        asid: Option<u16>,
    ) {
        // SAFETY: no CPU walks the tables.
        unsafe { tables.set_asid(asid) };
    }

    fn stats(geometry: &Geometry, pieces: &[Piece]) -> Option<LeafStats> {
        Some(LeafStats::new(geometry, pieces))
    }
}
