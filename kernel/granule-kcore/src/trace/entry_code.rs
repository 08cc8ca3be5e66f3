//! The effects of early assembly on translation, caches and ordering, which cannot be recorded as they
//! happen. Each routine has a list, in the order of the addresses of its instructions.
//!
//! A trace emits these lists, and the check of the finished kernel (`cargo xtask image`) compares them
//! with the actual instructions. The lists have no operand values: the kernel adds them.

use granule_trace::{Barrier, System};

/// An instruction that a trace has a record for. Operations by address are in a loop over lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A barrier.
    Barrier(Barrier),
    /// A register write, a TLBI, or a cache operation.
    System(System),
}

const ISB: Step = Step::Barrier(Barrier::ISB);
const DSB_SY: Step = Step::Barrier(Barrier::DSB_SY);
const DSB_NSH: Step = Step::Barrier(Barrier::DSB_NSH);
const DMB_SY: Step = Step::Barrier(Barrier::DMB_SY);
const SCTLR_EL1: Step = Step::System(System::SCTLR_EL1);
const SCTLR_EL2: Step = Step::System(System::SCTLR_EL2);
const TTBR0_EL1: Step = Step::System(System::TTBR0_EL1);
const TTBR1_EL1: Step = Step::System(System::TTBR1_EL1);
/// 3 0 2 0 3.
const TCR2_EL1: Step = Step::System(System(3 << 14 | 2 << 7 | 3));
const ALLE1: Step = Step::System(System::ALLE1);
const ALLE2: Step = Step::System(System::ALLE2);

/// The condition under which a part of a routine is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Every CPU.
    Always,
    /// A CPU that is entered at EL1.
    EnteredAtEl1,
    /// A CPU that is entered at EL2.
    EnteredAtEl2,
    /// At EL2 of a CPU with FEAT_VHE.
    Vhe,
    /// At EL2 of a CPU without FEAT_VHE.
    NoVhe,
    /// On the way off the kernel's tables.
    Leaving,
    /// On the way back to them.
    Returning,
    /// Left out of a trace because the part runs on some machines only, or has no consequence. It is
    /// an ISB that only orders a register's reading, which can make a checker stricter and never more
    /// lenient, or a register that a trace does not model.
    Unrecorded,
}

/// A routine of `head`: its symbol, and its parts in the order of their addresses.
#[derive(Clone, Copy, Debug)]
pub struct Routine {
    /// The symbol, which the check of the finished kernel looks for.
    pub symbol: &'static str,
    /// The parts, in the order of their instructions' addresses.
    pub parts: &'static [(When, &'static [Step])],
}

/// `head::entry`, up to its first call.
pub const ENTRY: Routine = Routine {
    symbol: "entry",
    parts: &[
        (When::EnteredAtEl1, &[SCTLR_EL1]),
        (When::EnteredAtEl2, &[SCTLR_EL2]),
        // The second ISB follows VBAR.
        (When::Always, &[ISB, ISB]),
    ],
};

/// `head::secondary`, up to its first call.
pub const SECONDARY_ENTRY: Routine = Routine {
    symbol: "secondary_entry",
    parts: &[
        (When::EnteredAtEl1, &[SCTLR_EL1]),
        (When::EnteredAtEl2, &[SCTLR_EL2]),
        (When::Always, &[ISB]),
        // After the doorbell that named the CPU, and with its vectors set.
        (When::Always, &[DMB_SY, ISB]),
    ],
};

/// `head::el2`.
pub const SETUP_EL2: Routine = Routine {
    symbol: "setup_el2",
    parts: &[
        // Between the write and the read of ICC_SRE_EL2.
        (When::Unrecorded, &[ISB]),
        (When::Vhe, &[ISB, SCTLR_EL1, ISB, ALLE2, DSB_NSH, ISB]),
        (When::NoVhe, &[ISB, ALLE1, ALLE2, DSB_NSH, ISB, SCTLR_EL1]),
    ],
};

/// `head::run_level`.
pub const SETUP_RUN_LEVEL: Routine = Routine {
    symbol: "setup_run_level",
    parts: &[
        // It gets the value that behaves as on a CPU without it.
        (When::Unrecorded, &[TCR2_EL1]),
        (When::Always, &[ISB]),
    ],
};

/// `head::relocate`.
pub const APPLY_RELOCATIONS: Routine = Routine {
    symbol: "apply_relocations",
    parts: &[],
};

/// `granule::hw::cache`.
pub const CLEAN: Routine = Routine {
    symbol: "granule_cache_clean",
    parts: &[(When::Always, &[Step::System(System::DC_CVAC), DSB_SY])],
};

/// `granule::hw::cache`.
pub const CLEAN_AND_INVALIDATE: Routine = Routine {
    symbol: "granule_cache_clean_and_invalidate",
    parts: &[(When::Always, &[Step::System(System::DC_CIVAC), DSB_SY])],
};

/// `granule::hw::cache`.
pub const INVALIDATE: Routine = Routine {
    symbol: "granule_cache_invalidate",
    parts: &[(
        When::Always,
        &[DMB_SY, Step::System(System::DC_IVAC), DSB_SY],
    )],
};

/// `head::mmu_on`.
pub const ENABLE_MMU: Routine = Routine {
    symbol: "enable_mmu_and_jump",
    parts: &[(
        When::Always,
        &[
            DSB_SY,
            Step::System(System::VMALLE1),
            DSB_NSH,
            Step::System(System::MAIR_EL1),
            Step::System(System::TCR_EL1),
            TTBR0_EL1,
            TTBR1_EL1,
            ISB,
            SCTLR_EL1,
            ISB,
            Step::System(System::IC_IALLU),
            DSB_NSH,
            ISB,
        ],
    )],
};

const EMPTY_TLB: [Step; 3] = [Step::System(System::VMALLE1), DSB_NSH, ISB];

/// `head::parked`, in the kernel's text.
pub const PARK: Routine = Routine {
    symbol: "park_on_identity",
    parts: &[
        (When::Leaving, &[TTBR0_EL1, ISB]),
        (When::Returning, &[TTBR0_EL1, ISB]),
        (When::Returning, &EMPTY_TLB),
    ],
};

/// `head::parked`, in the identity map.
pub const PARK_CODE: Routine = Routine {
    symbol: "park_identity_code",
    parts: &[
        (When::Leaving, &[TTBR1_EL1, ISB]),
        (When::Leaving, &EMPTY_TLB),
        // Between AT and the read of PAR.
        (When::Unrecorded, &[ISB]),
        (When::Returning, &[TTBR1_EL1, ISB]),
        (When::Returning, &EMPTY_TLB),
    ],
};

/// All routines, for the check.
pub const ALL: &[Routine] = &[
    ENTRY,
    SECONDARY_ENTRY,
    SETUP_EL2,
    SETUP_RUN_LEVEL,
    APPLY_RELOCATIONS,
    CLEAN,
    CLEAN_AND_INVALIDATE,
    INVALIDATE,
    PARK,
    PARK_CODE,
    ENABLE_MMU,
];
