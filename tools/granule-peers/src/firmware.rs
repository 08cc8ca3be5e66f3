//! Boots of our kernel through firmware, with fetched boot loaders and a fetched QEMU. The matrix
//! is `xtask::firmware_matrix`; `make test` has a sample that needs nothing fetched.

use std::path::PathBuf;

use anyhow::{Error, Result};
use granule_cli::Firmware;
use granule_cli::loader::Loader;
use xtask::files;
use xtask::firmware_matrix::{self, FETCHED, Qemu};
use xtask::workspace::image_path;

use crate::peers::Peers;
use crate::store::hash;
use crate::{emulator, loaders};

/// Adds a check for each boot, or for a sample with every pair of values.
pub(crate) fn booted(peers: &Peers<'_>, is_all: bool) -> Result<()> {
    let all = firmware_matrix::full(&firmware_matrix::QEMUS);
    let cases = if is_all {
        all
    } else {
        firmware_matrix::covering(&all)
    };
    let loaders = loaders::fetch(&peers.folder, peers.fresh)?;
    let mut qemus = emulator::QEMUS.iter();
    let qemu = peers.qemu(
        qemus
            .position(|it| it.version == FETCHED)
            .unwrap_or_default(),
    )?;
    let image = image_path();
    let sha256 = hash(&files::read(&image)?);
    peers.each(
        &cases,
        |case| format!("granule boot {case}"),
        |case| {
            let wrong = case.wrong(&firmware_matrix::Files {
                image: &image,
                sha256: &sha256,
                qemu: (case.qemu == Qemu::Fetched).then(|| qemu.clone()),
                loader: loader(case.firmware, &loaders),
            });
            match wrong {
                None => Ok("as expected, with a clean trace".to_owned()),
                Some(wrong) => Err(Error::msg(wrong)),
            }
        },
    );
    Ok(())
}

/// Finds the boot loader of a kind of firmware.
fn loader(firmware: Firmware, loaders: &[(Loader, PathBuf)]) -> Option<PathBuf> {
    let wanted = match firmware {
        Firmware::Grub => Loader::Grub,
        Firmware::SystemdBoot => Loader::SystemdBoot,
        _ => return None,
    };
    let found = loaders.iter().find(|(loader, _)| *loader == wanted);
    found.map(|(_, path)| path.clone())
}
