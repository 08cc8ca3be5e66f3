//! How far the CPUs of a system are trusted to change the sizes of live leaves in place.
//!
//! One pure function, [`decide`], over what the ID registers of all CPUs say, what is known of
//! some of them by name, and what the system can do about a TLB conflict abort. Its answer is the
//! level that [`classify`](super::bbm::classify) may be asked with, and why it is that one.
//!
//! To add a CPU that has level 2 and takes no TLB conflict abort: a row in [`KNOWN`]. A CPU that
//! must not be trusted although it says it can be is an erratum
//! ([`NoBbm`](super::errata::Workaround::NoBbm)).

use super::bbm::BbmLevel;
use super::errata::{Errata, Workaround};
use super::features::CpuFeatures;
use super::midr::{AMPERE, ARM, MidrRange, NVIDIA};
use core::fmt;

/// CPUs that say level 2 and do what level 3 promises: no TLB conflict abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The CPU's name.
    pub name: &'static str,
    /// From which revision on.
    pub cpus: MidrRange,
    /// The erratum that earlier revisions have, where it has a number.
    pub erratum: Option<&'static str>,
}

/// The CPUs known to take no TLB conflict abort. The list allows: a CPU that is in doubt is not in
/// it, and none that says level 0 or 1 is lifted by it.
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
    // Earlier ones may livelock.
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

/// What counts besides the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// No level above this one, as the command line says.
    pub limit: BbmLevel,
    /// Whether a TLB conflict abort is dealt with, by code that needs nothing that is ever split.
    pub handles_conflicts: bool,
    /// Errata that every CPU is to be taken to have.
    pub forced: Errata,
}

/// Why a level is the one to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The ID registers promise that no TLB conflict abort is taken.
    Level3,
    /// They promise less, but the CPU is known.
    KnownCpu(&'static Known),
    /// A TLB conflict abort is possible, and is handled.
    ConflictsHandled,
    /// It is possible, and is not handled. The CPU's own level.
    ConflictsNotHandled(BbmLevel),
    /// The CPU changes no size in place.
    NoRelaxation,
    /// The CPU has an erratum because of which it is not trusted.
    Erratum(&'static str),
    /// The command line forbids more; what it would be otherwise.
    Forbidden(BbmLevel),
    /// The CPUs differ, and all must live with what the one of this number has.
    Weakest(usize),
}

/// The level to use, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The level.
    pub level: BbmLevel,
    /// Why.
    pub why: Why,
}

impl Decision {
    /// Whether a live block may become a table in place, and back: a map of blocks can then be
    /// split when permissions of a page change.
    #[must_use]
    pub const fn splits_blocks(&self) -> bool {
        self.level.number() >= BbmLevel::Level2.number()
    }
}

/// How far a system of these CPUs, with their numbers, is trusted. Without any CPU: not at all.
#[must_use]
pub fn decide(cpus: impl IntoIterator<Item = (usize, CpuFeatures)>, system: &System) -> Decision {
    // The weakest so far, the first of those that are as weak, and whether another has more.
    let mut weakest: Option<(usize, Decision)> = None;
    let mut differ = false;
    for (number, cpu) in cpus {
        let own = of_cpu(&cpu, system);
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
    if found.level > system.limit {
        return Decision {
            level: system.limit,
            why: Why::Forbidden(found.level),
        };
    }
    found
}

/// How far one CPU is trusted, whatever the limit.
fn of_cpu(cpu: &CpuFeatures, system: &System) -> Decision {
    let decision = |level, why| Decision { level, why };
    let level = BbmLevel::from_number(cpu.bbm_level());
    if level == BbmLevel::Level0 {
        return decision(BbmLevel::Level0, Why::NoRelaxation);
    }
    let errata = system.forced.union(Errata::of_cpu(cpu.midr()));
    let no_bbm = errata
        .iter()
        .find(|erratum| erratum.workaround == Workaround::NoBbm);
    if let Some(erratum) = no_bbm {
        return decision(BbmLevel::Level0, Why::Erratum(erratum.name));
    }
    if level == BbmLevel::Level3 {
        return decision(level, Why::Level3);
    }
    let known = KNOWN.iter().find(|known| known.cpus.contains(cpu.midr()));
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
                "the CPU says 2, but is a {} and takes no TLB conflict aborts",
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
