//! Lists the Debian packages that are compared or run, and reads the needed files from them. Every
//! part gets these, with the files of the run and the summary for its checks.

use std::path::PathBuf;

use anyhow::{Context, Result};
use granule_cli::PageSize;
use granule_cli::sizes::show_size as size;
use xtask::graph;
use xtask::workspace::target_dir;

use crate::machine::{Files, Kernel};
use crate::store::{Package, Store, Wanted, wanted};
use crate::summary::Summary;
use crate::{deb, emulator};

/// A Debian kernel: its package, the one with its modules if it is another, and its page size.
pub(crate) struct Linux {
    from: Wanted,
    modules: Wanted,
    pub(crate) page_size: PageSize,
}

/// Makes a [`Linux`], whose modules are in a package of their own since 7.x.
const fn linux(
    suite: &'static str,
    [package, modules]: [&'static str; 2],
    page_size: PageSize,
) -> Linux {
    Linux {
        from: wanted(suite, package, true),
        modules: wanted(suite, modules, true),
        page_size,
    }
}

const K4: [&str; 2] = ["linux-image-arm64"; 2];
const K16: [&str; 2] = ["linux-image-arm64-16k"; 2];
const SPLIT_K4: [&str; 2] = [K4[0], "linux-modules-arm64"];
const SPLIT_K16: [&str; 2] = [K16[0], "linux-modules-arm64-16k"];

/// The kernels, from the oldest maintained to the newest. Debian 12 has no 16K kernel, and no suite
/// has a 64K one.
pub(crate) const LINUXES: [Linux; 5] = [
    linux("bookworm", K4, PageSize::K4),
    linux("trixie", K4, PageSize::K4),
    linux("trixie-backports", SPLIT_K4, PageSize::K4),
    linux("trixie", K16, PageSize::K16),
    linux("trixie-backports", SPLIT_K16, PageSize::K16),
];

const BUSYBOX: Wanted = wanted("bookworm", "busybox-static", false);

/// The packages with device trees of boards, one for each kernel version.
pub(crate) const TREES: [Wanted; 3] = [
    wanted("bookworm", "linux-image-arm64", true),
    wanted("trixie", "linux-image-arm64", true),
    wanted("trixie-backports", "linux-base-arm64", true),
];

/// Systems other than Linux.
pub(crate) const U_BOOT: Wanted = wanted("trixie", "u-boot-qemu", false);
pub(crate) const EDK2: Wanted = wanted("trixie", "qemu-efi-aarch64", false);
pub(crate) const XEN: Wanted = wanted("trixie", "xen-hypervisor-4.20-arm64", false);

/// Lists all packages, each once.
pub(crate) fn all() -> Vec<Wanted> {
    let mut all: Vec<Wanted> = LINUXES.iter().map(|linux| linux.from).collect();
    all.push(BUSYBOX);
    let modules = LINUXES.iter().map(|linux| linux.modules);
    for wanted in modules.chain(TREES).chain([U_BOOT, EDK2, XEN]) {
        if !all.contains(&wanted) {
            all.push(wanted);
        }
    }
    all
}

/// The packages with their contents, ready to boot, and the context of a run.
pub(crate) struct Peers<'a> {
    store: &'a Store,
    packages: &'a [Package],
    /// The kernels, from the oldest to the newest.
    pub(crate) linuxes: Vec<Kernel>,
    pub(crate) busybox: Vec<u8>,
    pub(crate) files: Files,
    /// The folder of fetched packages.
    pub(crate) folder: PathBuf,
    /// Whether to fetch newer packages.
    pub(crate) fresh: bool,
    pub(crate) summary: &'a Summary,
}

impl<'a> Peers<'a> {
    /// Unpacks the shell and all kernels, or only the oldest. Adds a check of hash and contents for
    /// each package.
    pub(crate) fn unpack(
        store: &'a Store,
        packages: &'a [Package],
        (few, fresh): (bool, bool),
        summary: &'a Summary,
    ) -> Result<Self> {
        let mut peers = Self {
            store,
            packages,
            linuxes: Vec::new(),
            busybox: Vec::new(),
            files: Files::new()?,
            folder: target_dir().join("peers"),
            fresh,
            summary,
        };
        let most = if few { 1 } else { LINUXES.len() };
        for linux in LINUXES.iter().take(most) {
            let done = peers.kernel(linux);
            let done = done.map(|it| peers.linuxes.push(it));
            peers.add_package(&linux.from, done);
        }
        let done = peers.file(&BUSYBOX, is_busybox);
        let done = done.map(|busybox| peers.busybox = busybox);
        peers.add_package(&BUSYBOX, done);
        Ok(peers)
    }

    fn kernel(&self, linux: &Linux) -> Result<Kernel> {
        let image = self.file(&linux.from, is_kernel)?;
        let package = self.package(&linux.from)?;
        let version = package.version.split(['-', '~']).next().unwrap_or_default();
        let page_size = linux.page_size;
        let file = format!("linux-{version}-{}", size(page_size.bytes()));
        Ok(Kernel {
            image: self.files.put(&file, &image)?,
            name: format!("Linux {version}"),
            page_size,
            is_ours: false,
        })
    }

    pub(crate) fn add(&self, name: impl AsRef<str>, result: Result<String>) {
        self.summary.add(name.as_ref(), result);
    }

    /// Runs cases, several at a time, and adds a check for each.
    pub(crate) fn each<T: Sync>(
        &self,
        cases: &[T],
        name: impl Fn(&T) -> String,
        work: impl Fn(&T) -> Result<String> + Sync,
    ) {
        graph::all(
            cases.len(),
            |at| work(&cases[at]),
            |done| self.add(name(&cases[done.job]), done.result),
        );
    }

    /// Returns the unpacked Debian kernel at this place.
    pub(crate) fn linux(&self, at: usize) -> Result<&Kernel> {
        let found = self.linuxes.get(at);
        found.with_context(|| format!("Debian's kernel {at} was not unpacked: see its check"))
    }

    /// Returns the QEMU at this place of [`emulator::QEMUS`].
    pub(crate) fn qemu(&self, at: usize) -> Result<PathBuf> {
        emulator::qemu(&emulator::QEMUS[at], &self.folder, self.fresh)
    }

    fn package(&self, wanted: &Wanted) -> Result<&'a Package> {
        let found = self.packages.iter().find(|package| package.is(wanted));
        found.with_context(|| format!("{} of {} was not fetched", wanted.package, wanted.suite))
    }

    /// Returns the path of a wanted package, whose hash is checked.
    pub(crate) fn path(&self, wanted: &Wanted) -> Result<PathBuf> {
        self.store.path(self.package(wanted)?)
    }

    pub(crate) fn file(&self, wanted: &Wanted, is_it: impl Fn(&str) -> bool) -> Result<Vec<u8>> {
        deb::file(&self.path(wanted)?, is_it)
    }

    /// Reads the modules of these names of the kernel at this place of [`LINUXES`]. Missing ones
    /// are built in.
    pub(crate) fn modules(&self, at: usize, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let linux = LINUXES.get(at).context("there is no such kernel")?;
        let package = self.path(&linux.modules)?;
        let is_it = |path: &str| module(path).is_some_and(|it| names.contains(&it));
        let unpacked = deb::files(&package, is_it)?
            .into_iter()
            .map(|(path, bytes)| {
                let name = module(&path).unwrap_or_default().to_owned();
                let bytes = if path.ends_with(".xz") {
                    deb::unpacked(&bytes[..]).with_context(|| format!("its {path}"))?
                } else {
                    bytes
                };
                Ok((name, bytes))
            });
        unpacked.collect()
    }

    pub(crate) fn first(&self) -> Result<PathBuf> {
        self.path(&LINUXES[0].from)
    }

    fn add_package(&self, wanted: &Wanted, done: Result<()>) {
        match self.package(wanted) {
            Err(error) => self.add(format!("package {}", wanted.package), Err(error)),
            Ok(it) => self.add(
                format!("package {} {} ({})", it.package, it.version, it.suite),
                done.map(|()| format!("SHA-256 {}", it.sha256)),
            ),
        }
    }
}

/// Returns whether a path is that of the kernel: until 6.x, or since.
fn is_kernel(path: &str) -> bool {
    let modules = || {
        path.strip_prefix("usr/lib/modules/")?
            .strip_suffix("/vmlinuz")
    };
    path.starts_with("boot/vmlinuz-") || modules().is_some()
}

fn is_busybox(path: &str) -> bool {
    matches!(path, "bin/busybox" | "usr/bin/busybox")
}

fn module(path: &str) -> Option<&str> {
    let file = path.rsplit('/').next()?;
    let file = file.strip_suffix(".xz").unwrap_or(file);
    file.strip_suffix(".ko")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_programs_are_recognised_by_their_paths() {
        assert!(is_kernel("boot/vmlinuz-6.1.0-1-arm64"));
        assert!(is_kernel("usr/lib/modules/7.3-arm64/vmlinuz"));
        assert!(!is_kernel("boot/config-6.1.0-1-arm64"));
        assert!(!is_kernel("usr/lib/modules/7.3-arm64/vmlinuz.sig"));
        assert!(is_busybox("bin/busybox") && !is_busybox("usr/share/doc/busybox"));
        assert_eq!(module("lib/modules/6/kernel/a/b_c.ko"), Some("b_c"));
        assert_eq!(module("lib/modules/6/kernel/a/b_c.ko.xz"), Some("b_c"));
        assert_eq!(module("lib/modules/6/modules.order"), None);
    }
}
