//! Calls the ordinary apt client with an architecture, lists and a cache of its own. It installs
//! nothing, does not change files of the machine, does not need root, and checks the signatures of
//! the lists.
//!
//! Packages come from the sources that the machine's apt is configured with; only the suites are
//! chosen here.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::index::{Entry, field, paragraphs};
use xtask::deadline::run_for;
use xtask::files;

/// The time limit: the lists of a suite are a few megabytes, a package a hundred at most.
const LIMIT: Duration = Duration::from_secs(600);
/// The architecture of the compared packages.
pub(crate) const ARM64: &str = "arm64";
/// Debian's signing keys, on a machine that does not have them among apt's trusted keys.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt with folders of its own.
#[derive(Debug)]
pub(crate) struct Apt {
    folder: PathBuf,
    architecture: String,
}

/// A program: its package, its path there, and the suites, of which it is from the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    pub(crate) package: &'static str,
    pub(crate) path: &'static str,
    pub(crate) suites: &'a [&'static str],
}

/// Returns Debian's name of this machine's architecture.
pub(crate) fn own_architecture() -> Result<String> {
    let output = run(Command::new("dpkg").arg("--print-architecture"))?;
    Ok(output.trim().to_owned())
}

impl Program<'_> {
    /// Unpacks the program with all its dependencies below a folder, if it is missing or `fresh`.
    /// Returns the folder with all files.
    pub(crate) fn unpacked(
        &self,
        architecture: &str,
        folder: &Path,
        fresh: bool,
    ) -> Result<PathBuf> {
        let root = folder.join("root");
        if fresh || !root.join(self.path).is_file() {
            let suite = *self.suites.last().context("a program of no suite")?;
            eprintln!("granule: fetching {} of {suite}", self.package);
            let fetched = self.unpack(architecture, suite, folder, &root);
            fetched.with_context(|| format!("{} of {suite}", self.package))?;
        }
        let root = root.canonicalize();
        root.context("the folder of the program is gone")
    }

    fn unpack(&self, architecture: &str, suite: &str, folder: &Path, root: &Path) -> Result<()> {
        let apt = Apt::new(&folder.join("apt"), architecture)?;
        apt.update(&self.suites.iter().copied().collect())?;
        let packages = apt.download_with_dependencies(self.package, suite)?;
        let remove = |path: &Path| match path.exists() {
            true => fs::remove_dir_all(path)
                .with_context(|| format!("cannot remove {}", path.display())),
            false => Ok(()),
        };
        // Only a complete folder gets its final name.
        let new = folder.join("new");
        remove(&new)?;
        files::folder(&new)?;
        for package in packages {
            run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&new))?;
        }
        remove(root)?;
        fs::rename(&new, root).with_context(|| format!("cannot make {}", root.display()))
    }
}

impl Apt {
    pub(crate) fn new(folder: &Path, architecture: &str) -> Result<Self> {
        for part in ["lists/partial", "archives/partial", "none"] {
            files::folder(&folder.join(part))?;
        }
        // Installed packages do not count for another architecture.
        files::write(&folder.join("status"), "")?;
        let folder = folder
            .canonicalize()
            .with_context(|| format!("cannot open {}", folder.display()))?;
        let architecture = architecture.to_owned();
        Ok(Self {
            folder,
            architecture,
        })
    }

    /// Fetches the lists of these suites from the first of the machine's sources that has all of
    /// them.
    pub(crate) fn update(&self, suites: &BTreeSet<&str>) -> Result<()> {
        let mirrors = mirrors(&run(Command::new("apt-get").arg("indextargets"))?);
        ensure!(!mirrors.is_empty(), "apt has no package source");
        let mut why = Vec::new();
        for mirror in &mirrors {
            let sources = sources(mirror, suites, &self.architecture);
            files::write(&self.folder.join("sources.list"), sources)?;
            // Without the last option a failed download is only a warning.
            let words = ["update", "-o", "APT::Update::Error-Mode=any"];
            match self.call(&words, &self.folder) {
                Ok(_) => return Ok(()),
                Err(error) => why.push(format!("{error:#}")),
            }
        }
        bail!("{}", why.join("; "));
    }

    pub(crate) fn list(&self, suite: &str) -> Result<String> {
        let release = format!("Release: {suite}");
        let words = ["indextargets", "Created-By: Packages", &release];
        let targets = self.call(&words, &self.folder)?;
        let file = paragraphs(&targets).find_map(|target| field(target, "Filename"));
        let file = file.with_context(|| format!("apt has no list of {suite}"))?;
        files::text(Path::new(file))
    }

    /// Downloads a package into an empty folder.
    pub(crate) fn download(&self, entry: &Entry, to: &Path) -> Result<PathBuf> {
        let package = format!("{}={}", entry.package, entry.version);
        self.call(&["download", &package], to)?;
        let mut packages = packages(to)?;
        let first = packages.pop();
        first.with_context(|| format!("apt downloaded no file for {package}"))
    }

    /// Downloads a package of a suite with all its dependencies, including the C library.
    fn download_with_dependencies(&self, package: &str, suite: &str) -> Result<Vec<PathBuf>> {
        let archives = self.folder.join("archives");
        // Other versions must not be among them.
        fs::remove_dir_all(&archives).context("cannot empty apt's archives")?;
        files::folder(&archives.join("partial"))?;
        let words = "install --download-only --yes --no-install-recommends";
        // Nothing is installed, so the machine's package manager may run at the same time.
        let more = ["-o", "Debug::NoLocking=true", "-t", suite, package];
        let words: Vec<&str> = words.split(' ').chain(more).collect();
        self.call(&words, &self.folder)?;
        let packages = packages(&archives)?;
        ensure!(!packages.is_empty(), "apt downloaded no file for {package}");
        Ok(packages)
    }

    fn call(&self, arguments: &[&str], from: &Path) -> Result<String> {
        let mut command = Command::new("apt-get");
        for (option, path) in [
            ("Dir::State", ""),
            ("Dir::State::lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", ""),
            ("Dir::Cache::archives", "archives"),
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::Etc::sourceparts", "none"),
            ("Dir::Etc::preferences", "none/preferences"),
            ("Dir::Etc::preferencesparts", "none"),
        ] {
            let path = self.folder.join(path);
            command
                .arg("-o")
                .arg(format!("{option}={}", path.display()));
        }
        for (option, value) in [
            ("APT::Architecture", self.architecture.as_str()),
            ("APT::Architectures", &self.architecture),
            ("Acquire::Languages", "none"),
            // This program reads the lists uncompressed.
            ("Acquire::GzipIndexes", "false"),
            ("Acquire::Retries", "3"),
            (
                "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled",
                "false",
            ),
        ] {
            command.arg("-o").arg(format!("{option}={value}"));
        }
        run(command.args(arguments).current_dir(from))
    }
}

fn packages(folder: &Path) -> Result<Vec<PathBuf>> {
    let all = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let all = all.filter_map(|file| Some(file.ok()?.path()));
    Ok(all
        .filter(|path| path.extension().is_some_and(|it| it == "deb"))
        .collect())
}

/// Runs a command of apt or dpkg. Returns its output, or its own error message if it failed.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    command.env("LC_ALL", "C");
    let program = command.get_program().to_string_lossy().into_owned();
    let command = std::mem::replace(command, Command::new(""));
    let finished = run_for(command, LIMIT)?;
    match finished.status {
        Some(status) if status.success() => Ok(finished.stdout),
        Some(_) => bail!("{program}: {}", complaint(&finished.stderr)),
        None => bail!("{program} did not end in {} s", LIMIT.as_secs()),
    }
}

/// Finds the first error that apt printed.
fn complaint(stderr: &str) -> &str {
    let mut lines = stderr.lines().map(str::trim);
    let error = lines.clone().find_map(|line| line.strip_prefix("E: "));
    error
        .or_else(|| lines.rfind(|line| !line.is_empty()))
        .unwrap_or("it failed without an error message")
}

/// Lists the origins of the machine's packages, in the order of its sources. Security suites are
/// left out, because their kernels do not stay.
fn mirrors(targets: &str) -> Vec<String> {
    let mut mirrors: Vec<String> = Vec::new();
    for target in paragraphs(targets) {
        let security =
            field(target, "Release").is_some_and(|release| release.ends_with("-security"));
        if let Some(mirror) = field(target, "Repo-URI").filter(|_| !security)
            && !mirrors.iter().any(|known| known == mirror)
        {
            mirrors.push(mirror.to_owned());
        }
    }
    mirrors
}

/// Formats the sources for apt: these suites from one origin.
fn sources(mirror: &str, suites: &BTreeSet<&str>, architecture: &str) -> String {
    let signed = if Path::new(KEYRING).is_file() {
        format!(" signed-by={KEYRING}")
    } else {
        String::new()
    };
    suites
        .iter()
        .map(|suite| format!("deb [arch={architecture}{signed}] {mirror} {suite} main\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_of_the_machine_are_used() {
        let targets = "Release: a-security\nRepo-URI: file:/fixes/\n\nRelease: a\nRepo-URI: \
                       file:/one/\n\nRelease: a-updates\nRepo-URI: file:/one/\n\nRelease: b\n\
                       Repo-URI: file:/two/\n\nRelease: c\n";
        assert_eq!(mirrors(targets), ["file:/one/", "file:/two/"]);
        assert!(mirrors("").is_empty());
        let text = sources("file:/one/", &BTreeSet::from(["x", "y"]), ARM64);
        assert_eq!(text.lines().count(), 2);
        assert!(text.ends_with(" file:/one/ y main\n"), "{text}");
    }

    #[test]
    fn errors_of_apt_are_reported() {
        assert_eq!(complaint("W: a\nE: b\nE: c\n"), "b");
        assert_eq!(complaint("a\nb\n\n"), "b");
        assert_eq!(complaint("\n"), "it failed without an error message");
    }
}
