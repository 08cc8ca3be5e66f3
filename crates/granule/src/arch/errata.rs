//! CPU errata that affect translation: a table of MIDR ranges and workarounds.
//!
//! To add an erratum, add a row to [`TABLE`]. If it needs a new [`Workaround`], apply that where
//! the affected instructions are issued: in `table::flush`, or where a kernel switches the MMU. No
//! other code may test a MIDR for an erratum.

use super::midr::{ARM, CAVIUM, FUJITSU, MICROSOFT, MidrRange, NVIDIA, QUALCOMM};
use Workaround::{
    BarrierBeforeMmuOff, BreakOnExecuteRemoval, NoBbm, NoFaultDisableClear, NoHardwareDirty,
    NoNonGlobalKernel, RepeatTlbi, RepeatTlbiAlone,
};

/// The workaround for an erratum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Workaround {
    /// Issue each broadcast TLBI and its DSB twice, because accesses of *other* CPUs may outlive
    /// its completion. A CPU that runs alone needs no repetition.
    RepeatTlbi,
    /// As `RepeatTlbi`, also while no other CPU runs: the DSB itself may complete
    /// before the broadcast TLBI. Local TLBIs (not IS) are not affected.
    RepeatTlbiAlone,
    /// Treat FEAT_BBM as level 0: replacing a live block or contiguous entry in place may livelock.
    NoBbm,
    /// Leave TCR.HD clear: the hardware's dirty state is not reliable.
    NoHardwareDirty,
    /// Break before make (with TLBI) when a user page goes from executable to not
    /// ([`Settings::break_execute`](crate::space::Settings::break_execute)).
    BreakOnExecuteRemoval,
    /// Issue an ISB right before the write that clears SCTLR.M.
    BarrierBeforeMmuOff,
    /// Make no non-global kernel mappings.
    NoNonGlobalKernel,
    /// Leave TCR.NFD0 and TCR.NFD1 clear.
    NoFaultDisableClear,
}

/// One erratum on one range of CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Erratum {
    /// The name in logs and in `arm64.errata=`: the CPU and the vendor's number.
    pub name: &'static str,
    /// The affected CPUs.
    pub cpus: MidrRange,
    /// The workaround.
    pub workaround: Workaround,
}

/// All known errata.
pub const TABLE: &[Erratum] = &[
    row("cortex-a76-1286807", ARM, 0xd0b, 0x00, 0x30, RepeatTlbi),
    row("kryo4g-1286807", QUALCOMM, 0x804, 0xce, 0xfe, RepeatTlbi),
    row("cortex-a510-2441009", ARM, 0xd46, 0x00, 0x11, RepeatTlbi),
    every("cortex-a55-2441007", ARM, 0xd05, RepeatTlbi),
    // The DSB after a broadcast (IS) TLBI may complete early, even while no other CPU runs. The
    // entry code's TLBIs for its own CPU (VMALLE1 and ALLE2 with DSB NSH) are not affected.
    row("falkor-1009", QUALCOMM, 0xc00, 0x00, 0x00, RepeatTlbiAlone),
    // CVE-2025-10263: memory accesses may outlive the completion of a broadcast TLBI.
    every("cortex-a76-4193800", ARM, 0xd0b, RepeatTlbi),
    every("cortex-a76ae-4193801", ARM, 0xd0e, RepeatTlbi),
    every("cortex-a77-4193798", ARM, 0xd0d, RepeatTlbi),
    every("cortex-a78-4193791", ARM, 0xd41, RepeatTlbi),
    every("cortex-a78ae-4193793", ARM, 0xd42, RepeatTlbi),
    every("cortex-a78c-4193794", ARM, 0xd4b, RepeatTlbi),
    every("cortex-a710-4193788", ARM, 0xd47, RepeatTlbi),
    every("cortex-x1-4193791", ARM, 0xd44, RepeatTlbi),
    every("cortex-x1c-4193792", ARM, 0xd4c, RepeatTlbi),
    every("cortex-x2-4193788", ARM, 0xd48, RepeatTlbi),
    every("cortex-x3-4193786", ARM, 0xd4e, RepeatTlbi),
    every("cortex-x4-4118414", ARM, 0xd82, RepeatTlbi),
    every("cortex-x925-4193781", ARM, 0xd85, RepeatTlbi),
    every("neoverse-n1-4193800", ARM, 0xd0c, RepeatTlbi),
    every("neoverse-n2-4193789", ARM, 0xd49, RepeatTlbi),
    every("neoverse-v1-4193790", ARM, 0xd40, RepeatTlbi),
    every("neoverse-v2-4193787", ARM, 0xd4f, RepeatTlbi),
    every("neoverse-v3-4193784", ARM, 0xd84, RepeatTlbi),
    every("neoverse-v3ae-4193784", ARM, 0xd83, RepeatTlbi),
    every("c1-ultra-4193780", ARM, 0xd8c, RepeatTlbi),
    every("c1-premium-4193780", ARM, 0xd90, RepeatTlbi),
    every("olympus-1029", NVIDIA, 0x010, RepeatTlbi),
    every("cobalt100-4193789", MICROSOFT, 0xd49, RepeatTlbi),
    row("c1-ultra-3683289", ARM, 0xd8c, 0x00, 0x10, NoBbm),
    row("c1-premium-3683289", ARM, 0xd90, 0x00, 0x10, NoBbm),
    every("cortex-a55-1024718", ARM, 0xd05, NoHardwareDirty),
    row(
        "kryo4s-1024718",
        QUALCOMM,
        0x805,
        0xde,
        0xde,
        NoHardwareDirty,
    ),
    row(
        "cortex-a510-2051678",
        ARM,
        0xd46,
        0x00,
        0x02,
        NoHardwareDirty,
    ),
    row(
        "cortex-a715-2645198",
        ARM,
        0xd4d,
        0x00,
        0x10,
        BreakOnExecuteRemoval,
    ),
    every("falkor-1041", QUALCOMM, 0xc00, BarrierBeforeMmuOff),
    row(
        "thunderx-27456",
        CAVIUM,
        0x0a1,
        0x00,
        0x11,
        NoNonGlobalKernel,
    ),
    row(
        "thunderx81-27456",
        CAVIUM,
        0x0a2,
        0x00,
        0x00,
        NoNonGlobalKernel,
    ),
    row(
        "a64fx-010001",
        FUJITSU,
        0x001,
        0x00,
        0x10,
        NoFaultDisableClear,
    ),
];

/// An erratum of every variant and revision.
const fn every(name: &'static str, implementer: u8, part: u16, workaround: Workaround) -> Erratum {
    row(name, implementer, part, 0x00, 0xff, workaround)
}

const fn row(
    name: &'static str,
    implementer: u8,
    part: u16,
    first: u8,
    last: u8,
    workaround: Workaround,
) -> Erratum {
    Erratum {
        name,
        cpus: MidrRange {
            implementer,
            part,
            first,
            last,
        },
        workaround,
    }
}

/// A set of errata: rows of [`TABLE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errata(u64);

impl Errata {
    /// No errata.
    pub const NONE: Self = Self(0);

    /// The errata of the CPU with this MIDR.
    #[must_use]
    pub fn of_cpu(midr: u64) -> Self {
        let mut set = 0;
        for (index, erratum) in TABLE.iter().enumerate() {
            if erratum.cpus.contains(midr) {
                set |= 1 << index;
            }
        }
        Self(set)
    }

    /// Adds the erratum called `name`, as `arm64.errata=` does for tests. Returns false if no
    /// erratum has that name.
    pub fn force(&mut self, name: &[u8]) -> bool {
        for (index, erratum) in TABLE.iter().enumerate() {
            if erratum.name.as_bytes() == name {
                self.0 |= 1 << index;
                return true;
            }
        }
        false
    }

    /// The union of both sets, for a machine with several kinds of CPU.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The errata in the set, in the table's order.
    pub fn iter(self) -> impl Iterator<Item = &'static Erratum> {
        TABLE
            .iter()
            .enumerate()
            .filter(move |(index, _)| self.0 >> index & 1 != 0)
            .map(|(_, e)| e)
    }

    /// Whether any erratum in the set needs `workaround`.
    #[must_use]
    pub fn needs(self, workaround: Workaround) -> bool {
        self.iter().any(|erratum| erratum.workaround == workaround)
    }

    /// Whether broadcast TLBIs must be repeated. `alone` says that no other CPU runs.
    #[must_use]
    pub fn repeats_tlbi(self, alone: bool) -> bool {
        self.needs(Workaround::RepeatTlbiAlone) || (!alone && self.needs(Workaround::RepeatTlbi))
    }
}
const _: () = assert!(TABLE.len() <= 64, "Errata is a 64-bit set");
