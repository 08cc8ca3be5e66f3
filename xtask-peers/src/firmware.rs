//! Boots of our kernel through firmware, with the boot loaders and the QEMU that are fetched: the matrix is
//! `xtask::firmware_matrix`, and `make test` has a sample of what needs nothing fetched.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use granule_cli::Firmware;
use granule_cli::loader::Loader;
use xtask::firmware_matrix::{self, Case, FETCHED, Qemu};
use xtask::workspace::image_path;
use xtask::{boot, graph};

use crate::check::Check;
use crate::store::hash;
use crate::{emulator, loaders};

/// How many of the boots are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Every pair of values.
    Sample,
    /// All.
    All,
}

/// A check for each boot to this extent.
pub(crate) fn booted(
    folder: &Path,
    extent: Extent,
    fresh: bool,
    add: &mut impl FnMut(Check),
) -> Result<()> {
    let all = firmware_matrix::full(&firmware_matrix::QEMUS);
    let cases = match extent {
        Extent::Sample => firmware_matrix::covering(&all),
        Extent::All => all,
    };
    let loaders = loaders::fetch(folder, fresh)?;
    let wanted = emulator::QEMUS.iter().find(|it| it.version == FETCHED);
    let qemu = emulator::qemu(wanted.context("that QEMU is not known")?, folder, fresh)?;
    let granule = boot::build_cli()?;
    let image = image_path();
    let sha256 = hash(&std::fs::read(&image)?);
    graph::all(
        cases.len(),
        |at| {
            let case: &Case = &cases[at];
            case.wrong(&firmware_matrix::Files {
                granule: &granule,
                image: &image,
                sha256: &sha256,
                qemu: (case.qemu == Qemu::Fetched).then(|| qemu.clone()),
                loader: loader(case.firmware, &loaders),
            })
        },
        |done| {
            let name = format!("granule boot {}", cases[done.job]);
            let result = match done.result {
                None => Ok("as expected, with a clean trace".to_owned()),
                Some(wrong) => Err(anyhow::Error::msg(wrong)),
            };
            add(Check::new(name, result));
        },
    );
    Ok(())
}

/// The program that this way of booting needs.
fn loader(firmware: Firmware, loaders: &[(Loader, PathBuf)]) -> Option<PathBuf> {
    let wanted = match firmware {
        Firmware::Grub => Loader::Grub,
        Firmware::SystemdBoot => Loader::SystemdBoot,
        _ => return None,
    };
    let found = loaders.iter().find(|(loader, _)| *loader == wanted);
    found.map(|(_, path)| path.clone())
}
