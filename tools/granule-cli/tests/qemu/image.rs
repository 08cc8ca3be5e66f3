//! The places of built files: the kernel's image, and the files that tests put beside it. No other
//! file has these places.

use std::path::PathBuf;

/// The image, or the one line with the command that builds it.
pub(crate) fn image() -> PathBuf {
    built("Image", "cargo xtask image")
}

/// A file that `by` makes.
pub(crate) fn built(name: &str, by: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")),
        PathBuf::from,
    );
    let path = target.join("granule").join(name);
    assert!(
        path.is_file(),
        "{} is missing: build it with `{by}`",
        path.display()
    );
    path
}
