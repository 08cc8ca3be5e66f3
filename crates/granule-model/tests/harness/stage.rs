//! The two stages of translation in the harness: what is drawn for each, what the reference says of
//! it, and how CPUs come to walk its tables.

use crate::environment;
use crate::machine::Shared;
use crate::random::Random;
use crate::shape::Shape;
use granule::arch::registers::{Mair, Ttbr};
use granule::arch::{
    Attributes, Execute, Geometry, MemoryType, Page, Permissions, PhysicalAddress, Regime,
    Shareability, Stage2Attributes, Stage2Geometry, Stage2Memory, Stage2Permissions, Translation,
    VaRange, Vtcr, Vttbr,
};
use granule::table::{PermissionChange, Stage1, Stage2, Stage2PermissionChange};
use granule_model::{Barrier, Event, Rights, System};
use granule_testing::stage::TestStage;

/// The number of the guest.
pub(crate) const VMID: u16 = 0x2a;
/// The hypervisor's own top table, which is empty.
const HOST: u64 = 0x3000_0000;

/// The memory attribute byte that a leaf gives an access, and the rights of both privileges.
pub(crate) struct Given {
    pub(crate) memory: u8,
    pub(crate) privileged: Rights,
    pub(crate) user: Rights,
}

/// A stage that the harness supports.
pub(crate) trait Staged: TestStage + Default + PartialEq {
    /// The regime of accesses to what the tables translate.
    const REGIME: granule_model::Regime;
    /// Whether there are operations without the lock.
    const LOCK_FREE: bool;

    fn geometry<P: Page>(shape: &Shape) -> Self::Geometry;
    /// Cleans the root and makes every CPU walk it.
    fn turn_on(world: &Shared, shape: &Shape, geometry: &Self::Geometry, root: u64);
    fn attributes(random: &mut Random, global: bool) -> Self::Attributes;
    /// Kinds of memory to change to. Mostly the usual one, so that some leaves have it already.
    fn memory(random: &mut Random) -> Self::Memory;
    fn change(random: &mut Random) -> Self::PermissionChange;
    /// Whether a change takes the right to write, and with it the dirty modifier.
    fn write_protects(change: &Self::PermissionChange) -> bool;
    /// Returns the result of an access, and the shareability; `None` while the access flag is clear.
    fn given(attributes: &Self::Attributes) -> Option<(Given, Shareability)>;
}

/// Mostly inner shareable.
fn shareability(random: &mut Random) -> Shareability {
    if random.once_in(4) {
        random.of(&[Shareability::None, Shareability::Outer])
    } else {
        Shareability::Inner
    }
}

impl Staged for Stage1 {
    const REGIME: granule_model::Regime = granule_model::Regime::El10;
    const LOCK_FREE: bool = true;

    fn geometry<P: Page>(shape: &Shape) -> Geometry {
        shape.geometry::<P>()
    }

    fn turn_on(world: &Shared, shape: &Shape, geometry: &Geometry, root: u64) {
        environment::turn_on(
            world,
            shape.cpus,
            &shape.features(),
            geometry,
            PhysicalAddress(root),
            shape.asid.unwrap_or(0),
            shape.hardware,
        );
    }

    fn attributes(random: &mut Random, global: bool) -> Attributes {
        let memory = match random.below(10) {
            0 => MemoryType::Device,
            1 => MemoryType::NormalNonCacheable,
            2 => MemoryType::DeviceStrict,
            3 => MemoryType::NormalTagged,
            4 => MemoryType::Index(5 + random.below(3) as u8),
            _ => MemoryType::Normal,
        };
        let shareability = shareability(random);
        let permissions = Permissions {
            writable: random.either(),
            user: random.either(),
            privileged_execute: random.either(),
            user_execute: random.either(),
            guarded: random.either(),
            dirty_modifier: random.once_in(4),
            software: random.below(256) as u8,
        };
        Attributes {
            memory,
            shareability,
            accessed: !random.once_in(16),
            global,
            ..Attributes::normal(permissions)
        }
    }

    fn memory(random: &mut Random) -> MemoryType {
        random.of(&[
            MemoryType::Normal,
            MemoryType::Normal,
            MemoryType::NormalNonCacheable,
            MemoryType::Device,
        ])
    }

    fn write_protects(change: &PermissionChange) -> bool {
        change.writable == Some(false)
    }

    fn change(random: &mut Random) -> PermissionChange {
        if random.once_in(3) {
            // The same for all, so that what was split agrees again.
            return PermissionChange {
                writable: Some(random.either()),
                user: Some(false),
                privileged_execute: Some(false),
                user_execute: Some(false),
                guarded: Some(false),
                software: Some(0),
                ..PermissionChange::NONE
            };
        }
        let mut change = PermissionChange::NONE;
        change.writable = random.maybe();
        change.user = random.maybe();
        change.privileged_execute = random.maybe();
        change.user_execute = random.maybe();
        change.guarded = random.maybe();
        change.software = random.once_in(4).then(|| random.below(256) as u8);
        change
    }

    fn given(attributes: &Attributes) -> Option<(Given, Shareability)> {
        if !attributes.accessed {
            return None;
        }
        let given = attributes.permissions;
        let user = Rights {
            read: given.user,
            write: given.user && given.writable,
            execute: given.user_execute,
        };
        let privileged = Rights {
            read: true,
            write: given.writable,
            // What EL0 can write, EL1 does not execute.
            execute: given.privileged_execute && !user.write,
        };
        let memory = (Mair::STANDARD.0 >> (8 * attributes.memory.index())) as u8;
        let given = Given {
            memory,
            privileged,
            user,
        };
        Some((given, attributes.shareability))
    }
}

impl Staged for Stage2 {
    const REGIME: granule_model::Regime = granule_model::Regime::Stage2;
    const LOCK_FREE: bool = false;

    fn geometry<P: Page>(shape: &Shape) -> Stage2Geometry {
        match Stage2Geometry::new(&shape.features(), P::SIZE, shape.va_bits) {
            Ok(geometry) => geometry,
            Err(error) => panic!("{shape:?}: {error}"),
        }
    }

    /// Turns the MMU of the hypervisor on, which walks an empty tree of its own, and makes every CPU
    /// run the guest.
    fn turn_on(world: &Shared, shape: &Shape, geometry: &Stage2Geometry, root: u64) {
        let features = shape.features();
        let page = geometry.shape().page_size().bytes();
        let event = |kind| world.borrow_mut().event(kind);
        event(Event::obtained(HOST, page));
        event(Event::fill(
            HOST,
            geometry.shape().page_size().entries() as u32,
            0,
            0,
        ));
        for (start, bytes) in [
            (HOST, page),
            (root, geometry.shape().root_tables() as u64 * page),
        ] {
            event(Event::lines(System::DC_CIVAC, start, bytes));
        }
        event(Event::Barrier(Barrier::DSB_SY));
        let host = Geometry::new(
            &features,
            geometry.shape().page_size(),
            if shape.wide { 52 } else { 48 },
            VaRange::Lower,
            Regime::El2,
        );
        let host = match host {
            Ok(host) => Translation::new(&features, Some((&host, Ttbr::NONE)), None),
            Err(error) => panic!("{shape:?}: {error}"),
        };
        let host = match host {
            Ok(translation) => translation.tcr,
            Err(error) => panic!("{shape:?}: {error}"),
        };
        let hardware = if shape.hardware {
            Vtcr::HA | Vtcr::HD
        } else {
            0
        };
        // SAFETY: only the model's CPUs get the value, and the tree is made live.
        let vttbr = unsafe { Vttbr::from_root(geometry, PhysicalAddress(root), VMID) }.bits();
        for cpu in 0..shape.cpus {
            world.borrow_mut().cpu = cpu;
            for kind in [
                Event::System(System::ALLE2, 0),
                Event::System(System::ALLE1, 0),
                Event::Barrier(Barrier::DSB_NSH),
                Event::System(System::TCR_EL2, host),
                Event::System(System::TTBR0_EL2, HOST),
                Event::System(
                    System::VTCR_EL2,
                    Vtcr::new(&features, geometry).0 | hardware,
                ),
                Event::System(System::VTTBR_EL2, vttbr),
                Event::Barrier(Barrier::ISB),
                Event::System(System::SCTLR_EL2, 1 | 1 << 2 | 1 << 12),
                Event::Barrier(Barrier::ISB),
                Event::System(System::HCR_EL2, geometry.hcr()),
                Event::Barrier(Barrier::ISB),
            ] {
                world.borrow_mut().event(kind);
            }
        }
        world.borrow_mut().cpu = 0;
    }

    fn attributes(random: &mut Random, _global: bool) -> Stage2Attributes {
        let memory = match random.below(10) {
            0 => Stage2Memory::Device,
            1 => Stage2Memory::NormalNonCacheable,
            2 => Stage2Memory::DeviceStrict,
            3 => Stage2Memory::AsStage1,
            4 => Stage2Memory::Raw(0b0010),
            _ => Stage2Memory::Normal,
        };
        let shareability = shareability(random);
        let permissions = Stage2Permissions {
            readable: !random.once_in(4),
            writable: random.either(),
            execute: execute(random),
            dirty_modifier: random.once_in(4),
            software: random.below(256) as u8,
        };
        Stage2Attributes {
            memory,
            shareability,
            accessed: !random.once_in(16),
            ..Stage2Attributes::normal(permissions)
        }
    }

    fn memory(random: &mut Random) -> Stage2Memory {
        random.of(&[
            Stage2Memory::Normal,
            Stage2Memory::Normal,
            Stage2Memory::NormalNonCacheable,
            Stage2Memory::AsStage1,
            Stage2Memory::Device,
        ])
    }

    fn write_protects(change: &Stage2PermissionChange) -> bool {
        change.writable == Some(false)
    }

    fn change(random: &mut Random) -> Stage2PermissionChange {
        if random.once_in(3) {
            return Stage2PermissionChange {
                readable: Some(true),
                writable: Some(random.either()),
                execute: Some(Execute::Any),
                software: Some(0),
                ..Stage2PermissionChange::NONE
            };
        }
        let mut change = Stage2PermissionChange::NONE;
        change.readable = random.maybe();
        change.writable = random.maybe();
        change.execute = random.either().then(|| execute(random));
        change.software = random.once_in(4).then(|| random.below(256) as u8);
        change
    }

    fn given(attributes: &Stage2Attributes) -> Option<(Given, Shareability)> {
        if !attributes.accessed {
            return None;
        }
        let given = attributes.permissions;
        let rights = |execute: bool| Rights {
            read: given.readable,
            write: given.writable,
            execute: given.readable && execute,
        };
        let (privileged, user) = match given.execute {
            Execute::Any => (true, true),
            Execute::User => (false, true),
            Execute::Privileged => (true, false),
            Execute::Never => (false, false),
        };
        let memory = match attributes.memory {
            Stage2Memory::Normal => 0xff,
            Stage2Memory::AsStage1 => 0xee,
            Stage2Memory::NormalNonCacheable => 0x44,
            Stage2Memory::Device => 0x04,
            Stage2Memory::Raw(0b0010) => 0x08,
            _ => 0x00,
        };
        let given = Given {
            memory,
            privileged: rights(privileged),
            user: rights(user),
        };
        Some((given, attributes.shareability))
    }
}

fn execute(random: &mut Random) -> Execute {
    random.of(&[
        Execute::Any,
        Execute::User,
        Execute::Privileged,
        Execute::Never,
    ])
}
