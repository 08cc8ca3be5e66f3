//! Boots a machine whose first process is the `kexec` program: code that all rooms share.

use granule_cli::{Initramfs, PageSize, Request};

pub(crate) use crate::hooked::{ends as boots, ends_with as ends};
use crate::image::{built, image};

/// Where the archive of [`archive`] has the image that is to be the next kernel.
pub(crate) const NEXT: &str = "/boot/Image";

/// The `kexec` program.
pub(crate) fn program() -> Vec<u8> {
    std::fs::read(built("granule-kexec", "cargo xtask user")).unwrap()
}

/// A machine of 512 MiB with so many CPUs and pages of that size.
pub(crate) fn machine(size: PageSize, cpus: u32) -> Request {
    Request::default()
        .image(image())
        .memory(512 << 20)
        .smp(cpus)
        .page_size(size)
}

/// An archive whose first process does these lines of `/etc/kexec`; this kernel's own image is at
/// [`NEXT`].
pub(crate) fn archive(lines: &str) -> Initramfs {
    bare(lines)
        .directory("/boot")
        .file(NEXT, &std::fs::read(image()).unwrap())
}

/// As [`archive`], without an image.
pub(crate) fn bare(lines: &str) -> Initramfs {
    Initramfs::new()
        .program("/init", &program())
        .directory("/etc")
        .file("/etc/kexec", lines.as_bytes())
}
