//! What the modelled machine is, and how severe the model is.

/// The modelled machine and how it is judged.
///
/// [`Config::default`] is one CPU with every optional feature that widens what tables may look
/// like and none that relaxes what may be done to them (BBM level 0).
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
    /// Also report what is legal but leaves more cached than a careful kernel would: making an
    /// entry valid again without an invalidation, relying on a cleared access flag while the old
    /// one may be cached, size changes that may raise a TLB conflict abort or come together with
    /// other permissions.
    pub strict: bool,
    /// Whether a TLB holds something unknown until it is first invalidated, by its own CPU or, once
    /// that did something, by another. The architecture
    /// says so; tests of operations on tables that are already in use turn it off.
    pub tlb_unknown_at_reset: bool,
    /// Whether the data caches hold, dirty, whatever ran before the trace began, and instruction
    /// caches what they like, until they are maintained: a loader cleans what it loaded, and no
    /// more than that. Who stores with the MMU off to a line that was never cleaned or invalidated
    /// may lose that store, and a CPU translates only after an IC.
    pub caches_unknown_at_reset: bool,
    /// Whether an entry may point only to memory that was obtained for tables. `None`: from the
    /// first [`Obtained`](crate::Event::Obtained) on.
    pub track_tables: Option<bool>,
    /// Whether read-only mappings that change their output address are taken to have the same
    /// contents before and after, which RWHZWS then allows. The model knows no data.
    pub equal_contents: bool,
    /// Violations kept in full; more are only counted.
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
            strict: false,
            tlb_unknown_at_reset: true,
            caches_unknown_at_reset: false,
            track_tables: None,
            equal_contents: false,
            most_violations: 1000,
        }
    }
}
