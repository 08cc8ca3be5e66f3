//! What assembly does to translation, caches and order where it cannot be recorded as it happens, as
//! lists: one for each routine, in the order of the addresses of its instructions.
//!
//! A trace tells these lists, and the check of the finished kernel (`cargo xtask image`) compares them
//! with the instructions that are there. There are no values here: the kernel adds them.

use granule_trace::{Barrier, System};

/// An instruction that a trace has a record for. Those by address are in a loop over lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A barrier.
    Barrier(Barrier),
    /// A write of a register, a TLBI, or an operation on caches.
    System(System),
}

const ISB: Step = Step::Barrier(Barrier::ISB);
const DSB_SY: Step = Step::Barrier(Barrier::DSB_SY);
const DSB_NSH: Step = Step::Barrier(Barrier::DSB_NSH);
const DMB_SY: Step = Step::Barrier(Barrier::DMB_SY);
const SCTLR_EL1: Step = Step::System(System::SCTLR_EL1);

/// When a part of a routine is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// By every CPU.
    Always,
    /// By a CPU that is entered at EL1.
    EnteredAtEl1,
    /// By a CPU that is entered at EL2.
    EnteredAtEl2,
    /// At EL2 of a CPU that has FEAT_VHE.
    Vhe,
    /// At EL2 of a CPU without.
    NoVhe,
    /// On the way off the kernel's tables.
    Leaving,
    /// On the way back to them.
    Returning,
    /// On some machines, or of no consequence, and left out of a trace: an ISB that only orders a register's reading, which
    /// can make a checker stricter and never more lenient, or a register that a trace knows nothing
    /// of.
    Untold,
}

/// A routine of `head`: its symbol, and its parts in the order of their addresses.
#[derive(Clone, Copy, Debug)]
pub struct Routine {
    /// The symbol, which the check of the finished kernel looks for.
    pub symbol: &'static str,
    /// The parts, in the order of their instructions' addresses.
    pub parts: &'static [(When, &'static [Step])],
}

/// `head::entry`, all of it before its first call.
pub const ENTRY: Routine = Routine {
    symbol: "entry",
    parts: &[
        (When::EnteredAtEl1, &[SCTLR_EL1]),
        (When::EnteredAtEl2, &[Step::System(System::SCTLR_EL2)]),
        // The second after VBAR.
        (When::Always, &[ISB, ISB]),
    ],
};

/// `head::secondary`, all of it before its first call.
pub const SECONDARY_ENTRY: Routine = Routine {
    symbol: "secondary_entry",
    parts: ENTRY.parts,
};

/// `head::el2`.
pub const SETUP_EL2: Routine = Routine {
    symbol: "setup_el2",
    parts: &[
        // Between ICC_SRE_EL2's writing and its reading.
        (When::Untold, &[ISB]),
        (
            When::Vhe,
            &[
                ISB,
                SCTLR_EL1,
                ISB,
                Step::System(System::ALLE2),
                DSB_NSH,
                ISB,
            ],
        ),
        (
            When::NoVhe,
            &[
                ISB,
                Step::System(System::ALLE1),
                Step::System(System::ALLE2),
                DSB_NSH,
                ISB,
                SCTLR_EL1,
            ],
        ),
    ],
};

/// `head::run_level`.
pub const SETUP_RUN_LEVEL: Routine = Routine {
    symbol: "setup_run_level",
    parts: &[
        // TCR2_EL1 (3 0 2 0 3), to what a CPU without it does.
        (When::Untold, &[Step::System(System(3 << 14 | 2 << 7 | 3))]),
        (When::Always, &[ISB]),
    ],
};

/// `head::relocate`.
pub const APPLY_RELOCATIONS: Routine = Routine {
    symbol: "apply_relocations",
    parts: &[],
};

/// `head::cache`.
pub const CLEAN: Routine = Routine {
    symbol: "dcache_clean_poc",
    parts: &[(When::Always, &[Step::System(System::DC_CVAC), DSB_SY])],
};

/// `head::cache`.
pub const CLEAN_AND_INVALIDATE: Routine = Routine {
    symbol: "dcache_clean_inval_poc",
    parts: &[(When::Always, &[Step::System(System::DC_CIVAC), DSB_SY])],
};

/// `head::cache`.
pub const INVALIDATE: Routine = Routine {
    symbol: "dcache_inval_poc",
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
            Step::System(System::TTBR0_EL1),
            Step::System(System::TTBR1_EL1),
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
        (When::Leaving, &[Step::System(System::TTBR0_EL1), ISB]),
        (When::Returning, &[Step::System(System::TTBR0_EL1), ISB]),
        (When::Returning, &EMPTY_TLB),
    ],
};

/// `head::parked`, in the identity map.
pub const PARK_CODE: Routine = Routine {
    symbol: "park_identity_code",
    parts: &[
        (When::Leaving, &[Step::System(System::TTBR1_EL1), ISB]),
        (When::Leaving, &EMPTY_TLB),
        // Between AT and the reading of PAR.
        (When::Untold, &[ISB]),
        (When::Returning, &[Step::System(System::TTBR1_EL1), ISB]),
        (When::Returning, &EMPTY_TLB),
    ],
};

/// All of them, for the check.
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
