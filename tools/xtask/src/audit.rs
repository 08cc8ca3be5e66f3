//! `make audit`: looks up the crates of every lock file in RustSec's database of advisories. Its
//! result changes from day to day and not with a commit, so it is not part of a test run.

use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result};

use crate::cargo_tools;
use crate::steps::MANIFESTS;
use xtask::workspace::root;

/// Nothing was checked.
const NOT_CHECKED: u8 = 3;

pub(crate) fn audit() -> Result<ExitCode> {
    let deny = |manifest: &str, words: &[&str]| {
        let path = root().join(manifest);
        let mut deny = cargo_tools::tool("deny", &["--manifest-path", &path.to_string_lossy()])?;
        deny.args(words).status().context("cannot start cargo-deny")
    };
    let fetched = deny(MANIFESTS[0], &["fetch", "db"]);
    if !fetched.as_ref().is_ok_and(ExitStatus::success) {
        println!("not checked: cargo-deny could not fetch the database of advisories");
        if let Err(error) = fetched {
            println!("{error:#}");
        }
        return Ok(ExitCode::from(NOT_CHECKED));
    }
    let mut found = false;
    for manifest in MANIFESTS {
        let has_none = deny(manifest, &["check", "--disable-fetch", "advisories"])?.success();
        let found_here = if has_none {
            "no advisory"
        } else {
            "advisories"
        };
        println!("{manifest}: {found_here}");
        found |= !has_none;
    }
    Ok(ExitCode::from(u8::from(found)))
}
