//! Files out of a Debian package: an `ar` archive with a `tar` archive in it, compressed by `xz`.
//!
//! The bytes come from outside: whatever they are, the result is a file or a one-line error. Nothing is
//! written to the package's own paths.

use std::io::Read;

use anyhow::{Context, Result, bail, ensure};
use lzma_rust2::XzReader;

/// A kernel has some 50 MiB; a header that asks for more than this limit is refused.
const MOST_BYTES: u64 = 256 << 20;

/// The first regular file whose path `wanted` accepts; paths begin without a slash or dot.
pub(crate) fn file(package: impl Read, wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>> {
    let mut found = take(package, wanted, 1)?;
    let (_, bytes) = found.pop().context("what was looked for is not in it")?;
    Ok(bytes)
}

/// All regular files whose paths `wanted` accepts, with their paths.
pub(crate) fn files(
    package: impl Read,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<(String, Vec<u8>)>> {
    take(package, wanted, usize::MAX)
}

/// What is compressed by `xz`, as modules of kernels are.
pub(crate) fn unpacked(compressed: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reader = XzReader::new(compressed, true);
    let broken = "what is compressed in it is broken or cut off";
    reader
        .take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .context(broken)?;
    ensure!(
        bytes.len() as u64 <= MOST_BYTES,
        "it has more than the {MOST_BYTES} bytes that are taken"
    );
    Ok(bytes)
}

fn take(
    package: impl Read,
    wanted: impl Fn(&str) -> bool,
    most: usize,
) -> Result<Vec<(String, Vec<u8>)>> {
    let mut archive = ar::Archive::new(package);
    while let Some(member) = archive.next_entry() {
        let member = member.context("it is no Debian package, or cut off")?;
        let name = String::from_utf8_lossy(member.header().identifier()).into_owned();
        match name.trim_end_matches('/') {
            "data.tar.xz" => return data(XzReader::new(member, true), wanted, most),
            "data.tar" => return data(member, wanted, most),
            other if other.starts_with("data.") => {
                bail!("its {other} is compressed in a way that is not known here: xz is")
            }
            _ => {}
        }
    }
    bail!("it has no data.tar.xz");
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
        let entry = entry.context(broken)?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let path = path.trim_start_matches("./").trim_start_matches('/');
        if !entry.header().entry_type().is_file() || !wanted(path) {
            continue;
        }
        let size = entry.size();
        if size > MOST_BYTES {
            bail!("its {path} claims {size} bytes, more than the {MOST_BYTES} that are taken");
        }
        let mut bytes = Vec::new();
        entry
            .take(MOST_BYTES)
            .read_to_end(&mut bytes)
            .with_context(|| format!("its {path} is broken or cut off"))?;
        if bytes.len() as u64 != size {
            bail!("its {path} is cut off: {} of {size} bytes", bytes.len());
        }
        found.push((path.to_owned(), bytes));
        if found.len() >= most {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            archive.append_data(&mut header, path, *content).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn package(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = ar::Builder::new(Vec::new());
        for (name, content) in members {
            let header = ar::Header::new(name.as_bytes().to_vec(), content.len() as u64);
            archive.append(&header, *content).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn compressed(bytes: &[u8]) -> Vec<u8> {
        let options = lzma_rust2::XzOptions::with_preset(0);
        let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    fn whole() -> Vec<u8> {
        let noise: Vec<u8> = (0..5000_u32)
            .map(|n| (n.wrapping_mul(n) >> 3) as u8)
            .collect();
        let data = compressed(&tar(&[
            ("./boot/config-1", b"x"),
            ("./boot/vmlinuz-1", &noise),
        ]));
        package(&[
            ("debian-binary", b"2.0\n"),
            ("control.tar.xz", b"?"),
            ("data.tar.xz", &data),
        ])
    }

    fn kernel(bytes: &[u8]) -> Result<Vec<u8>> {
        file(bytes, |path| path.starts_with("boot/vmlinuz-"))
    }

    #[test]
    fn a_file_is_found() {
        assert_eq!(kernel(&whole()).unwrap().len(), 5000);
        assert_eq!(
            file(&whole()[..], |path| path == "boot/config-1").unwrap(),
            b"x"
        );
        let plain = package(&[("data.tar", &tar(&[("boot/vmlinuz-2", b"k")]))]);
        assert_eq!(kernel(&plain).unwrap(), b"k");
    }

    #[test]
    fn a_package_that_is_cut_off_anywhere_is_one_line() {
        let whole = whole();
        let mut cut = 0;
        for length in (0..whole.len()).step_by(37) {
            // Truncation behind the file does no harm.
            if let Err(error) = kernel(&whole[..length]) {
                assert!(!format!("{error:#}").contains('\n'));
                cut += 1;
            }
        }
        assert!(cut > whole.len() / 37 / 2, "{cut} of {}", whole.len() / 37);
    }

    #[test]
    fn each_flipped_byte_is_an_error_or_harmless() {
        let whole = whole();
        for at in (0..whole.len()).step_by(11) {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x55;
            if let Err(error) = kernel(&flipped) {
                assert!(!format!("{error:#}").contains('\n'));
            }
        }
    }

    #[test]
    fn a_file_that_is_no_package_is_refused() {
        let says = |bytes: &[u8]| format!("{:#}", kernel(bytes).unwrap_err());
        assert!(says(b"no archive at all").contains("no Debian package"));
        assert!(says(b"").contains("no Debian package, or cut off"));
        assert_eq!(says(&package(&[("other", b"x")])), "it has no data.tar.xz");
        assert_eq!(
            says(&package(&[("data.tar.zst", b"x")])),
            "its data.tar.zst is compressed in a way that is not known here: xz is"
        );
        let other = package(&[("data.tar", &tar(&[("boot/other", b"k")]))]);
        assert_eq!(says(&other), "what was looked for is not in it");
        // A length in the header that no file can have.
        let mut header = tar::Header::new_gnu();
        header.set_path("boot/vmlinuz-3").unwrap();
        header.set_size(1 << 40);
        header.set_cksum();
        let huge = package(&[("data.tar", header.as_bytes())]);
        assert!(
            says(&huge).contains("claims 1099511627776 bytes"),
            "{}",
            says(&huge)
        );
    }
}
