//! The data that the code with the MMU off leaves for the code with the MMU on, laid out for the assembly
//! that fills part of it. No code that acts on it lives here.
//!
//! Addresses are physical. Positions in the device tree are offsets, since the tree moves to another address
//! later.
//!
//! [`boot_record`] is the boot record, [`mailbox`] the messages between the boot CPU and a starting CPU,
//! [`parking`] the same for a parked CPU.

pub(crate) mod boot_record;
pub(crate) mod mailbox;
pub(crate) mod parking;

use granule::arch::{CpuFeatures, Geometry, PhysicalAddress};
use granule_boot::choice::{PageSizeChoice, VaBitsChoice};
use granule_boot::expand::Expanded;
use granule_boot::kaslr::Kaslr;
use granule_boot::peek::Consoles;
use granule_boot::uart::Uart;
use granule_kcore::trace::area::Area;

/// The state and the address with which the CPU entered the image. `entry` stores the first six fields.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct EntryInfo {
    /// Physical address of the device tree: the boot loader's, or the one that was made of firmware's tables.
    pub(crate) dtb: u64,
    /// Physical address of the image's first byte.
    pub(crate) load: u64,
    /// Exception level at entry: 1 or 2.
    pub(crate) entry_el: u64,
    /// Exception level of the kernel: 2 if and only if `vhe`.
    pub(crate) run_el: u64,
    /// 1 if the kernel runs at EL2 with E2H and TGE set.
    pub(crate) vhe: u64,
    /// The counter at the first instructions of the image.
    pub(crate) counter: u64,
    /// MIDR_EL1.
    pub(crate) midr: u64,
    /// ID_AA64MMFR0_EL1 to ID_AA64MMFR3_EL1.
    pub(crate) mmfr: [u64; 4],
    /// ID_AA64PFR0_EL1.
    pub(crate) pfr0: u64,
    /// ID_AA64ISAR0_EL1.
    pub(crate) isar0: u64,
    /// ID_AA64DFR0_EL1.
    pub(crate) dfr0: u64,
    /// CTR_EL0.
    pub(crate) ctr: u64,
}

impl EntryInfo {
    pub(crate) fn features(&self) -> CpuFeatures {
        let [mmfr0, mmfr1, mmfr2, _] = self.mmfr;
        CpuFeatures {
            midr: self.midr,
            mmfr0,
            mmfr1,
            mmfr2,
            isar0: self.isar0,
        }
    }
}

/// The page size and the VA size, each with its origin and what could not be granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BootChoice {
    pub(crate) page: PageSizeChoice,
    pub(crate) va: VaBitsChoice,
}

/// The values that turn the MMU on.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct MmuConfig {
    pub(crate) mair: u64,
    pub(crate) tcr: u64,
    pub(crate) ttbr0: u64,
    pub(crate) ttbr1: u64,
    /// Virtual minus physical address of the image.
    pub(crate) virt_offset: u64,
}

/// The trees that the boot built: their roots and their shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BootRoots {
    /// The identity map.
    pub(crate) identity: PhysicalAddress,
    pub(crate) lower: Geometry,
    /// Image, device tree and console. The kernel keeps using this tree.
    pub(crate) kernel: PhysicalAddress,
    pub(crate) upper: Geometry,
}

/// The conduit by which PSCI is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Conduit {
    /// The device tree names no conduit.
    #[default]
    Unknown,
    /// By HVC.
    Hvc,
    /// By SMC.
    Smc,
    /// The device tree gives HVC, but the kernel was entered at EL2: an HVC would trap to the
    /// kernel itself and never reach firmware.
    OwnHvc,
}

/// Data that was read from the device tree with the MMU off.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct TreeInfo {
    /// Bytes of the tree, from its header.
    pub(crate) bytes: u64,
    /// The console, if there is one.
    pub(crate) uart: Option<Uart>,
    /// `/chosen/bootargs`: offset in the tree, and length without the NUL.
    pub(crate) bootargs_offset: u64,
    pub(crate) bootargs_bytes: u64,
    /// `/chosen/kaslr-seed`, which is overwritten in the tree: its offset in the tree, 0 if there is none, and
    /// its number. The digest of a tree that another kernel wrote counts them.
    pub(crate) seed_offset: u64,
    pub(crate) seed: u64,
    /// `/psci`'s `method`.
    pub(crate) psci: Conduit,
}

/// Devices that the last owner left on, and that write memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct LeftOn {
    /// Redistributors whose LPIs were turned off.
    pub(crate) lpis: u32,
    /// Redistributors whose LPIs cannot be turned off.
    pub(crate) lpis_stay: u32,
    /// SMMUs, which stay on.
    pub(crate) smmus: u32,
}

/// The whole handover. The one instance is `HANDOVER`, in `.bss`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Handover {
    pub(crate) entry: EntryInfo,
    pub(crate) tree: TreeInfo,
    /// The consoles that are named. `tree.uart` is the first that can be used.
    pub(crate) consoles: Consoles,
    /// The tree that was made of firmware's tables, if `entry.dtb` is it.
    pub(crate) expanded: Option<Expanded>,
    /// The digest of the tree that an earlier kernel gave, if `entry.dtb` is another and digests
    /// are requested.
    pub(crate) given_digest: Option<u64>,
    pub(crate) left_on: LeftOn,
    pub(crate) mmu: MmuConfig,
    /// `None` until the choice is made. The kernel never sees `None`.
    pub(crate) choice: Option<BootChoice>,
    /// Whether addresses are randomised, and by which seed.
    pub(crate) kaslr: Kaslr,
    /// Set with the choice.
    pub(crate) roots: Option<BootRoots>,
    /// The first page of the static pool that is not a boot table.
    pub(crate) pool_next: u64,
    /// Memory for the trace, if one is requested.
    pub(crate) trace: Area,
}
