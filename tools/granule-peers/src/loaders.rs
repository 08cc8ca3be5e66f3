//! Fetches Debian's boot loaders for arm64 firmware, and puts them where `granule boot` and `cargo
//! xtask disk` find them. Only firmware starts them, so nothing is installed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use granule_cli::loader::Loader;
use xtask::files;
use xtask::workspace::target_dir;

use crate::deb;
use crate::store::{Store, Wanted, wanted};

/// GRUB with all its modules, which reads its menu from Debian's folder.
const GRUB: &str = "usr/lib/grub/arm64-efi/monolithic/grubaa64.efi";
const SYSTEMD_BOOT: &str = "usr/lib/systemd/boot/efi/systemd-bootaa64.efi";

/// Returns the package of a boot loader, and its path there.
const fn package(loader: Loader) -> (Wanted, &'static str) {
    match loader {
        Loader::Grub => (wanted("trixie", "grub-efi-arm64-unsigned", false), GRUB),
        Loader::OlderGrub => (wanted("bookworm", "grub-efi-arm64-bin", false), GRUB),
        Loader::SystemdBoot => (wanted("trixie", "systemd-boot-efi", false), SYSTEMD_BOOT),
    }
}

/// Fetches the packages to `folder`, unless they are there, and unpacks the boot loaders.
pub(crate) fn fetch(folder: &Path, fresh: bool) -> Result<Vec<(Loader, PathBuf)>> {
    let store = Store::new(folder.join("loaders"));
    let wanted = Loader::ALL.map(|loader| package(loader).0);
    let packages = store.packages(&wanted, fresh)?;
    let mut programs = Vec::new();
    for (loader, from) in Loader::ALL.into_iter().zip(&packages) {
        let path = package(loader).1;
        let bytes = deb::file(&store.path(from)?, |it| it == path)
            .with_context(|| format!("{path} of {}", from.package))?;
        let to = target_dir().join("granule").join(loader.file());
        files::folder(to.parent().context("the program needs a folder")?)?;
        files::write(&to, bytes)?;
        programs.push((loader, to));
    }
    Ok(programs)
}
