//! The packages of Debian's that everything here is compared with or runs: which they are, and what is taken out of them.
//!
//! What is done with a kernel or a system is not here, and no package is fetched here.

use anyhow::{Context, Result};
use granule_cli::PageSize;
use granule_cli::sizes::show_size as size;

use crate::check::Check;
use crate::deb;
use crate::machine::{Files, Kernel};
use crate::store::{Package, Store, Wanted};

/// A Debian kernel: its package, the one with its modules if it is another, and its page size.
pub(crate) struct Linux {
    from: Wanted,
    modules: Wanted,
    pub(crate) page_size: PageSize,
}

pub(crate) const fn wanted(suite: &'static str, package: &'static str, kernel: bool) -> Wanted {
    Wanted {
        suite,
        package,
        kernel,
    }
}

const fn linux(suite: &'static str, package: &'static str, page_size: PageSize) -> Linux {
    let from = wanted(suite, package, true);
    Linux {
        from,
        modules: from,
        page_size,
    }
}

/// A kernel whose modules are in a package of their own, as since 7.x.
const fn split(
    suite: &'static str,
    package: &'static str,
    modules: &'static str,
    page_size: PageSize,
) -> Linux {
    Linux {
        modules: wanted(suite, modules, true),
        ..linux(suite, package, page_size)
    }
}

/// From the oldest maintained kernel to the newest. Debian 12 has no 16K kernel, and no suite has a 64K
/// one.
pub(crate) const LINUXES: [Linux; 5] = [
    linux("bookworm", "linux-image-arm64", PageSize::K4),
    linux("trixie", "linux-image-arm64", PageSize::K4),
    split(
        "trixie-backports",
        "linux-image-arm64",
        "linux-modules-arm64",
        PageSize::K4,
    ),
    linux("trixie", "linux-image-arm64-16k", PageSize::K16),
    split(
        "trixie-backports",
        "linux-image-arm64-16k",
        "linux-modules-arm64-16k",
        PageSize::K16,
    ),
];

const BUSYBOX: Wanted = wanted("bookworm", "busybox-static", false);

/// The packages with device trees of boards, one for each kernel version.
pub(crate) const TREES: [Wanted; 3] = [
    wanted("bookworm", "linux-image-arm64", true),
    wanted("trixie", "linux-image-arm64", true),
    wanted("trixie-backports", "linux-base-arm64", true),
];

/// Systems that are no Linux.
pub(crate) const U_BOOT: Wanted = wanted("trixie", "u-boot-qemu", false);
pub(crate) const EDK2: Wanted = wanted("trixie", "qemu-efi-aarch64", false);
pub(crate) const XEN: Wanted = wanted("trixie", "xen-hypervisor-4.20-arm64", false);

/// All packages, each once.
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

/// The packages' contents, ready to boot, and the packages themselves.
pub(crate) struct Peers<'a> {
    store: &'a Store,
    packages: &'a [Package],
    /// Kernels with their page sizes.
    pub(crate) linuxes: Vec<(Kernel, PageSize)>,
    pub(crate) busybox: Vec<u8>,
}

impl<'a> Peers<'a> {
    /// Unpacks the shell and all kernels, or only the oldest and the newest. Each package is a check of its hash and its
    /// contents.
    pub(crate) fn unpack(
        store: &'a Store,
        packages: &'a [Package],
        few: bool,
        files: &Files,
        add: &mut impl FnMut(Check),
    ) -> Self {
        let mut peers = Self {
            store,
            packages,
            linuxes: Vec::new(),
            busybox: Vec::new(),
        };
        let wanted = LINUXES.iter().enumerate();
        for (_, linux) in wanted.filter(|(at, _)| !few || [0, LINUXES.len() - 1].contains(at)) {
            let done = peers.kernel(linux, files);
            add(peers.told(&linux.from, done));
        }
        let done = peers.file(&BUSYBOX, is_busybox);
        let done = done.map(|busybox| peers.busybox = busybox);
        add(peers.told(&BUSYBOX, done));
        peers
    }

    fn kernel(&mut self, linux: &Linux, files: &Files) -> Result<()> {
        let page_size = size(linux.page_size.bytes());
        let image = self.file(&linux.from, is_kernel)?;
        let package = self.package(&linux.from)?;
        let version = package.version.split(['-', '~']).next().unwrap_or_default();
        let name = format!("Linux {version}");
        let image = files.put(&format!("linux-{version}-{page_size}"), &image)?;
        let kernel = Kernel::Linux { image, name };
        self.linuxes.push((kernel, linux.page_size));
        Ok(())
    }

    fn package(&self, wanted: &Wanted) -> Result<&'a Package> {
        let found = self.packages.iter().find(|package| package.is(wanted));
        found.with_context(|| format!("{} of {} was not fetched", wanted.package, wanted.suite))
    }

    /// The bytes of the package that is wanted, checked by its hash.
    pub(crate) fn bytes(&self, wanted: &Wanted) -> Result<Vec<u8>> {
        self.store.bytes(self.package(wanted)?)
    }

    /// One file of a package.
    pub(crate) fn file(&self, wanted: &Wanted, is_it: impl Fn(&str) -> bool) -> Result<Vec<u8>> {
        deb::file(&self.bytes(wanted)?[..], is_it)
    }

    /// The modules of these names that the kernel at this place of [`LINUXES`] has, unpacked; what it has
    /// not is part of it.
    pub(crate) fn modules(&self, at: usize, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let linux = LINUXES.get(at).context("there is no such kernel")?;
        let package = self.bytes(&linux.modules)?;
        let found = deb::files(&package[..], |path| {
            module(path).is_some_and(|it| names.contains(&it))
        })?;
        let unpacked = found.into_iter().map(|(path, bytes)| {
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

    /// The first kernel's package.
    pub(crate) fn first(&self) -> Result<Vec<u8>> {
        self.bytes(&LINUXES[0].from)
    }

    fn told(&self, wanted: &Wanted, done: Result<()>) -> Check {
        let package = match self.package(wanted) {
            Ok(package) => package,
            Err(error) => return Check::new(format!("package {}", wanted.package), Err(error)),
        };
        let Package {
            package,
            version,
            suite,
            sha256,
            ..
        } = package;
        let name = format!("package {package} {version} ({suite})");
        Check::new(name, done.map(|()| format!("SHA-256 {sha256}")))
    }
}

/// Paths of the kernel in packages: until 6.x, and since.
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

/// The name of the module at a path.
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

    #[test]
    fn every_page_size_that_debian_has_is_compared() {
        for page_size in [PageSize::K4, PageSize::K16] {
            let of_it = LINUXES.iter().filter(|linux| linux.page_size == page_size);
            assert!(of_it.count() >= 2);
        }
    }

    #[test]
    fn each_package_is_fetched_once() {
        let all = all();
        // Five kernels, modules of two of them, trees of one, the shell, and three other systems.
        assert_eq!(all.len(), 12);
        for (at, wanted) in all.iter().enumerate() {
            assert!(!all[..at].contains(wanted), "{wanted:?}");
        }
    }
}
