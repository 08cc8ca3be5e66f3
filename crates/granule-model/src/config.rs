//! The configuration of the model: the machine's features, and how strict the rules are.

use std::fmt;

/// An omission on purpose, which is not a violation if the kernel's author
/// declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// An entry is made valid without a barrier, and so are permissions widened: a CPU that does not
    /// see it yet takes a fault, and the kernel's handler finds nothing to do.
    SpuriousFaults,
    /// Addresses of EL2, of EL3, or of a part of the upper half ([`Config::lazy`]) that were unmapped may
    /// stay in TLBs until they are mapped again; their memory is used for something else before. Other addresses of
    /// the upper half may do so while their memory stays mapped for stores in that part.
    LazyUnmap,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::SpuriousFaults, Self::LazyUnmap];

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SpuriousFaults => "spurious-faults",
            Self::LazyUnmap => "lazy-unmap",
        }
    }

    /// The policy with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// A set of policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies(u8);

impl Policies {
    /// No policy: the rules as they are.
    pub const NONE: Self = Self(0);

    /// All policies.
    #[must_use]
    pub fn all() -> Self {
        Policy::ALL.into_iter().fold(Self::NONE, Self::with)
    }

    /// This set and one more policy.
    #[must_use]
    pub const fn with(self, policy: Policy) -> Self {
        Self(self.0 | 1 << policy as u8)
    }

    /// Whether a policy is in the set.
    #[must_use]
    pub const fn has(self, policy: Policy) -> bool {
        self.0 >> policy as u8 & 1 != 0
    }

    /// The set in words: names with commas between them, or `none`.
    #[must_use]
    pub fn from_names(names: &str) -> Option<Self> {
        if names == "none" {
            return Some(Self::NONE);
        }
        names.split(',').try_fold(Self::NONE, |set, name| {
            Some(set.with(Policy::from_name(name)?))
        })
    }

    /// The policies in the set.
    pub fn iter(self) -> impl Iterator<Item = Policy> {
        Policy::ALL
            .into_iter()
            .filter(move |policy| self.has(*policy))
    }
}

impl fmt::Display for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Policy::name).collect();
        if names.is_empty() {
            f.write_str("none")
        } else {
            f.write_str(&names.join(","))
        }
    }
}

/// Features that a machine's CPUs lack, as the first line of a trace names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lacks(u8);

/// A feature's name, and the switch of a configuration that it is.
type Feature = (&'static str, fn(&mut Config) -> &mut bool);

const FEATURES: [Feature; 7] = [
    ("ttl", |config| &mut config.level_hints),
    ("single-tlbi", |config| &mut config.single_tlbi),
    ("lva", |config| &mut config.lva),
    ("lpa2", |config| &mut config.lpa2),
    ("ttst", |config| &mut config.small_tables),
    ("hafdbs", |config| &mut config.hardware_update),
    ("xnx", |config| &mut config.execute_by_privilege),
];

impl Lacks {
    /// No feature is lacking.
    pub const NONE: Self = Self(0);

    /// Reads names with commas between them.
    #[must_use]
    pub fn from_names(names: &str) -> Option<Self> {
        names.split(',').try_fold(Self::NONE, |set, name| {
            let at = FEATURES.iter().position(|(one, _)| *one == name)?;
            Some(Self(set.0 | 1 << at))
        })
    }

    fn features(self) -> impl Iterator<Item = Feature> {
        let all = FEATURES.into_iter().enumerate();
        all.filter_map(move |(at, feature)| (self.0 >> at & 1 != 0).then_some(feature))
    }

    /// A configuration without these features.
    #[must_use]
    pub fn of(self, mut config: Config) -> Config {
        self.features()
            .for_each(|(_, switch)| *switch(&mut config) = false);
        config
    }
}

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.features().map(|(name, _)| name).collect();
        f.write_str(&names.join(","))
    }
}

/// The features of the modelled machine, and how strict the rules are.
///
/// [`Config::default`] is one CPU at BBM level 0: it has every optional feature that allows more
/// forms of tables, and none that allows more changes in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// CPUs, 1 to 64.
    pub cpus: u32,
    /// FEAT_BBM: 0, 1, 2 or 3.
    pub bbm_level: u8,
    /// Bits of physical address (ID_AA64MMFR0_EL1.PARange): 32 to 52. 52 gives 64K descriptors
    /// their extra address bits (FEAT_LPA).
    pub pa_bits: u32,
    /// FEAT_LVA: 52-bit virtual addresses with 64K pages.
    pub lva: bool,
    /// FEAT_LPA2: TCR.DS works for 4K and 16K pages.
    pub lpa2: bool,
    /// FEAT_TTST: address spaces smaller than 25 bits.
    pub small_tables: bool,
    /// FEAT_TTL: bits 47:44 of the operand of a TLBI by address hint at a level. Without it they are ignored.
    pub level_hints: bool,
    /// Whether a broadcast TLBI is complete after its DSB. CPUs with an erratum take any other one, and its DSB,
    /// after that.
    pub single_tlbi: bool,
    /// FEAT_HAFDBS: TCR.HA and TCR.HD work.
    pub hardware_update: bool,
    /// FEAT_XNX: stage 2 allows execution for EL1 and EL0 separately.
    pub execute_by_privilege: bool,
    /// Also reports legal code that leaves more cached than a careful kernel would: making an entry
    /// valid again without an invalidation, relying on a cleared access flag while an entry with
    /// the flag may be cached or walked, and size changes that may raise a TLB conflict abort or come
    /// together with other permissions.
    pub strict: bool,
    /// Whether a TLB holds something unknown until its first invalidation, by its own CPU or, once
    /// that CPU did something, by another. The architecture allows it; tests of operations on tables
    /// that are already in use turn it off.
    pub tlb_unknown_at_reset: bool,
    /// Whether the caches hold unknown lines from before the trace until they are maintained: the
    /// data caches dirty lines, the instruction caches anything. A loader cleans only what it
    /// loaded. A store with the MMU off to a line that was never cleaned or invalidated may then be
    /// lost, and a CPU may turn its MMU on only after an IC.
    pub caches_unknown_at_reset: bool,
    /// Whether an entry may point only to memory that was obtained for tables. `None`: only after
    /// the first [`Obtained`](crate::Event::Obtained).
    pub track_tables: Option<bool>,
    /// Whether a read-only mapping that changes its output address has the same contents before and
    /// after, which RWHZWS then allows. The model has no data, so the caller must state it.
    pub equal_contents: bool,
    /// The omissions that the kernel makes on purpose.
    pub policies: Policies,
    /// The first and the last address of the upper half for which [`Policy::LazyUnmap`] holds. `None`: its
    /// second half, of 48 bits at most, where Linux has vmalloc and never the linear map.
    pub lazy: Option<(u64, u64)>,
    /// Violations kept in full; the rest are only counted.
    pub most_violations: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cpus: 1,
            bbm_level: 0,
            pa_bits: 52,
            lva: true,
            lpa2: true,
            small_tables: true,
            level_hints: true,
            single_tlbi: true,
            hardware_update: true,
            execute_by_privilege: true,
            strict: false,
            tlb_unknown_at_reset: true,
            caches_unknown_at_reset: false,
            track_tables: None,
            equal_contents: false,
            policies: Policies::NONE,
            lazy: None,
            most_violations: 1000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cpus_lack_is_read_back_and_switched_off() {
        for (names, switch) in FEATURES {
            let lacks = Lacks::from_names(names).unwrap();
            assert_eq!(lacks.to_string(), names);
            let mut config = lacks.of(Config::default());
            assert!(!*switch(&mut config));
            *switch(&mut config) = true;
            assert_eq!(config, Config::default());
        }
        assert_eq!(Lacks::from_names("xnx,ttl").unwrap().to_string(), "ttl,xnx");
        assert!(Lacks::from_names("ttl,").is_none());
    }

    #[test]
    fn sets_of_policies_are_read_back() {
        for set in [
            Policies::NONE,
            Policies::NONE.with(Policy::LazyUnmap),
            Policies::all(),
        ] {
            assert_eq!(Policies::from_names(&set.to_string()), Some(set));
        }
        assert!(Policies::all().has(Policy::LazyUnmap));
        assert!(
            !Policies::NONE
                .with(Policy::LazyUnmap)
                .has(Policy::SpuriousFaults)
        );
        for names in ["", "lazy-unmap,", "lazy", "none,lazy-unmap"] {
            assert_eq!(Policies::from_names(names), None);
        }
    }
}
