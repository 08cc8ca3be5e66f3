//! Reads files of Debian packages, which `dpkg-deb` converts to `tar` archives. Nothing is
//! installed.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Reads the first regular file whose path `wanted` accepts; paths begin without a slash or dot.
pub(crate) fn file(package: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>> {
    let mut found = take(package, wanted, 1)?;
    let (_, bytes) = found.pop().context("the file is not in the package")?;
    Ok(bytes)
}

/// Reads all regular files whose paths `wanted` accepts, with their paths.
pub(crate) fn files(
    package: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<(String, Vec<u8>)>> {
    take(package, wanted, usize::MAX)
}

/// Unpacks data that is compressed by `xz`, as kernel modules are.
pub(crate) fn unpacked(compressed: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut reader = lzma_rust2::XzReader::new(compressed, true);
    let broken = "the compressed data is broken or cut off";
    reader.read_to_end(&mut bytes).context(broken)?;
    Ok(bytes)
}

fn take(
    package: &Path,
    wanted: impl Fn(&str) -> bool,
    most: usize,
) -> Result<Vec<(String, Vec<u8>)>> {
    let mut dpkg = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start dpkg-deb: install Debian's package `dpkg`")?;
    let tar = dpkg.stdout.take().context("dpkg-deb has no output")?;
    let found = data(tar, wanted, most);
    // The search may stop before the end; then dpkg-deb fails to write.
    let is_enough = found.as_ref().is_ok_and(|found| found.len() >= most);
    let ended = dpkg.wait_with_output().context("dpkg-deb does not end")?;
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    let why = errors.lines().next().unwrap_or("no error message");
    ensure!(
        is_enough || ended.status.success(),
        "it is not a Debian package, or cut off: {why}"
    );
    found
}

fn data(
    tar: impl Read,
    wanted: impl Fn(&str) -> bool,
    most: usize,
) -> Result<Vec<(String, Vec<u8>)>> {
    let mut archive = tar::Archive::new(tar);
    let broken = "its data.tar is broken or cut off";
    let mut found = Vec::new();
    for entry in archive.entries().context(broken)? {
        let mut entry = entry.context(broken)?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let path = path.trim_start_matches("./").trim_start_matches('/');
        if entry.header().entry_type().is_file() && wanted(path) {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).context(broken)?;
            ensure!(bytes.len() as u64 == entry.size(), "its {path} is cut off");
            found.push((path.to_owned(), bytes));
        }
        if found.len() >= most {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_and_a_truncated_package_is_an_error_of_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (path, text) in [
            (
                "tree/DEBIAN/control",
                "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n",
            ),
            ("tree/boot/config-1", "x"),
            ("tree/boot/vmlinuz-1", &"kernel".repeat(900)),
        ] {
            xtask::files::folder(at(path).parent().unwrap()).unwrap();
            xtask::files::write(&at(path), text).unwrap();
        }
        let mut build = Command::new("dpkg-deb");
        build
            .args(["-Zxz", "--build"])
            .arg(at("tree"))
            .arg(at("whole.deb"));
        let built = build.output().expect("dpkg-deb is needed");
        assert!(built.status.success(), "{built:?}");
        let kernel = |name: &str| file(&at(name), |path| path.starts_with("boot/vmlinuz-"));
        assert_eq!(kernel("whole.deb").unwrap().len(), 5400);
        assert_eq!(files(&at("whole.deb"), |_| true).unwrap().len(), 2);
        let error = file(&at("whole.deb"), |path| path == "vmlinuz-1").unwrap_err();
        assert_eq!(error.to_string(), "the file is not in the package");
        let whole = std::fs::read(at("whole.deb")).unwrap();
        for length in (0..whole.len() - 100).step_by(whole.len() / 8) {
            std::fs::write(at("cut.deb"), &whole[..length]).unwrap();
            let error = format!("{:#}", kernel("cut.deb").unwrap_err());
            assert!(
                error.contains("cut off") && !error.contains('\n'),
                "{error}"
            );
        }
        assert!(unpacked(&whole[..]).is_err());
    }
}
