//! How many cases a property has, and how many schedules an interleaving. Nothing else lives here.
//!
//! `GRANULE_TIMES=100` gives each a hundred times as many; the soak has ten. `PROPTEST_RNG_SEED` and
//! `SHUTTLE_RANDOM_SEED` say which cases they are. `cargo xtask test` sets both, so that a failure is
//! found again. Without them, as `cargo test` runs, the cases differ each time.

use proptest::test_runner::Config;

/// How many times as many cases are asked for.
pub fn times() -> usize {
    match std::env::var("GRANULE_TIMES") {
        Err(_) => 1,
        // None at all would read as passed.
        Ok(text) => match text.parse() {
            Ok(times) if times > 0 => times,
            _ => panic!("GRANULE_TIMES={text}: expected a number from 1 on, like 100"),
        },
    }
}

/// A property with so many cases, and so many under Miri. A case that fails is printed whole, and no
/// file is left for it.
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
