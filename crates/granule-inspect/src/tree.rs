//! Trees of page tables and the registers that give them their meaning. This module uses neither
//! dumps nor machines, and does not walk trees.

use granule::arch::registers::Mair;
use granule::arch::{Geometry, OutputFormat, PageSize, PhysicalAddress, Regime, Stage2Geometry};
use std::fmt;

#[derive(Clone, Debug)]
pub struct Tree {
    /// Whose tables they are.
    pub owner: Owner,
    /// The root table, or the first of the root tables.
    pub root: PhysicalAddress,
    /// The shape of the address space.
    pub shape: Shape,
    /// The memory types of stage 1. Without them types are indices.
    pub memory_types: Option<Mair>,
    /// The source of the root's address and the tree's shape.
    pub origin: Origin,
    /// Whether bits 63:56 of an address are a tag (TCR.TBI), if that is known.
    pub tags: Option<bool>,
    /// The stage 2 through which its tables and outputs are: both are then intermediate addresses.
    pub through: Option<Through>,
}

/// The tables of stage 2 below those of stage 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Through {
    pub root: PhysicalAddress,
    pub shape: Stage2Geometry,
}

/// Whose tables they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The kernel: TTBR1_EL1, or the one table of EL2 or EL3.
    Kernel,
    /// The user half of the CPU with that number: TTBR0_EL1.
    User(usize),
    Process {
        pid: u32,
        name: String,
    },
    /// A guest: VTTBR_EL2 of the CPU with that number.
    Guest(usize),
    /// The kernel of the guest that runs on the CPU with that number.
    GuestKernel(usize),
    /// EL2 beside a kernel at EL1.
    Hypervisor,
    /// EL3 beside a kernel below.
    Firmware,
}

impl Tree {
    /// A tree of physical addresses of which nothing more is known.
    pub const fn new(owner: Owner, root: PhysicalAddress, shape: Shape, origin: Origin) -> Self {
        Self {
            owner,
            root,
            shape,
            memory_types: None,
            origin,
            tags: None,
            through: None,
        }
    }

    /// The shape of the address space, for code that both stages share.
    pub const fn geometry(&self) -> &Geometry {
        match &self.shape {
            Shape::Stage1(geometry) => geometry,
            Shape::Stage2(geometry) => geometry.shape(),
        }
    }

    /// The address without a tag in bits 63:56, unless TCR gives that no meaning.
    pub fn untagged(&self, address: u64) -> u64 {
        match (self.tags, &self.shape) {
            // Bit 55 selects the half.
            (None | Some(true), Shape::Stage1(_)) => {
                (address << 8).cast_signed().wrapping_shr(8).cast_unsigned()
            }
            _ => address,
        }
    }

    /// Whether it is known which format its descriptors have. A guess cannot distinguish the
    /// formats of 4K and 16K pages as long as no output needs the 52 bits of FEAT_LPA2.
    pub fn knows_format(&self) -> bool {
        let geometry = self.geometry();
        self.origin != Origin::Guess
            || geometry.page_size() == PageSize::K64
            || geometry.format() == OutputFormat::Lpa2
    }

    /// The bits of output addresses, and which register sets them. `None` if only the format bounds them:
    /// the origin of the tree does not contain this register.
    pub fn output_size(&self) -> Option<(u32, &'static str)> {
        let field = match self.geometry().regime() {
            Regime::El1And0 => "TCR.IPS",
            Regime::Stage2 => "VTCR.PS",
            _ => "TCR.PS",
        };
        let said = matches!(self.origin, Origin::Registers | Origin::Options);
        said.then(|| (self.geometry().pa_bits(), field))
    }
}

/// The shape of a tree, by stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Stage1(Geometry),
    Stage2(Stage2Geometry),
}

/// The source of a root's address and a tree's shape, from the most certain on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// System registers of a live machine, or of a dump that has them.
    Registers,
    Options,
    /// The notes of a Linux dump (VMCOREINFO).
    Vmcoreinfo,
    /// The kernel's own data structures, found through its symbols.
    KernelData,
    /// A search of the memory for something that looks like a root. It may be wrong.
    Guess,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("kernel"),
            Self::User(cpu) => write!(f, "user half of CPU {cpu}"),
            Self::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Self::Guest(cpu) => write!(f, "guest of CPU {cpu}"),
            Self::GuestKernel(cpu) => write!(f, "kernel of the guest of CPU {cpu}"),
            Self::Hypervisor => f.write_str("hypervisor"),
            Self::Firmware => f.write_str("firmware"),
        }
    }
}
