//! The files that a run writes, tried before the guest starts: a run of minutes must not end without them.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

/// A file that can be written. What was in it stays until it is written.
#[derive(Debug)]
pub(super) struct Output {
    /// The file, if it is new and still empty: it goes when the run ends before it begins.
    new: Option<PathBuf>,
}

impl Output {
    /// Tries the file of `option`.
    /// Fails with one line if it cannot be written, or is not a regular file.
    pub(super) fn of(option: &str, path: &Path) -> Result<Self, String> {
        let refused = |why: &str| {
            format!(
                "{option} {}: {why}; name a file that can be written",
                path.display()
            )
        };
        // A FIFO would wait for its reader here, and a device keeps nothing.
        let is_new = match fs::metadata(path) {
            Ok(about) if about.is_file() => false,
            Ok(about) if about.is_dir() => return Err(refused("it is a directory")),
            Ok(_) => return Err(refused("it is not a regular file")),
            Err(_) => true,
        };
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| refused(&error.to_string()))?;
        Ok(Self {
            new: is_new.then(|| path.to_path_buf()),
        })
    }

    /// The run has begun: the file will be written.
    pub(super) fn keep(mut self) {
        self.new = None;
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(path) = &self.new {
            // An empty file that stays does no harm beside the error that is printed.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::text::{assert_contains, assert_starts_with};

    #[test]
    fn an_early_end_leaves_files_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.gz");
        drop(Output::of("--record", &path).unwrap());
        assert!(!path.exists());
        Output::of("--record", &path).unwrap().keep();
        assert!(path.exists());
        fs::write(&path, "old").unwrap();
        drop(Output::of("--record", &path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }

    #[test]
    fn an_output_that_is_not_a_regular_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none/trace");
        for (path, part) in [
            (folder.path(), "directory"),
            (Path::new("/dev/full"), "not a regular file"),
            (&missing, "No such file"),
        ] {
            let error = Output::of("--report", path).unwrap_err();
            assert_starts_with(&error, "--report ");
            assert_contains(&error, part);
        }
    }
}
