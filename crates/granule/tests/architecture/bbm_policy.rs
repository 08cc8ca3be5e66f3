//! The level of FEAT_BBM that the policy chooses for a system: the table of situations, as ID
//! registers.

use granule::arch::CpuFeatures;
use granule::arch::bbm::BbmLevel;
use granule::arch::bbm_policy::{Decision, KNOWN, SystemLimits, Why};
use granule::arch::errata::Errata;

const LEVELS: [BbmLevel; 4] = [
    BbmLevel::Level0,
    BbmLevel::Level1,
    BbmLevel::Level2,
    BbmLevel::Level3,
];

const SYSTEM: SystemLimits = SystemLimits {
    limit: BbmLevel::Level3,
    handles_conflicts: true,
    forced: Errata::NONE,
};

/// A CPU with this number in ID_AA64MMFR2_EL1.BBM (bits 55:52), all other bits of it set.
fn cpu(midr: u64, bbm: u64) -> CpuFeatures {
    CpuFeatures {
        midr,
        mmfr2: !(0xf << 52) | bbm << 52,
        ..CpuFeatures::NONE
    }
}

/// MIDR of an Arm CPU.
const fn arm(part: u64, variant: u64, revision: u64) -> u64 {
    0x41 << 24 | variant << 20 | 0xf << 16 | part << 4 | revision
}

const PLAIN: u64 = arm(0xd4f, 0, 1);

fn one(midr: u64, bbm: u64, system: &SystemLimits) -> (u32, Why) {
    of(&[cpu(midr, bbm)], system)
}

fn of(cpus: &[CpuFeatures], system: &SystemLimits) -> (u32, Why) {
    let Decision { level, why } = system.decide(cpus.iter().copied().enumerate());
    (level as u32, why)
}

/// The CPUs of the list, by MIDR: the first revision that is in it, and whether the one before is
/// too. From the vendors' part numbers.
const LISTED: [(&str, u64, Option<u64>); 15] = [
    ("Cortex-A520AE", arm(0xd88, 0, 0), None),
    ("Cortex-A715", arm(0xd4d, 0, 0), None),
    ("Cortex-A720AE", arm(0xd89, 0, 0), None),
    ("Cortex-A725", arm(0xd87, 0, 0), None),
    ("Cortex-X4", arm(0xd82, 0, 3), Some(arm(0xd82, 0, 2))),
    ("Neoverse-N3", arm(0xd8e, 0, 0), None),
    ("Neoverse-V3", arm(0xd84, 0, 2), Some(arm(0xd84, 0, 1))),
    ("Neoverse-V3AE", arm(0xd83, 0, 2), Some(arm(0xd83, 0, 1))),
    ("C1-Nano", arm(0xd8a, 0, 0), None),
    ("C1-Pro", arm(0xd8b, 0, 0), None),
    ("C1-Ultra", arm(0xd8c, 1, 1), Some(arm(0xd8c, 1, 0))),
    ("C1-Premium", arm(0xd90, 1, 1), Some(arm(0xd90, 1, 0))),
    ("Olympus", 0x4e0f_0100, None),
    ("AmpereOne", 0xc00f_ac30, None),
    ("AmpereOne A", 0xc00f_ac40, None),
];

fn known_name(why: Why) -> Option<&'static str> {
    match why {
        Why::KnownCpu(known) => Some(known.name),
        _ => None,
    }
}

#[test]
fn listed_cpus_with_level_2_count_as_level_3() {
    assert_eq!(KNOWN.len(), LISTED.len());
    let system = SystemLimits {
        handles_conflicts: false,
        ..SYSTEM
    };
    for (name, first, before) in LISTED {
        let (level, why) = one(first, 2, &system);
        assert_eq!((level, known_name(why)), (3, Some(name)), "{name}");
        // And every later one: variant 15, revision 15.
        let (level, why) = one(first | 0xf0_000f, 2, &system);
        assert_eq!((level, known_name(why)), (3, Some(name)), "{name}");
        if let Some(before) = before {
            let (level, why) = one(before, 2, &system);
            assert_eq!((level, known_name(why)), (0, None), "{name} too early");
        }
        // The list raises no CPU with a level below 2, and is not consulted for one with level 3.
        assert_eq!(one(first, 0, &SYSTEM), (0, Why::NoRelaxation));
        assert_eq!(one(first, 1, &SYSTEM), (1, Why::ConflictsHandled));
        assert_eq!(one(first, 3, &SYSTEM), (3, Why::Level3));
        // The same part number of nobody's.
        let (_, why) = one(first & !(0xff << 24), 2, &system);
        assert_eq!(known_name(why), None, "{name}");
    }
    let errata: Vec<_> = KNOWN.iter().filter_map(|k| k.erratum).collect();
    assert_eq!(errata, ["3683289"; 2]);
}

#[test]
fn other_cpus_have_what_they_say_if_aborts_are_handled() {
    for bbm in 0..16 {
        let expected = match bbm {
            0 => (0, Why::NoRelaxation),
            1 | 2 => (bbm as u32, Why::ConflictsHandled),
            _ => (3, Why::Level3),
        };
        assert_eq!(one(PLAIN, bbm, &SYSTEM), expected, "{bbm}");
        let system = SystemLimits {
            handles_conflicts: false,
            ..SYSTEM
        };
        let expected = match bbm {
            1 | 2 => (0, Why::ConflictsNotHandled(LEVELS[bbm as usize])),
            _ => expected,
        };
        assert_eq!(one(PLAIN, bbm, &system), expected, "{bbm}");
    }
}

#[test]
fn an_erratum_stands_above_what_the_cpu_says() {
    for part in [0xd8c, 0xd90] {
        for bbm in 1..4 {
            let (level, why) = one(arm(part, 1, 0), bbm, &SYSTEM);
            assert_eq!(level, 0);
            assert!(matches!(why, Why::Erratum(name) if name.ends_with("3683289")));
        }
    }
    let mut forced = Errata::NONE;
    assert!(forced.force(b"c1-ultra-3683289"));
    let system = SystemLimits { forced, ..SYSTEM };
    let (level, why) = one(PLAIN, 3, &system);
    assert_eq!((level, why), (0, Why::Erratum("c1-ultra-3683289")));
    assert_eq!(one(PLAIN, 0, &system), (0, Why::NoRelaxation));
}

#[test]
fn the_command_line_lowers_and_never_raises() {
    for limit in LEVELS {
        let system = SystemLimits { limit, ..SYSTEM };
        for bbm in 0..4_u64 {
            let own = one(PLAIN, bbm, &SYSTEM);
            let expected = if own.0 > limit as u32 {
                (limit as u32, Why::Forbidden(LEVELS[bbm as usize]))
            } else {
                own
            };
            assert_eq!(one(PLAIN, bbm, &system), expected, "{bbm} {limit:?}");
        }
    }
    // A known CPU counts with what it is taken to have.
    let system = SystemLimits {
        limit: BbmLevel::Level2,
        ..SYSTEM
    };
    let forbidden = Why::Forbidden(BbmLevel::Level3);
    assert_eq!(one(arm(0xd84, 0, 2), 2, &system), (2, forbidden));
}

#[test]
fn mixed_systems_have_the_weakest() {
    let known = cpu(arm(0xd84, 0, 2), 2);
    let [zero, one, two, three] = [0, 1, 2, 3].map(|bbm| cpu(PLAIN, bbm));
    let early = cpu(arm(0xd8c, 1, 0), 2);
    // Alike in level, if not in kind: the first one's reason.
    assert_eq!(of(&[three, known], &SYSTEM), (3, Why::Level3));
    let (level, why) = of(&[known, three, known], &SYSTEM);
    assert_eq!((level, known_name(why)), (3, Some("Neoverse-V3")));
    assert_eq!(of(&[two, two], &SYSTEM), (2, Why::ConflictsHandled));
    // Wherever the weakest is, and the first of them if there are several.
    for (cpus, level, number) in [
        (&[three, two, three][..], 2, 1),
        (&[two, three], 2, 0),
        (&[known, two], 2, 1),
        (&[two, known, zero, zero], 0, 2),
        (&[zero, zero, known], 0, 0),
        (&[three, one, two, one], 1, 1),
        (&[known, early], 0, 1),
    ] {
        assert_eq!(of(cpus, &SYSTEM), (level, Why::Weakest(number)), "{cpus:?}");
    }
    // Where aborts are not handled a level 2 is a level 0.
    let system = SystemLimits {
        handles_conflicts: false,
        ..SYSTEM
    };
    assert_eq!(of(&[three, two], &system), (0, Why::Weakest(1)));
    assert_eq!(of(&[known, three], &system).0, 3);
    // The limit is for all, and is the reason only where it lowers.
    let system = SystemLimits {
        limit: BbmLevel::Level1,
        ..SYSTEM
    };
    let forbidden = Why::Forbidden(BbmLevel::Level2);
    assert_eq!(of(&[three, two], &system), (1, forbidden));
    assert_eq!(of(&[three, zero], &system), (0, Why::Weakest(1)));
    // Nobody is trusted with nothing.
    assert_eq!(of(&[], &SYSTEM), (0, Why::NoRelaxation));
}

#[test]
fn only_from_level_2_on_blocks_are_split() {
    let splits = |bbm| SYSTEM.decide([(0, cpu(PLAIN, bbm))]).splits_blocks();
    assert_eq!([0, 1, 2, 3].map(splits), [false, false, true, true]);
}

#[test]
fn the_reason_is_one_line_for_people() {
    let text = |cpus: &[CpuFeatures], system: &SystemLimits| {
        system.decide(cpus.iter().copied().enumerate()).to_string()
    };
    let low = SystemLimits {
        limit: BbmLevel::Level1,
        ..SYSTEM
    };
    let known = cpu(arm(0xd84, 0, 2), 2);
    for (text, expected) in [
        (
            text(&[known], &SYSTEM),
            "BBM level 3: the CPU reports 2, but is a Neoverse-V3 and takes no TLB conflict aborts",
        ),
        (
            text(&[known], &low),
            "BBM level 1: arm64.bbm= forbids more, the CPUs have 3",
        ),
        (
            text(&[known, cpu(PLAIN, 0)], &SYSTEM),
            "BBM level 0: CPU 1 has no more, others have",
        ),
        (
            text(&[cpu(PLAIN, 2)], &SYSTEM),
            "BBM level 2: TLB conflict aborts are handled",
        ),
    ] {
        assert_eq!(text, expected);
    }
}
