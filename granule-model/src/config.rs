//! The configuration of the model: the machine's features, and how strict the rules are.

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
    /// FEAT_HAFDBS: TCR.HA and TCR.HD work.
    pub hardware_update: bool,
    /// FEAT_XNX: stage 2 allows execution for EL1 and EL0 separately.
    pub execute_by_privilege: bool,
    /// Also reports legal code that leaves more cached than a careful kernel would: making an entry
    /// valid again without an invalidation, relying on a cleared access flag while the old one may
    /// be cached, and size changes that may raise a TLB conflict abort or come together with other
    /// permissions.
    pub strict: bool,
    /// Whether a TLB holds something unknown until its first invalidation, by its own CPU or, once
    /// that CPU did something, by another. The architecture says so; tests of operations on tables
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
    /// after, which RWHZWS then allows. The model knows no data, so the caller must say so.
    pub equal_contents: bool,
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
            hardware_update: true,
            execute_by_privilege: true,
            strict: false,
            tlb_unknown_at_reset: true,
            caches_unknown_at_reset: false,
            track_tables: None,
            equal_contents: false,
            most_violations: 1000,
        }
    }
}
