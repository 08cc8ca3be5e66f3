//! Errata of CPUs that touch translation, as data: a table by MIDR range and what to do.
//!
//! To add one: a row in [`TABLE`], and if what it asks for is new a [`Workaround`], which then
//! must be applied where such things are issued (the TLB and barrier code in
//! `table::flush`, the MMU's switch in a kernel). Nothing else may look at
//! a MIDR for an erratum's sake.

/// What an erratum makes the code do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Workaround {
    /// Issue each broadcast TLBI and its DSB twice.
    RepeatTlbi,
    /// Trust no level of FEAT_BBM: replacing a live block or contiguous entry in place may
    /// livelock.
    NoBbm,
    /// Leave TCR.HD off: the hardware's dirty state is not reliable.
    NoHardwareDirty,
    /// Break before make (with TLBI) when a user page goes from executable to not.
    BreakOnExecuteRemoval,
    /// An ISB right before the write that clears SCTLR.M.
    BarrierBeforeMmuOff,
    /// No non-global kernel mappings.
    NoNonGlobalKernel,
    /// TCR.NFD0 and NFD1 stay clear.
    NoFaultDisableClear,
}

/// One erratum on one range of CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Erratum {
    /// The name used in logs and by `arm64.errata=`: vendor's CPU and number.
    pub name: &'static str,
    /// MIDR implementer.
    pub implementer: u8,
    /// MIDR part number.
    pub part: u16,
    /// The first affected variant and revision, as `variant << 4 | revision` (r1p2 is 0x12).
    pub first: u8,
    /// The last affected one.
    pub last: u8,
    /// What it takes.
    pub workaround: Workaround,
}

const ARM: u8 = 0x41;
const CAVIUM: u8 = 0x43;
const FUJITSU: u8 = 0x46;
const QUALCOMM: u8 = 0x51;
const ANY: u8 = 0xff;

/// The errata known here.
pub const TABLE: &[Erratum] = &[
    row(
        "cortex-a76-1286807",
        ARM,
        0xd0b,
        0x00,
        0x30,
        Workaround::RepeatTlbi,
    ),
    row(
        "cortex-a510-2441009",
        ARM,
        0xd46,
        0x00,
        0x11,
        Workaround::RepeatTlbi,
    ),
    row(
        "falkor-1009",
        QUALCOMM,
        0xc00,
        0x00,
        0x00,
        Workaround::RepeatTlbi,
    ),
    row(
        "kryo4g-1286807",
        QUALCOMM,
        0x804,
        0x0c,
        0xfe,
        Workaround::RepeatTlbi,
    ),
    row(
        "c1-ultra-3683289",
        ARM,
        0xd8c,
        0x00,
        0x10,
        Workaround::NoBbm,
    ),
    row(
        "c1-premium-3683289",
        ARM,
        0xd90,
        0x00,
        0x10,
        Workaround::NoBbm,
    ),
    row(
        "cortex-a55-1024718",
        ARM,
        0xd05,
        0x00,
        0x20,
        Workaround::NoHardwareDirty,
    ),
    row(
        "cortex-a510-2051678",
        ARM,
        0xd46,
        0x00,
        0x02,
        Workaround::NoHardwareDirty,
    ),
    row(
        "kryo4s-1024718",
        QUALCOMM,
        0x805,
        0xdf,
        0xfe,
        Workaround::NoHardwareDirty,
    ),
    row(
        "cortex-a715-2645198",
        ARM,
        0xd4d,
        0x00,
        0x10,
        Workaround::BreakOnExecuteRemoval,
    ),
    row(
        "falkor-1041",
        QUALCOMM,
        0xc00,
        0x00,
        ANY,
        Workaround::BarrierBeforeMmuOff,
    ),
    row(
        "thunderx-27456",
        CAVIUM,
        0x0a1,
        0x00,
        0x11,
        Workaround::NoNonGlobalKernel,
    ),
    row(
        "a64fx-010001",
        FUJITSU,
        0x001,
        0x00,
        0x10,
        Workaround::NoFaultDisableClear,
    ),
];

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
        implementer,
        part,
        first,
        last,
        workaround,
    }
}

impl Erratum {
    /// Whether the CPU with this MIDR has it.
    #[must_use]
    pub const fn affects(&self, midr: u64) -> bool {
        let implementer = (midr >> 24) as u8;
        let part = ((midr >> 4) & 0xfff) as u16;
        let version = (((midr >> 20) & 0xf) << 4 | (midr & 0xf)) as u8;
        implementer == self.implementer
            && part == self.part
            && version >= self.first
            && version <= self.last
    }
}

/// A set of errata: rows of [`TABLE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errata(u64);

impl Errata {
    /// None at all.
    pub const NONE: Self = Self(0);

    /// Those of the CPU with this MIDR.
    #[must_use]
    pub fn of_cpu(midr: u64) -> Self {
        let mut set = 0;
        for (index, erratum) in TABLE.iter().enumerate() {
            if erratum.affects(midr) {
                set |= 1 << index;
            }
        }
        Self(set)
    }

    /// Adds the erratum called `name`, as `arm64.errata=` does for tests; false if there is none
    /// of that name.
    pub fn force(&mut self, name: &[u8]) -> bool {
        for (index, erratum) in TABLE.iter().enumerate() {
            if erratum.name.as_bytes() == name {
                self.0 |= 1 << index;
                return true;
            }
        }
        false
    }

    /// Both sets together, as for a machine of several kinds of CPU.
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

    /// Whether any of them asks for `workaround`.
    #[must_use]
    pub fn needs(self, workaround: Workaround) -> bool {
        self.iter().any(|erratum| erratum.workaround == workaround)
    }
}
const _: () = assert!(TABLE.len() <= 64, "Errata is a 64-bit set");
