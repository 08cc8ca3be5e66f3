//! Runs the target that `GRANULE_FUZZ_TARGET` names.
#![no_main]

use std::sync::OnceLock;

use granule_fuzz::{TARGETS, target};

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

/// Chooses the target, or ends with one line that lists all.
fn choose() {
    let name = std::env::var("GRANULE_FUZZ_TARGET").unwrap_or_default();
    let Some(run) = target(&name) else {
        let all: Vec<_> = TARGETS.iter().map(|(name, ..)| *name).collect();
        eprintln!("GRANULE_FUZZ_TARGET={name:?} is none of: {}", all.join(" "));
        std::process::exit(2);
    };
    TARGET.get_or_init(|| run);
}

libfuzzer_sys::fuzz_target!(init: choose(), |bytes: &[u8]| {
    if let Some(run) = TARGET.get() {
        run(bytes);
    }
});
