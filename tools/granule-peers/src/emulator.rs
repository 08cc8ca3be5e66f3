//! Fetches Debian's QEMUs of other versions than this machine's. They are unpacked under the target
//! folder with all dependencies, and started with the loader and the libraries of their suite.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use xtask::files;

use crate::apt::{Program, own_architecture, run};

/// A QEMU: the required version, and the suites, the last of which it is from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) version: &'static str,
    pub(crate) suites: [&'static str; 2],
}

/// The oldest and the newest supported QEMU.
pub(crate) const QEMUS: [Wanted; 2] = [
    Wanted {
        version: "10.0",
        suites: ["bookworm", "bookworm-backports"],
    },
    Wanted {
        version: "11.1",
        suites: ["trixie", "trixie-backports"],
    },
];

/// Returns the program that starts a QEMU, and fetches it if it is missing or `fresh`.
pub(crate) fn qemu(wanted: &Wanted, folder: &Path, fresh: bool) -> Result<PathBuf> {
    let folder = folder.join(format!("qemu-{}", wanted.version));
    let script = folder.join("qemu-system-aarch64");
    if fresh || version(&script).is_err() {
        let qemu = Program {
            package: "qemu-system-arm",
            path: "usr/bin/qemu-system-aarch64",
            suites: &wanted.suites,
        };
        let root = qemu.unpacked(&own_architecture()?, &folder, true)?;
        files::write(&script, starter(&root, qemu.path)?)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
            .context("cannot make the script that starts it a program")?;
    }
    let found = version(&script)?;
    ensure!(
        found.starts_with(&format!("{}.", wanted.version)),
        "{} has QEMU {found}, expected {}",
        wanted.suites[1],
        wanted.version
    );
    Ok(script)
}

/// Returns the command line that starts the program at a path with its own loader and libraries.
pub(crate) fn words(root: &Path, program: &str) -> Result<Vec<String>> {
    let mut loaders = Vec::new();
    let mut libraries = Vec::new();
    find(root, &mut loaders, &mut libraries)?;
    let loader = loaders.first().context("it has no program loader")?;
    let libraries: Vec<_> = libraries
        .iter()
        .map(|it| it.display().to_string())
        .collect();
    Ok(vec![
        loader.display().to_string(),
        "--library-path".to_owned(),
        libraries.join(":"),
        root.join(program).display().to_string(),
    ])
}

/// Writes a shell script that starts the program at a path with its own loader and libraries.
fn starter(root: &Path, program: &str) -> Result<String> {
    let mut words = words(root, program)?;
    // The folder of QEMU's firmware.
    let share = root.join("usr/share/qemu");
    if share.is_dir() {
        words.extend(["-L".to_owned(), share.display().to_string()]);
    }
    let quoted = words
        .iter()
        .map(|it| format!("'{}' ", it.replace('\'', r"'\''")));
    Ok(format!(
        "#!/bin/sh\nexec {}\"$@\"\n",
        quoted.collect::<String>()
    ))
}

/// Finds the program loaders below a folder, and the folders with shared libraries.
fn find(folder: &Path, loaders: &mut Vec<PathBuf>, libraries: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .filter_map(Result::ok)
        .collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        // A link may point out of the folder.
        let kind = entry.file_type().context("cannot read a file's type")?;
        if kind.is_dir() {
            find(&path, loaders, libraries)?;
        } else if kind.is_file() && name.starts_with("ld-linux-") {
            loaders.push(path);
        } else if name.contains(".so") && libraries.last().map(PathBuf::as_path) != Some(folder) {
            libraries.push(folder.to_path_buf());
        }
    }
    Ok(())
}

fn version(program: &Path) -> Result<String> {
    let output = run(Command::new(program).arg("--version"))?;
    let version = output.strip_prefix("QEMU emulator version ");
    let version = version.and_then(|rest| rest.split_whitespace().next());
    let version = version.with_context(|| format!("{} is not a QEMU", program.display()))?;
    Ok(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_names_loader_and_libraries_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let error = starter(root, "usr/bin/a").unwrap_err();
        assert!(error.to_string().contains("no program loader"));
        for path in [
            "lib/a/ld-linux-x.so.2",
            "lib/a/libc.so.6",
            "usr/lib/b/libz.so.1",
        ] {
            let path = root.join(path);
            files::folder(path.parent().unwrap()).unwrap();
            files::write(&path, "").unwrap();
        }
        // A link to the machine's own loader is ignored.
        std::os::unix::fs::symlink("/lib64/ld-linux-y.so.2", root.join("ld-linux-y.so.2")).unwrap();
        let text = starter(root, "usr/bin/a").unwrap();
        let path = root.display();
        let start = format!("exec '{path}/lib/a/ld-linux-x.so.2' '--library-path' '");
        assert!(text.contains(&start), "{text}");
        assert!(text.contains(&format!("{path}/usr/lib/b'")));
        let end = format!(" '{path}/usr/bin/a' \"$@\"\n");
        assert!(text.ends_with(&end), "{text}");
        files::folder(&root.join("usr/share/qemu")).unwrap();
        let text = starter(root, "usr/bin/a").unwrap();
        let end = format!(" '-L' '{path}/usr/share/qemu' \"$@\"\n");
        assert!(text.ends_with(&end), "{text}");
    }
}
