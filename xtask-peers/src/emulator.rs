//! Debian's programs for this machine, of other versions than its own: QEMUs, and `dtc`. They are unpacked under the
//! target folder with all that they depend on, and started with the loader and the libraries of their own suite.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::apt::Apt;
use xtask::deadline::run_for;

/// A QEMU that is wanted: the version that it must have, its suites, the one it is from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) version: &'static str,
    pub(crate) suites: [&'static str; 2],
}

/// The oldest and the newest that can be watched.
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

/// A program: its package, its path there, and the suites, the last of which it is from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    pub(crate) package: &'static str,
    pub(crate) path: &'static str,
    pub(crate) suites: &'a [&'static str],
}

/// Unpacking takes seconds, starting a moment.
const LIMIT: Duration = Duration::from_secs(120);

/// The program that starts a QEMU, fetched and unpacked if it is not there or `fresh`.
pub(crate) fn qemu(wanted: &Wanted, folder: &Path, fresh: bool) -> Result<PathBuf> {
    let folder = folder.join(format!("qemu-{}", wanted.version));
    let program = folder.join("qemu-system-aarch64");
    if fresh || version(&program).is_err() {
        let qemu = Program {
            package: "qemu-system-arm",
            path: "usr/bin/qemu-system-aarch64",
            suites: &wanted.suites,
        };
        unpack(&qemu, &folder, &program)?;
    }
    let found = version(&program)?;
    ensure!(
        found.starts_with(&format!("{}.", wanted.version)),
        "{} has QEMU {found}, and {} is wanted",
        wanted.suites[1],
        wanted.version
    );
    Ok(program)
}

/// The script that starts a program, fetched and unpacked if it is not there or `fresh`.
pub(crate) fn program(wanted: &Program<'_>, folder: &Path, fresh: bool) -> Result<PathBuf> {
    let (_, name) = wanted
        .path
        .rsplit_once('/')
        .context("a path without a folder")?;
    let program = folder.join(name);
    if fresh || !program.is_file() {
        unpack(wanted, folder, &program)?;
    }
    Ok(program)
}

fn unpack(wanted: &Program<'_>, folder: &Path, program: &Path) -> Result<()> {
    let Program {
        package, suites, ..
    } = *wanted;
    let suite = *suites.last().context("a program of no suite")?;
    eprintln!("granule: fetching {package} of {suite}");
    unpack_from(wanted, suite, folder, program).with_context(|| format!("{package} of {suite}"))
}

fn unpack_from(wanted: &Program<'_>, suite: &str, folder: &Path, program: &Path) -> Result<()> {
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let apt = Apt::new(&folder.join("apt"), architecture.trim())?;
    apt.update(&wanted.suites.iter().copied().collect())?;
    let packages = apt.download_with_dependencies(wanted.package, suite)?;
    let root = folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    for package in &packages {
        output(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root))?;
    }
    let root = root
        .canonicalize()
        .context("the folder of the program is gone")?;
    fs::write(program, script(&root, wanted.path)?)
        .context("cannot write the script that starts it")?;
    fs::set_permissions(program, fs::Permissions::from_mode(0o755))
        .context("cannot make the script that starts it a program")
}

/// A shell script that starts the program at a path with its own loader and libraries.
fn script(root: &Path, program: &str) -> Result<String> {
    let mut loaders = Vec::new();
    let mut libraries = Vec::new();
    find(root, &mut loaders, &mut libraries)?;
    let loader = loaders.first().context("it has no loader of programs")?;
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let libraries: Vec<_> = libraries
        .iter()
        .map(|it| it.display().to_string())
        .collect();
    // QEMU's firmware.
    let share = root.join("usr/share/qemu");
    let share = if share.is_dir() {
        format!(" -L {}", quoted(&share))
    } else {
        String::new()
    };
    Ok(format!(
        "#!/bin/sh\nexec {} --library-path {} {}{share} \"$@\"\n",
        quoted(loader),
        quoted(Path::new(&libraries.join(":"))),
        quoted(&root.join(program)),
    ))
}

/// The loaders of programs below a folder, and the folders with shared libraries.
fn find(folder: &Path, loaders: &mut Vec<PathBuf>, libraries: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .filter_map(Result::ok)
        .collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        // A link may lead out of the folder.
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

/// The version that a QEMU reports.
fn version(program: &Path) -> Result<String> {
    let told = output(Command::new(program).arg("--version"))?;
    let version = told.strip_prefix("QEMU emulator version ");
    let version = version.and_then(|rest| rest.split_whitespace().next());
    let version = version.with_context(|| format!("{} is no QEMU", program.display()))?;
    Ok(version.to_owned())
}

fn output(command: &mut Command) -> Result<String> {
    let command = std::mem::replace(command, Command::new(""));
    let text = xtask::workspace::show(&command);
    let finished = run_for(command, LIMIT)?;
    let ended_well = finished.status.is_some_and(|status| status.success());
    let why = finished.stderr.lines().next().unwrap_or("it failed");
    ensure!(ended_well, "`{text}`: {why}");
    Ok(finished.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_names_loader_and_libraries_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let error = script(root, "usr/bin/a").unwrap_err();
        assert!(error.to_string().contains("no loader"));
        for path in [
            "lib/a/ld-linux-x.so.2",
            "lib/a/libc.so.6",
            "usr/lib/b/libz.so.1",
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        // A link to the machine's own loader is not taken.
        std::os::unix::fs::symlink("/lib64/ld-linux-y.so.2", root.join("ld-linux-y.so.2")).unwrap();
        let root = root.display();
        let text = script(folder.path(), "usr/bin/a").unwrap();
        assert!(
            text.contains(&format!(
                "exec '{root}/lib/a/ld-linux-x.so.2' --library-path '"
            )),
            "{text}"
        );
        assert!(text.contains(&format!("{root}/usr/lib/b'")));
        assert!(
            text.ends_with(&format!(" '{root}/usr/bin/a' \"$@\"\n")),
            "{text}"
        );
        fs::create_dir_all(folder.path().join("usr/share/qemu")).unwrap();
        let text = script(folder.path(), "usr/bin/a").unwrap();
        let end = format!(" -L '{root}/usr/share/qemu' \"$@\"\n");
        assert!(text.ends_with(&end), "{text}");
    }
}
