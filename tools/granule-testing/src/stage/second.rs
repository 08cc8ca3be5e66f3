//! Stage 2 as the checks see it.

#![allow(unsafe_code, reason = "no CPU walks the tables")]

use super::*;

impl TestStage for Stage2 {
    type Memory = Stage2Memory;

    const OTHER_MEMORY: [Stage2Memory; 2] =
        [Stage2Memory::Device, Stage2Memory::NormalNonCacheable];

    fn attribute_bits(attributes: &Stage2Attributes, arch: &Arch) -> u64 {
        let permissions = attributes.permissions;
        let mut word = common_bits(arch, attributes.shareability, attributes.accessed);
        // MemAttr: four bits, of which FEAT_S2FWB uses three.
        let memory = match (attributes.memory, arch.forced_write_back) {
            (Stage2Memory::Normal, true) => 0b0110,
            (Stage2Memory::AsStage1, true) => 0b0111,
            (Stage2Memory::Normal | Stage2Memory::AsStage1, false) => 0b1111,
            (Stage2Memory::NormalNonCacheable, _) => 0b0101,
            (Stage2Memory::Device, _) => 0b0001,
            (Stage2Memory::DeviceStrict, _) => 0b0000,
            (Stage2Memory::Raw(bits), true) => bits & 0b0111,
            (Stage2Memory::Raw(bits), false) => bits & 0b1111,
            (other, _) => panic!("a memory type that this test does not know: {other:?}"),
        };
        word |= u64::from(memory) << 2;
        bit(&mut word, 6, permissions.readable);
        bit(&mut word, 7, permissions.writable);
        bit(&mut word, 51, permissions.dirty_modifier);
        let never = match (permissions.execute, arch.execute_by_privilege) {
            (Execute::Any, _) => 0b00,
            (Execute::User, true) => 0b01,
            (Execute::Privileged, true) => 0b11,
            _ => 0b10,
        };
        word | never << 53 | u64::from(permissions.software & 0b1111) << 55
    }

    fn as_decoded(mut attributes: Stage2Attributes, arch: &Arch) -> Stage2Attributes {
        attributes.permissions.software &= 0b1111;
        if arch.ds {
            attributes.shareability = Shareability::Inner;
        }
        if !arch.forced_write_back && attributes.memory == Stage2Memory::AsStage1 {
            attributes.memory = Stage2Memory::Normal;
        }
        if !arch.execute_by_privilege && attributes.permissions.execute != Execute::Any {
            attributes.permissions.execute = Execute::Never;
        }
        attributes
    }

    fn changed(
        mut attributes: Stage2Attributes,
        change: &Stage2PermissionChange,
        _arch: &Arch,
    ) -> Stage2Attributes {
        let permissions = &mut attributes.permissions;
        permissions.readable = change.readable.unwrap_or(permissions.readable);
        permissions.writable = change.writable.unwrap_or(permissions.writable);
        permissions.dirty_modifier &= change.writable != Some(false);
        permissions.dirty_modifier = change.dirty_modifier.unwrap_or(permissions.dirty_modifier);
        permissions.execute = change.execute.unwrap_or(permissions.execute);
        if let Some(software) = change.software {
            permissions.software = software & 0b1111;
        }
        attributes
    }

    fn changes_nothing(change: &Stage2PermissionChange, _arch: &Arch) -> bool {
        *change == Stage2PermissionChange::NONE
    }

    fn any_attributes() -> BoxedStrategy<Stage2Attributes> {
        let memory = Self::any_memory();
        let permissions = (any::<(bool, bool, bool, u8)>(), any_execute()).prop_map(
            |((read, write, dirty, software), execute)| Stage2Permissions {
                readable: read,
                writable: write,
                dirty_modifier: dirty,
                software,
                execute,
            },
        );
        (memory, any_shareability(), permissions, any::<bool>())
            .prop_map(|(memory, shareability, permissions, accessed)| {
                let mut attributes = Stage2Attributes::normal(permissions);
                (attributes.memory, attributes.shareability) = (memory, shareability);
                attributes.accessed = accessed;
                attributes
            })
            .boxed()
    }

    fn any_change() -> BoxedStrategy<Stage2PermissionChange> {
        let execute = proptest::option::of(any_execute());
        let software = proptest::option::of(any::<u8>());
        (maybe(), maybe(), maybe(), execute, software)
            .prop_map(|bits| {
                let (readable, writable, dirty_modifier, execute, software) = bits;
                let mut change = Self::change_of(writable, dirty_modifier, software);
                (change.readable, change.execute) = (readable, execute);
                change
            })
            .boxed()
    }

    fn any_memory() -> BoxedStrategy<Self::Memory> {
        prop_oneof![
            Just(Stage2Memory::Normal),
            Just(Stage2Memory::AsStage1),
            Just(Stage2Memory::NormalNonCacheable),
            Just(Stage2Memory::Device),
            Just(Stage2Memory::DeviceStrict),
            // Device-nGRE, which no other name has.
            Just(Stage2Memory::Raw(0b0010)),
        ]
        .boxed()
    }

    fn read_write() -> Stage2Attributes {
        Stage2Attributes::normal(Stage2Permissions::READ_WRITE)
    }

    same_in_both_stages!(Stage2Attributes, Stage2Memory, Stage2PermissionChange);

    fn set_asid<P: granule::arch::Page, E: TableEnvironment>(
        _tables: &mut PageTables<P, E, Self>,
        _asid: Option<u16>,
    ) {
    }

    fn stats(
        _geometry: &Geometry,
        _pieces: &[Piece<Self::Input, Stage2Attributes>],
    ) -> Option<LeafStats> {
        None
    }
}

fn any_execute() -> impl Strategy<Value = Execute> {
    prop_oneof![
        Just(Execute::Any),
        Just(Execute::User),
        Just(Execute::Privileged),
        Just(Execute::Never)
    ]
}
