//! The flat arm64 `Image`: finds the file, reads the header fields that matter to QEMU, and finds
//! the boot record in it.
//!
//! The library parses the header; a kernel uses the same parser for the next kernel's image.
//! Nothing here writes.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use granule_kexec::image::{ImageError as HeaderError, ImageHeader, Looks};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::bootrec;

/// Path of the image that `cargo xtask image` builds, relative to the workspace's root.
pub const DEFAULT_IMAGE: &str = "target/granule/Image";

/// Path of the image with test hooks that `cargo xtask image --test` builds.
pub const TEST_IMAGE: &str = "target/granule/Image-test";

/// RAM of QEMU's `virt` starts here.
pub const RAM_BASE: u64 = 0x4000_0000;

/// QEMU's `-kernel` keeps this much at the start of RAM for its own first instructions. It moves an
/// image that is to lie there up by 2 MiB.
const QEMU_LOADER_BYTES: u64 = 4096;

/// The reasons why a file is not a bootable image.
#[derive(Debug, Error)]
pub enum ImageError {
    /// No image in the current directory or any directory above it.
    #[error("no kernel image: {DEFAULT_IMAGE} is neither in {} nor in a directory above it; \
             build it with `cargo xtask image`, or name one with --image FILE", .0.display())]
    NotFound(PathBuf),
    /// No test image in the current directory or any directory above it.
    #[error("no test image: {TEST_IMAGE} is neither in {} nor in a directory above it; \
             build it with `cargo xtask image --test`", .0.display())]
    NoTestImage(PathBuf),
    /// The file cannot be read.
    #[error("kernel image {}: {source}; build it with `cargo xtask image`, or name another with --image FILE", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The bytes are not a usable image.
    #[error("kernel image {}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The error, what was expected and what to do.
        what: String,
    },
}

/// An image file that was read and parsed.
#[derive(Debug, Clone)]
pub struct Image {
    /// The file.
    pub path: PathBuf,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// Length of the file.
    pub bytes: u64,
    pub header: HeaderFields,
    /// Offset of the boot record in the image, if there is one.
    pub boot_record: Option<u64>,
}

/// The header fields that decide the image's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderFields {
    /// Offset of the image from a 2 MiB aligned base.
    pub text_offset: u64,
    /// Memory the image occupies from its first byte, zeroed data included.
    pub image_size: u64,
}

impl HeaderFields {
    /// Reads the header at the start of `bytes`.
    /// Fails with one line without the file's name.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let header = ImageHeader::read(bytes).map_err(|error| match error {
            HeaderError::NotAnImage(Looks::Elf) => {
                format!("{error}; `cargo xtask image` makes it of this kernel's")
            }
            other => other.to_string(),
        })?;
        Ok(Self {
            text_offset: header.text_offset,
            image_size: header.image_size,
        })
    }

    /// The address where QEMU's `-kernel` puts an image with this header.
    pub fn qemu_load_address(&self) -> u64 {
        let up = if self.text_offset < QEMU_LOADER_BYTES {
            2 << 20
        } else {
            0
        };
        RAM_BASE.saturating_add(self.text_offset).saturating_add(up)
    }
}

impl Image {
    /// Reads the image at `path`, or the default image if there is no path.
    /// Fails with an [`ImageError`], one line with what to do.
    pub fn open(path: Option<&Path>) -> Result<Self, ImageError> {
        let path = match path {
            Some(path) => path.to_path_buf(),
            None => default_path()?,
        };
        let bytes = std::fs::read(&path).map_err(|source| ImageError::Unreadable {
            path: path.clone(),
            source,
        })?;
        let malformed = |what| ImageError::Malformed {
            path: path.clone(),
            what,
        };
        let header = HeaderFields::parse(&bytes).map_err(malformed)?;
        let boot_record = bootrec::find(&bytes).map_err(malformed)?;
        let mut sha256 = String::new();
        for byte in Sha256::digest(&bytes) {
            // Writing into a String cannot fail.
            let _ = write!(sha256, "{byte:02x}");
        }
        Ok(Self {
            sha256,
            bytes: bytes.len() as u64,
            header,
            boot_record,
            path,
        })
    }

    /// Reads the image with test hooks.
    /// Fails with an [`ImageError`].
    pub fn open_test() -> Result<Self, ImageError> {
        let here = current_dir()?;
        let path = find_upwards(&here, TEST_IMAGE).ok_or(ImageError::NoTestImage(here))?;
        Self::open(Some(&path))
    }

    /// Memory to keep free from the image's first byte.
    pub fn span(&self) -> u64 {
        self.bytes.max(self.header.image_size)
    }
}

/// The folder of the default image, where `cargo xtask` puts its results: searched from the current
/// directory upwards.
/// Fails with [`ImageError::NotFound`] or [`ImageError::Unreadable`]: there is no image.
pub fn default_folder() -> Result<PathBuf, ImageError> {
    let mut path = default_path()?;
    path.pop();
    Ok(path)
}

fn default_path() -> Result<PathBuf, ImageError> {
    let here = current_dir()?;
    find_upwards(&here, DEFAULT_IMAGE).ok_or(ImageError::NotFound(here))
}

fn current_dir() -> Result<PathBuf, ImageError> {
    std::env::current_dir().map_err(|source| ImageError::Unreadable {
        path: ".".into(),
        source,
    })
}

/// The file `image` in `start` or the nearest directory above it.
fn find_upwards(start: &Path, image: &str) -> Option<PathBuf> {
    start
        .ancestors()
        .map(|dir| dir.join(image))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_kexec::image::HEADER_BYTES;
    use granule_testing::text::assert_contains;

    fn header(text_offset: u64, image_size: u64, flags: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[8..16].copy_from_slice(&text_offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&image_size.to_le_bytes());
        bytes[24..32].copy_from_slice(&flags.to_le_bytes());
        bytes[56..60].copy_from_slice(b"ARM\x64");
        bytes
    }

    #[test]
    fn reads_the_fields() {
        let parsed = HeaderFields::parse(&header(0x8_0000, 0x12_3456, 0b1010)).unwrap();
        assert_eq!(
            parsed,
            HeaderFields {
                text_offset: 0x8_0000,
                image_size: 0x12_3456
            }
        );
        assert_eq!(parsed.qemu_load_address(), 0x4008_0000);
    }

    #[test]
    fn qemu_moves_an_image_off_the_start_of_ram() {
        let at = |text_offset| {
            HeaderFields {
                text_offset,
                image_size: 1,
            }
            .qemu_load_address()
        };
        assert_eq!(at(0), 0x4020_0000);
        assert_eq!(at(4095), 0x4020_0fff);
        assert_eq!(at(4096), 0x4000_1000);
        assert_eq!(at(u64::MAX), u64::MAX);
    }

    #[test]
    fn every_truncation_is_refused() {
        let whole = header(0, 4096, 0);
        for length in 0..HEADER_BYTES {
            let error = HeaderFields::parse(&whole[..length]).unwrap_err();
            assert_contains(&error, &format!("is {length} bytes long"));
        }
    }

    #[test]
    fn other_files_are_named_for_what_they_are() {
        assert!(HeaderFields::parse(b"\x7fELF").unwrap_err().contains("ELF"));
        assert!(HeaderFields::parse(&[0; 64]).unwrap_err().contains("magic"));
        assert!(
            HeaderFields::parse(&header(0, 1, 1))
                .unwrap_err()
                .contains("big-endian")
        );
        assert!(
            HeaderFields::parse(&header(0, 0, 0))
                .unwrap_err()
                .contains("image_size")
        );
    }

    #[test]
    fn the_default_is_found_from_below_and_its_absence_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        assert_eq!(find_upwards(&below, DEFAULT_IMAGE), None);
        let image = dir.path().join(DEFAULT_IMAGE);
        std::fs::create_dir_all(image.parent().unwrap()).unwrap();
        std::fs::write(&image, b"x").unwrap();
        assert_eq!(find_upwards(&below, DEFAULT_IMAGE), Some(image));
        assert_eq!(find_upwards(&below, TEST_IMAGE), None);
        let line = ImageError::NotFound(below.clone()).to_string();
        assert!(line.contains("`cargo xtask image`"), "{line}");
        let line = ImageError::NoTestImage(below).to_string();
        assert!(line.contains("`cargo xtask image --test`"), "{line}");
    }

    #[test]
    fn a_file_gets_its_digest_and_span() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), header(0, 4096, 0)).unwrap();
        let image = Image::open(Some(file.path())).unwrap();
        assert_eq!((image.bytes, image.span()), (64, 4096));
        assert_eq!(image.sha256.len(), 64);
        assert_eq!(image.boot_record, None);
        std::fs::write(file.path(), b"abc").unwrap();
        let line = Image::open(Some(file.path())).unwrap_err().to_string();
        assert!(line.contains("3 bytes long"), "{line}");
        let line = Image::open(Some(Path::new("/nonexistent/Image")))
            .unwrap_err()
            .to_string();
        assert_contains(&line, "/nonexistent/Image");
        assert_contains(&line, "cargo xtask image");
    }

    #[test]
    fn the_digest_is_sha_256() {
        // The published SHA-256 of the three bytes "abc".
        let mut hex = String::new();
        for byte in Sha256::digest(b"abc") {
            let _ = write!(hex, "{byte:02x}");
        }
        assert_eq!(
            hex,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
