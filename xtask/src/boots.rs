//! Runs the cases of the QEMU matrix and reports the result of each.

use std::path::Path;
use std::time::Duration;

use crate::boot;
use crate::image::Image;
use crate::matrix::{Case, Expected};
use xtask::pool;

/// The result of a case; `wrong` says in one line what was wrong, if anything.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) case: usize,
    pub(crate) wrong: Option<String>,
    pub(crate) time: Duration,
}

/// Runs the cases in order, several at a time. `each` receives every outcome as it comes.
pub(crate) fn run(
    cases: &[Case],
    granule: &Path,
    image: &Image,
    mut each: impl FnMut(Outcome) -> bool,
) {
    pool::run(
        cases.len(),
        pool::parallel(),
        || true,
        |case| wrong(&cases[case], granule, image),
        |done| {
            each(Outcome {
                case: done.job,
                wrong: done.result,
                time: done.time,
            })
        },
    );
}

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
