//! Runs the cases of the QEMU matrix and of the boots through firmware, and reports the result of each.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::boot::{self, Expected};
use crate::image::Image;
use xtask::{firmware_matrix, graph};

/// Boots one case and returns what was wrong, in one line.
pub(crate) fn wrong(case: &impl Expected, granule: &Path, image: &Image) -> Option<String> {
    let boot = match boot::boot(granule, &image.path, &case.arguments()) {
        Ok(boot) => boot,
        Err(error) => return Some(format!("{error:#}")),
    };
    if let Some(failure) = boot.failure() {
        return Some(failure);
    }
    let wrong = boot
        .record
        .map(|record| case.mismatches(&record, &image.sha256));
    wrong.map_or_else(Some, |lines| (!lines.is_empty()).then(|| lines.join("; ")))
}

/// A sample of the boots through firmware, with what `cargo xtask setup` installs. Boot loaders and another QEMU are in
/// `granule-peers`.
pub(crate) fn through_firmware(granule: &Path, image: &Image) -> Result<()> {
    let files = firmware_matrix::Files {
        granule,
        image: &image.path,
        sha256: &image.sha256,
        qemu: None,
        loader: None,
    };
    let cases = firmware_matrix::covering(&firmware_matrix::installed());
    let (mut ran, mut failed) = (0, 0);
    graph::all(
        cases.len(),
        |at| cases[at].wrong(&files),
        |done| {
            ran += 1;
            let case = &cases[done.job];
            match done.result {
                None => println!("ok ({:.1} s): {case}", done.time.as_secs_f32()),
                Some(wrong) => {
                    failed += 1;
                    println!("FAILED: granule boot {case}: {wrong}");
                }
            }
        },
    );
    let all = cases.len();
    println!("firmware-matrix: {ran} of {all} boots run, {failed} failed");
    ensure!(ran == all && failed == 0, "{failed} of {all} boots failed");
    Ok(())
}
