//! Builds and checks the probe, the minimal next kernel, as the kernel's image is built and checked. All of
//! the probe runs with the MMU off, and nothing relocates it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::elf::Program;
use crate::image::{self, Image};
use crate::mmu_off::{self, Rules};
use crate::packages::USER;
use xtask::files;
use xtask::workspace::{KERNEL_TARGET, build_executable, image_path};

/// The check stops nowhere, because the probe never turns the MMU on.
#[rustfmt::skip]
const RULES: Rules = Rules {
    roots: &[
        ("_start", "the Image header's branch, entered by the boot loader or by who leaves"),
        ("probe_main", "Rust's first function"),
        ("probe_exception", "called by the vectors"),
    ],
    stops: &[],
    indirect: &[],
    calls_firmware: false,
    bounds: &[],
    relocated: false,
};

pub(crate) fn path() -> PathBuf {
    image_path().with_file_name("Image-probe")
}

/// Builds the probe, checks its code and writes the image. A failure leaves no image, so that no test
/// boots, and passes with, the old one.
pub(crate) fn build() -> Result<Image> {
    let path = path();
    make(&path).inspect_err(|_| drop(std::fs::remove_file(&path)))
}

fn make(to: &Path) -> Result<Image> {
    let target = format!("--target={KERNEL_TARGET}");
    let program = ["-p", USER, "--bin", "granule-probe"];
    let elf = build_executable(&[&program[..], &["--profile=kernel", &target]].concat())?;
    let bytes = files::read(&elf)?;
    let program =
        Program::parse(&bytes).with_context(|| format!("cannot read {}", elf.display()))?;
    let report = mmu_off::check(&program, &RULES);
    let why = "the probe runs with the MMU off and has nothing to report a fault by";
    image::refuse(&report.findings, &elf, why)?;
    ensure!(
        !program.has_relocated(),
        "{} has relocations, and nothing in the probe applies them",
        elf.display()
    );
    let image = image::write(&elf, to, None)?;
    eprintln!("{}", image.line());
    Ok(image)
}
