//! The command of `--linux`, and a look at its files before QEMU starts, which runs a file that is not an image too.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;
use granule_kexec::image::{ImageError, ImageHeader, Looks};

/// The length of an image's header.
const HEADER: usize = 64;

/// A command that boots a Linux image.
pub(super) fn command(
    qemu: &Path,
    image: &Path,
    initrd: Option<&Path>,
    cpu: &str,
    append: &str,
) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![qemu.into()];
    for word in [
        "-machine",
        "virt,gic-version=3",
        "-cpu",
        cpu,
        "-m",
        "1G",
        "-display",
        "none",
        "-nodefaults",
        "-no-reboot",
        "-serial",
        "stdio",
        "-kernel",
    ] {
        words.push(word.into());
    }
    words.push(image.into());
    if let Some(initrd) = initrd {
        words.extend(["-initrd".into(), initrd.into()]);
    }
    let append = format!("console=ttyAMA0 panic=-1 {append}");
    words.extend(["-append".into(), append.trim_end().into()]);
    words
}

/// Looks at the files of a Linux before QEMU does, which starts a file that is not an image too.
/// Fails with one line for a file that cannot be booted.
pub(super) fn check(image: &Path, initrd: Option<&Path>) -> Result<(), String> {
    let refused = |option: &str, path: &Path, why: &dyn std::fmt::Display| {
        Err(format!("{option} {}: {why}", path.display()))
    };
    if let Some(path) = initrd {
        match first_bytes(path) {
            Ok(bytes) if bytes.is_empty() => return refused("--initrd", path, &"it has no bytes"),
            Ok(_) => {}
            Err(error) => return refused("--initrd", path, &error),
        }
    }
    let bytes = match first_bytes(image) {
        Ok(bytes) => bytes,
        Err(error) => return refused("--linux", image, &error),
    };
    let unpacked = match ImageHeader::read(&bytes) {
        Err(ImageError::NotAnImage(Looks::Compressed("gzip"))) => {
            let mut unpacked = [0; HEADER];
            // QEMU unpacks it too. What is cut short or broken has no magic number.
            let _ = GzDecoder::new(bytes.as_slice()).read_exact(&mut unpacked);
            ImageHeader::read(&unpacked)
        }
        read => read,
    };
    match unpacked {
        // QEMU unpacks an EFI zboot image as well, or reports what it cannot unpack.
        Ok(_) | Err(ImageError::NotAnImage(Looks::Compressed("an EFI zboot image"))) => Ok(()),
        Err(error) => refused("--linux", image, &format!("it {error}")),
    }
}

/// The beginning of a file, which has the header of an image.
fn first_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(4096).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write as _;
    use std::path::PathBuf;

    #[test]
    fn only_an_arm64_image_is_started_as_linux() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let mut header = [0; 64];
        header[17] = 1;
        header[56..60].copy_from_slice(b"ARM\x64");
        let image = file("Image", &header);
        assert_eq!(check(&image, Some(&image)), Ok(()));
        let packed = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let image_gz = file("Image.gz", &packed(&header));
        let text_gz = file("text.gz", &packed(&[b'x'; 64]));
        assert_eq!(check(&image_gz, None), Ok(()));
        let missing = folder.path().join("missing");
        let mut zboot = [0; 64];
        zboot[..8].copy_from_slice(b"MZ\0\0zimg");
        assert_eq!(check(&file("zboot", &zboot), None), Ok(()));
        for (image, initrd, part) in [
            (&image, Some(&missing), "--initrd "),
            (&image, Some(&file("none", b"")), "it has no bytes"),
            (&missing, None, "No such file"),
            (&folder.path().to_path_buf(), None, "not a regular file"),
            (&file("xz", b"\xfd7zXZ\0"), None, "compressed (xz)"),
            (&text_gz, None, "offset 56"),
            (&file("text", &[b'x'; 64]), None, "offset 56"),
        ] {
            let error = check(image, initrd.map(PathBuf::as_path)).unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
    }
}
