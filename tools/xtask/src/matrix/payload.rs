//! Initial RAM disks for next kernels: each has one file of a given number of bytes, in which no two pages
//! are alike.
//!
//! The disks stay in their place, so that a boot can be repeated by its command alone.

use std::path::PathBuf;

use anyhow::Result;
use granule_cli::Initramfs;

use xtask::files;
use xtask::workspace::target_dir;

/// The path of the disk with this many bytes.
pub(crate) fn path(bytes: usize) -> PathBuf {
    let name = format!("payload-{bytes}.cpio");
    target_dir().join("soak").join(name)
}

/// Writes that disk. Its bytes depend on their number only.
pub(crate) fn make(bytes: usize) -> Result<()> {
    let archive = archive(bytes);
    files::replace(&path(bytes), |to| Ok(archive.write(to)?))
}

fn archive(bytes: usize) -> Initramfs {
    let mut content = vec![0; bytes];
    fastrand::Rng::with_seed(bytes as u64).fill(&mut content);
    Initramfs::new().file("/payload", &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_bytes_is_always_the_same_disk() {
        let folder = tempfile::tempdir().unwrap();
        let written = |bytes| {
            let to = folder.path().join("disk");
            archive(bytes).write(&to).unwrap();
            std::fs::read(to).unwrap()
        };
        assert_eq!(written(1000), written(1000));
        assert_ne!(written(1000)[..1000], written(1004)[..1000]);
        for bytes in [1, 77, 5000] {
            assert!(written(bytes).len() > bytes);
        }
        assert_ne!(path(1), path(2));
    }
}
