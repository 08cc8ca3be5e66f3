//! Runs the boots of a step, and reports the result of each.

use anyhow::{Result, ensure};

use crate::boot::{self, Expected};
use crate::image::{self, Image};
use crate::matrix;
use xtask::{firmware_matrix, graph};

/// Runs boots, several at a time, each of which returns what was wrong. `typed` is how a person repeats one.
pub(crate) fn all<T: Sync>(
    step: &str,
    cases: &[T],
    typed: impl Fn(&T) -> String,
    wrong: impl Fn(&T) -> Option<String> + Sync,
) -> Result<()> {
    let (mut ran, mut failed) = (0, 0);
    graph::all(
        cases.len(),
        |at| wrong(&cases[at]),
        |done| {
            ran += 1;
            let case = typed(&cases[done.job]);
            match done.result {
                None => println!("ok ({:.1} s): {case}", done.time.as_secs_f32()),
                Some(wrong) => {
                    failed += 1;
                    println!("FAILED: {case}: {wrong}");
                }
            }
        },
    );
    let all = cases.len();
    println!("{step}: {ran} of {all} boots run, {failed} failed");
    ensure!(all > 0, "there is nothing to boot");
    ensure!(ran == all && failed == 0, "{failed} of {all} boots failed");
    Ok(())
}

/// Boots one case and returns what was wrong, in one line.
pub(crate) fn wrong(case: &impl Expected, image: &Image) -> Option<String> {
    let record = boot::boot(&image.path, &case.arguments());
    let wrong = record.map(|record| case.mismatches(&record, &image.sha256));
    let wrong = wrong.unwrap_or_else(|error| vec![format!("{error:#}")]);
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

/// A sample of the QEMU matrix. Properties that tests prove of the test image must also hold for the shipped image: each
/// is in part of the boots.
pub(crate) fn qemu_matrix() -> Result<()> {
    let images = [image::image(None)?, image::Build::Hooks.image()?];
    all(
        "qemu-matrix",
        &matrix::covering(),
        |(case, test)| {
            let option = if *test { " --test-image" } else { "" };
            format!("granule boot {case}{option}")
        },
        |(case, test)| wrong(case, &images[usize::from(*test)]),
    )
}

/// A sample of the boots through firmware, with what `cargo xtask setup` installs. Boot loaders and another QEMU are in
/// `granule-peers`.
pub(crate) fn through_firmware() -> Result<()> {
    let image = image::image(None)?;
    let files = firmware_matrix::Files {
        image: &image.path,
        sha256: &image.sha256,
        qemu: None,
        loader: None,
    };
    all(
        "firmware-matrix",
        &firmware_matrix::covering(&firmware_matrix::installed()),
        |case| format!("granule boot {case}"),
        |case| case.wrong(&files),
    )
}
