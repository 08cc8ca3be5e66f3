//! The number of cases of a property, and of schedules of an interleaving. Nothing else lives here.
//!
//! `GRANULE_TIMES=100` multiplies both by a hundred; the soak uses ten. `PROPTEST_RNG_SEED` and
//! `SHUTTLE_RANDOM_SEED` select the cases. `cargo xtask test` sets both, so that a failure can be
//! repeated. Without them, as in `cargo test`, the cases differ each time.

use proptest::test_runner::Config;

/// The factor by which the number of cases is multiplied.
pub fn times() -> usize {
    match std::env::var("GRANULE_TIMES") {
        Err(_) => 1,
        // Zero cases would count as passed.
        Ok(text) => match text.parse() {
            Ok(times) if times > 0 => times,
            _ => panic!("GRANULE_TIMES={text}: expected a number from 1 on, like 100"),
        },
    }
}

/// The configuration of a property with `native` cases, or `miri` under Miri. A failing case is
/// printed whole, and no file is written for it.
pub fn config(native: u32, miri: u32) -> Config {
    let usual = Config::default();
    let times = times() as u32;
    Config {
        cases: if cfg!(miri) { miri } else { native * times },
        max_global_rejects: usual.max_global_rejects * times,
        failure_persistence: None,
        ..usual
    }
}
