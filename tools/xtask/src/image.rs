//! The flat arm64 Image: built from the kernel's ELF file, checked against the boot protocol that it claims
//! to follow (Linux `Documentation/arch/arm64/booting.rst`), and hashed.
//!
//! `mmu_off` checks the code that runs with the MMU off, `pe` the header for EFI firmware. No image is written unless
//! all checks pass.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::elf::{self, Flat, Program};
use crate::{byte_order, entry, hw_code, mmu_off, pe, strict_align};
use granule_kcore::trace::entry_code;
use xtask::files;
use xtask::workspace::{KERNEL_TARGET, build_executable, image_path, is_built, target_dir};

/// A written image.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    /// The ELF file that the image was made of: always that of the last build.
    pub(crate) elf: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) memory: u64,
    pub(crate) sha256: String,
}

impl Image {
    fn of(path: &Path, elf: &Path, bytes: &[u8], memory: u64) -> Self {
        Self {
            path: path.to_path_buf(),
            elf: elf.to_path_buf(),
            bytes: bytes.len() as u64,
            memory,
            sha256: hex(&Sha256::digest(bytes)),
        }
    }

    /// One line with all facts about the image.
    pub(crate) fn line(&self) -> String {
        format!(
            "{}: {} bytes ({} in memory), SHA-256 {}",
            self.path.display(),
            self.bytes,
            self.memory,
            self.sha256
        )
    }
}

/// The one page size that a kernel has code for, or its default.
pub(crate) use granule_cli::PageSize as Fixed;

/// A build of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Build {
    /// Code for this page size only, or for all.
    For(Option<Fixed>),
    /// Code for all, and this page size where nothing else chooses one.
    Default(Fixed),
    /// The hooks for tests.
    Hooks,
}

impl Build {
    /// Returns the end of the name of the image, and of that of the feature.
    fn name(self) -> Option<String> {
        match self {
            Self::For(size) => size.map(|size| size.word().to_owned()),
            Self::Default(size) => Some(format!("default-{}", size.word())),
            Self::Hooks => Some("test".to_owned()),
        }
    }

    /// Builds the kernel's ELF file.
    pub(crate) fn elf(self) -> Result<PathBuf> {
        let feature = self.name().map(|name| match self {
            Self::For(_) => format!("page-{name}"),
            Self::Default(_) => name,
            Self::Hooks => "test-image".to_owned(),
        });
        let target = format!("--target={KERNEL_TARGET}");
        let arguments = ["--package=granule-kernel", "--profile=kernel", &target];
        let mut arguments = arguments.map(str::to_owned).to_vec();
        if matches!(self, Self::For(Some(_))) {
            arguments.push("--no-default-features".to_owned());
        }
        arguments.extend(feature.map(|feature| format!("--features={feature}")));
        build_executable(&arguments)
    }

    fn path(self) -> PathBuf {
        self.name().map_or_else(image_path, |name| {
            image_path().with_file_name(format!("Image-{name}"))
        })
    }

    /// Builds the image, or takes that of the run of tests, whose steps share it: builds beside each other put their ELF
    /// files in one place.
    pub(crate) fn image(self) -> Result<Image> {
        if !is_built() {
            return self.build();
        }
        let path = self.path();
        let bytes = files::read(&path)?;
        let elf = target_dir()
            .join(KERNEL_TARGET)
            .join("kernel/granule-kernel");
        let size = bytes.get(16..24).and_then(|it| it.try_into().ok());
        let size = size.with_context(|| format!("{} has no header", path.display()))?;
        Ok(Image::of(&path, &elf, &bytes, u64::from_le_bytes(size)))
    }

    /// Builds the kernel, checks its MMU-off code and writes the image. A failure leaves no image, so that no
    /// test boots, and passes with, the old one.
    pub(crate) fn build(self) -> Result<Image> {
        let path = self.path();
        let fixed = match self {
            Self::For(size) => size,
            _ => None,
        };
        let built = self.elf().and_then(|elf| check(&elf, &path, fixed));
        built.inspect_err(|_| drop(std::fs::remove_file(&path)))
    }
}

pub(crate) fn image(fixed: Option<Fixed>) -> Result<Image> {
    Build::For(fixed).image()
}

/// Checks the MMU-off code and the PE header of an ELF file and writes the image from it.
fn check(elf_path: &Path, to: &Path, fixed: Option<Fixed>) -> Result<Image> {
    check_mmu_off(elf_path)?;
    let elf = files::read(elf_path)?;
    let flat = elf::flatten(&elf)?;
    pe::check(&elf, &flat.bytes, flat.memory_end)
        .with_context(|| format!("in {}", elf_path.display()))?;
    let image = write(elf_path, to, fixed)?;
    eprintln!("{}", image.line());
    Ok(image)
}

/// Checks the code of an ELF file that runs with the MMU off, and the instructions that a trace reports.
pub(crate) fn check_mmu_off(elf_path: &Path) -> Result<()> {
    strict_align::check()?;
    let bytes = files::read(elf_path)?;
    let program =
        Program::parse(&bytes).with_context(|| format!("cannot read {}", elf_path.display()))?;
    let mut different = entry::check(&program, entry_code::ALL);
    different.extend(hw_code::check(&bytes, &program)?);
    refuse(
        &different,
        elf_path,
        "a trace would report what the kernel does not do",
    )?;
    let early = byte_order::check(&program);
    let rules = [mmu_off::KERNEL, mmu_off::SECONDARY, mmu_off::EFI];
    let [report, secondary, stub] = rules.map(|rules| mmu_off::check(&program, &rules));
    ensure!(
        program.has_relocated(),
        "mmu-off: {} has no relocations, so the pointers that code must not follow are unknown: \
         link it as a static PIE",
        elf_path.display()
    );
    let findings = [
        &report.findings[..],
        &secondary.findings,
        &stub.findings,
        &early,
    ]
    .concat();
    refuse(
        &findings,
        elf_path,
        "this code would fault or misbehave before the MMU is on",
    )?;
    eprintln!(
        "mmu-off: {} functions, {} instructions reachable with the MMU off, {} of them on CPUs but \
         the first; {} instructions of the EFI stub; no finding",
        report.functions, report.instructions, secondary.instructions, stub.instructions
    );
    Ok(())
}

/// Prints findings on standard error, one a line, and fails if there are any.
pub(crate) fn refuse(findings: &[String], elf: &Path, why: &str) -> Result<()> {
    for finding in findings {
        eprintln!("{finding}");
    }
    let (count, elf) = (findings.len(), elf.display());
    ensure!(count == 0, "{count} finding(s) in {elf}: {why}");
    Ok(())
}

/// Flattens an ELF file into an image file.
pub(crate) fn write(elf_path: &Path, to: &Path, fixed: Option<Fixed>) -> Result<Image> {
    let flat = elf::flatten(&files::read(elf_path)?)
        .with_context(|| format!("in {}", elf_path.display()))?;
    check_header(&flat, fixed).with_context(|| format!("in {}", elf_path.display()))?;
    files::replace(to, |to| files::write(to, &flat.bytes))?;
    Ok(Image::of(to, elf_path, &flat.bytes, flat.memory_end))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Compares the Image header with the memory that the segments need.
fn check_header(flat: &Flat, fixed: Option<Fixed>) -> Result<()> {
    let header = flat
        .bytes
        .get(..64)
        .context("the image is shorter than its 64-byte header")?;
    let fields = header.as_chunks::<8>().0;
    let field = |at: usize| u64::from_le_bytes(fields[at / 8]);
    let magic = &header[0x38..0x3c];
    ensure!(
        magic == b"ARM\x64",
        "Image header: magic at 0x38 is {magic:02x?}, not \"ARM\\x64\" (41 52 4d 64)"
    );
    let (text_offset, image_size, flags) = (field(8), field(16), field(24));
    ensure!(
        text_offset == 0,
        "Image header: text_offset is {text_offset:#x}, must be 0"
    );
    // A loader keeps image_size bytes free for the kernel. If the value is too small, the loader puts the
    // device tree into .bss; if it exceeds the alignment's need, RAM is lost.
    let end = flat.memory_end;
    ensure!(
        image_size >= end,
        "Image header: image_size is {image_size:#x}, but the segments end at {end:#x}"
    );
    ensure!(
        image_size - end < 0x20_0000,
        "Image header: image_size is {image_size:#x}, over 2 MiB more than the segments' end {end:#x}"
    );
    ensure!(
        flags & 1 == 0,
        "Image header: flags {flags:#x} are big-endian"
    );
    let expected = fixed.map_or(0, |size| 1 + size as u64);
    ensure!(
        flags >> 1 & 3 == expected,
        "Image header: flags {flags:#x} have {} for the page size, bits 2:1; expected {expected} \
         ({})",
        flags >> 1 & 3,
        fixed.map_or("any", Fixed::word)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::test_elf::TestElf;

    fn header(size: u64, flags: u64) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[16..24].copy_from_slice(&size.to_le_bytes());
        bytes[24..32].copy_from_slice(&flags.to_le_bytes());
        bytes[0x38..0x3c].copy_from_slice(b"ARM\x64");
        bytes
    }

    fn write_one(first: &[u8]) -> Result<(Image, Vec<u8>)> {
        let folder = tempfile::tempdir()?;
        let elf = folder.path().join("kernel.elf");
        let image = folder.path().join("out").join("Image");
        let file = TestElf::new()
            .segment(0, first, first.len() as u64)
            .segment(0x1000, b"data", 0x800)
            .build();
        std::fs::write(&elf, file)?;
        let made = write(&elf, &image, None)?;
        let bytes = std::fs::read(&image)?;
        Ok((made, bytes))
    }

    #[test]
    fn an_image_is_flat_and_hashed() {
        let (image, bytes) = write_one(&header(0x1800, 0x8)).unwrap();
        assert_eq!(bytes.len(), 0x1004);
        assert_eq!(&bytes[0x1000..], b"data");
        assert_eq!((image.bytes, image.memory), (0x1004, 0x1800));
        assert_eq!(image.sha256, hex(&Sha256::digest(&bytes)));
        assert_eq!(image.sha256.len(), 64);
        let line = "4100 bytes (6144 in memory), SHA-256 ";
        assert!(image.line().contains(line));
    }

    #[test]
    fn a_wrong_header_is_refused() {
        let with = |at: usize, byte: u8| {
            let mut header = header(0x1800, 8);
            header[at] = byte;
            header
        };
        for (bytes, expected) in [
            (with(0x38, b'X'), "magic at 0x38"),
            (header(0x17ff, 8), "image_size is 0x17ff"),
            (header(0x40_0000, 8), "over 2 MiB more"),
            (header(0x1800, 9), "big-endian"),
            (header(0x1800, 0xa), "any"),
            (vec![0; 63], "magic"),
            (with(8, 8), "text_offset"),
        ] {
            let error = format!("{:#}", write_one(&bytes).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
