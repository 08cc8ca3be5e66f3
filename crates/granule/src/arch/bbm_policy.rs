//! The BBM policy: which level of FEAT_BBM a system may use on live tables.
//!
//! One pure function, [`SystemLimits::decide`], combines the ID registers of all CPUs, a list of CPUs known by
//! name, and the system's handling of TLB conflict aborts. Its answer is the level for
//! changes of live tables, with the reason.
//!
//! To add a CPU that has level 2 and takes no TLB conflict abort, add a row to [`KNOWN`]. A CPU
//! whose ID register promises too much is an erratum ([`NoBbm`](super::errata::Workaround::NoBbm)).

use super::bbm::BbmLevel;
use super::errata::{Errata, Workaround};
use super::features::CpuFeatures;
use super::midr::{AMPERE, ARM, MidrRange, NVIDIA};
use core::fmt;

/// CPUs that report level 2 but keep the promise of level 3: no TLB conflict abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The CPU's name.
    pub name: &'static str,
    /// The revisions that keep the promise.
    pub cpus: MidrRange,
    /// The erratum of earlier revisions, if it has a number.
    pub erratum: Option<&'static str>,
}

/// The CPUs known to take no TLB conflict abort. A doubtful CPU is not in the list. The list does
/// not raise a CPU that reports level 0 or 1.
pub const KNOWN: &[Known] = &[
    every("Cortex-A520AE", ARM, 0xd88),
    every("Cortex-A715", ARM, 0xd4d),
    every("Cortex-A720AE", ARM, 0xd89),
    every("Cortex-A725", ARM, 0xd87),
    from("Cortex-X4", ARM, 0xd82, 0x03, None),
    every("Neoverse-N3", ARM, 0xd8e),
    from("Neoverse-V3", ARM, 0xd84, 0x02, None),
    from("Neoverse-V3AE", ARM, 0xd83, 0x02, None),
    every("C1-Nano", ARM, 0xd8a),
    every("C1-Pro", ARM, 0xd8b),
    // Earlier revisions may livelock.
    from("C1-Ultra", ARM, 0xd8c, 0x11, Some("3683289")),
    from("C1-Premium", ARM, 0xd90, 0x11, Some("3683289")),
    every("Olympus", NVIDIA, 0x010),
    every("AmpereOne", AMPERE, 0xac3),
    every("AmpereOne A", AMPERE, 0xac4),
];

const fn every(name: &'static str, implementer: u8, part: u16) -> Known {
    from(name, implementer, part, 0x00, None)
}

const fn from(
    name: &'static str,
    implementer: u8,
    part: u16,
    first: u8,
    erratum: Option<&'static str>,
) -> Known {
    Known {
        name,
        cpus: MidrRange {
            implementer,
            part,
            first,
            last: 0xff,
        },
        erratum,
    }
}

/// The system's part in the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemLimits {
    /// The highest level that the command line allows.
    pub limit: BbmLevel,
    /// Whether the system handles TLB conflict aborts, with code and data that are never split.
    pub handles_conflicts: bool,
    /// Errata that every CPU is assumed to have.
    pub forced: Errata,
}

impl SystemLimits {
    /// A system that handles TLB conflict aborts, and adds no limit and no erratum.
    pub const HANDLES_CONFLICTS: Self = Self {
        limit: BbmLevel::Level3,
        handles_conflicts: true,
        forced: Errata::NONE,
    };

    /// The level for a system of these CPUs, given with their numbers. Without CPUs it is level 0.
    #[must_use]
    pub fn decide(&self, cpus: impl IntoIterator<Item = (usize, CpuFeatures)>) -> Decision {
        // The first of the weakest CPUs so far, and whether some CPU has a higher level.
        let mut weakest: Option<(usize, Decision)> = None;
        let mut differ = false;
        for (number, cpu) in cpus {
            let own = of_cpu(&cpu, self);
            match weakest {
                Some((_, found)) if own.level >= found.level => differ |= own.level != found.level,
                found => {
                    differ |= found.is_some();
                    weakest = Some((number, own));
                }
            }
        }
        let found = match weakest {
            Some((number, found)) if differ => Decision {
                level: found.level,
                why: Why::Weakest(number),
            },
            Some((_, found)) => found,
            None => Decision {
                level: BbmLevel::Level0,
                why: Why::NoRelaxation,
            },
        };
        if found.level > self.limit {
            return Decision {
                level: self.limit,
                why: Why::Forbidden(found.level),
            };
        }
        found
    }
}

/// The reason for a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The ID register promises no TLB conflict aborts.
    Level3,
    /// The ID register promises less, but the CPU is in [`KNOWN`].
    KnownCpu(&'static Known),
    /// A TLB conflict abort is possible, and the system handles it.
    ConflictsHandled,
    /// A TLB conflict abort is possible, and the system does not handle it. Holds the CPU's own
    /// level.
    ConflictsNotHandled(BbmLevel),
    /// The CPU allows no change of size in place.
    NoRelaxation,
    /// An erratum of the CPU, given by its name, forbids every level above 0.
    Erratum(&'static str),
    /// The command line forbids a higher level. Holds the level without that limit.
    Forbidden(BbmLevel),
    /// The CPUs differ. Holds the number of the weakest one, whose level all use.
    Weakest(usize),
}

/// The level to use, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The level.
    pub level: BbmLevel,
    /// The reason.
    pub why: Why,
}

impl Decision {
    /// Whether a live block may become a table in place, and back. A map of blocks can then be
    /// split when the permissions of a page change.
    #[must_use]
    pub const fn splits_blocks(&self) -> bool {
        self.level.number() >= BbmLevel::Level2.number()
    }
}

/// The level for one CPU, before the command line's limit.
fn of_cpu(cpu: &CpuFeatures, system: &SystemLimits) -> Decision {
    let decision = |level, why| Decision { level, why };
    let level = BbmLevel::from_number(cpu.bbm_level());
    if level == BbmLevel::Level0 {
        return decision(BbmLevel::Level0, Why::NoRelaxation);
    }
    let errata = system.forced.union(Errata::of_cpu(cpu.midr));
    let no_bbm = errata
        .iter()
        .find(|erratum| erratum.workaround == Workaround::NoBbm);
    if let Some(erratum) = no_bbm {
        return decision(BbmLevel::Level0, Why::Erratum(erratum.name));
    }
    if level == BbmLevel::Level3 {
        return decision(level, Why::Level3);
    }
    let known = KNOWN.iter().find(|known| known.cpus.contains(cpu.midr));
    match known {
        Some(known) if level == BbmLevel::Level2 => {
            decision(BbmLevel::Level3, Why::KnownCpu(known))
        }
        _ if system.handles_conflicts => decision(level, Why::ConflictsHandled),
        _ => decision(BbmLevel::Level0, Why::ConflictsNotHandled(level)),
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BBM level {}: ", self.level.number())?;
        match self.why {
            Why::Level3 => f.write_str("the CPU takes no TLB conflict aborts"),
            Why::KnownCpu(known) => write!(
                f,
                "the CPU reports 2, but is a {} and takes no TLB conflict aborts",
                known.name
            ),
            Why::ConflictsHandled => f.write_str("TLB conflict aborts are handled"),
            Why::ConflictsNotHandled(level) => write!(
                f,
                "the CPU has {}, but TLB conflict aborts are not handled",
                level.number()
            ),
            Why::NoRelaxation => f.write_str("the CPU changes no leaf's size in place"),
            Why::Erratum(name) => write!(f, "the CPU has erratum {name}"),
            Why::Forbidden(level) => write!(
                f,
                "arm64.bbm= forbids more, the CPUs have {}",
                level.number()
            ),
            Why::Weakest(cpu) => write!(f, "CPU {cpu} has no more, others have"),
        }
    }
}
