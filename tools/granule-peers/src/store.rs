//! Stores Debian's packages under the target folder: fetches them once, and checks them at each
//! use. A package whose hash is not that of Debian's signed list is not used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use xtask::files;

use crate::apt::{ARM64, Apt};
use crate::index::{self, Entry};

/// A wanted package, by its suite and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) suite: &'static str,
    pub(crate) package: &'static str,
    /// Whether it is a kernel or its modules, where the named package only depends on the newest.
    pub(crate) kernel: bool,
}

pub(crate) const fn wanted(suite: &'static str, package: &'static str, kernel: bool) -> Wanted {
    Wanted {
        suite,
        package,
        kernel,
    }
}

/// A package in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Package {
    /// The suite and the name that were wanted.
    pub(crate) suite: String,
    pub(crate) wanted: String,
    pub(crate) package: String,
    pub(crate) version: String,
    pub(crate) sha256: String,
    /// Its path in the store.
    file: String,
}

impl Package {
    pub(crate) fn is(&self, wanted: &Wanted) -> bool {
        (self.suite.as_str(), self.wanted.as_str()) == (wanted.suite, wanted.package)
    }
}

/// The folder of packages.
#[derive(Debug)]
pub(crate) struct Store(PathBuf);

/// The list of the stored packages.
const KEPT: &str = "packages.json";

impl Store {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// Returns all wanted packages, in order. apt fetches them if `fresh`, or if one of them is
    /// missing or has another hash.
    pub(crate) fn packages(&self, wanted: &[Wanted], fresh: bool) -> Result<Vec<Package>> {
        if !fresh {
            match self.kept(wanted) {
                Ok(packages) => return Ok(packages),
                Err(why) => eprintln!("granule: {why:#}: fetching with apt"),
            }
        }
        self.fetch(wanted)
    }

    /// Returns the path of a package's file, whose hash is checked.
    pub(crate) fn path(&self, package: &Package) -> Result<PathBuf> {
        let path = self.0.join(&package.file);
        let found = hash(&files::read(&path)?);
        ensure!(
            found == package.sha256,
            "{} has the SHA-256 {found}, and {} of {} has {}",
            path.display(),
            package.package,
            package.suite,
            package.sha256
        );
        Ok(path)
    }

    fn kept(&self, wanted: &[Wanted]) -> Result<Vec<Package>> {
        let path = self.0.join(KEPT);
        let kept: Vec<Package> = serde_json::from_str(&files::text(&path)?)
            .with_context(|| format!("{} is damaged", path.display()))?;
        let find = |wanted: &Wanted| {
            let found = kept.iter().find(|package| package.is(wanted));
            let (suite, package) = (wanted.suite, wanted.package);
            let found = found.with_context(|| format!("{package} of {suite} is not kept"))?;
            // Checked now, so that a damaged package is fetched before anything runs.
            self.path(found)?;
            Ok(found.clone())
        };
        wanted.iter().map(find).collect()
    }

    fn fetch(&self, wanted: &[Wanted]) -> Result<Vec<Package>> {
        files::folder(&self.0)?;
        let apt = Apt::new(&self.0.join("apt"), ARM64)?;
        let suites: BTreeSet<&str> = wanted.iter().map(|wanted| wanted.suite).collect();
        apt.update(&suites)?;
        let lists = suites
            .into_iter()
            .map(|suite| Ok((suite, apt.list(suite)?)));
        let lists: BTreeMap<&str, String> = lists.collect::<Result<_>>()?;
        let get = |wanted: &Wanted| {
            let find = if wanted.kernel {
                index::kernel
            } else {
                index::find
            };
            let entry = find(&lists[wanted.suite], wanted.package);
            let entry = entry.with_context(|| format!("Debian's {} for {ARM64}", wanted.suite))?;
            self.get(&apt, wanted, &entry)
        };
        let packages = wanted.iter().map(get).collect::<Result<Vec<_>>>()?;
        files::write(&self.0.join(KEPT), serde_json::to_string_pretty(&packages)?)?;
        self.drop_others(&packages);
        Ok(packages)
    }

    /// Returns one package, and fetches it if it is not in the store.
    fn get(&self, apt: &Apt, wanted: &Wanted, entry: &Entry) -> Result<Package> {
        let package = Package {
            suite: wanted.suite.to_owned(),
            wanted: wanted.package.to_owned(),
            package: entry.package.clone(),
            version: entry.version.clone(),
            sha256: entry.sha256.clone(),
            file: format!("{}.deb", entry.sha256),
        };
        if self.path(&package).is_ok() {
            return Ok(package);
        }
        eprintln!("granule: fetching {} {}", entry.package, entry.version);
        // A folder beside the destination, so that the file can be moved there.
        let folder = tempfile::tempdir_in(&self.0).context("no folder to fetch into")?;
        let file = apt.download(entry, folder.path())?;
        fs::rename(&file, self.0.join(&package.file))
            .with_context(|| format!("cannot keep {}", file.display()))?;
        self.path(&package)?;
        Ok(package)
    }

    /// Removes files of older versions, as far as possible.
    fn drop_others(&self, kept: &[Package]) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let is_kept = kept.iter().any(|one| name == one.file.as_str());
            if path.extension().is_some_and(|it| it == "deb") && !is_kept {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Returns the SHA-256 in hexadecimal, as `sha256sum` prints it.
pub(crate) fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted = Wanted {
        suite: "suite",
        package: "wanted",
        kernel: false,
    };

    #[test]
    fn a_kept_package_is_used_only_with_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        let package = Package {
            suite: "suite".into(),
            wanted: "wanted".into(),
            package: "found".into(),
            version: "1".into(),
            sha256: hash(b"content"),
            file: "file.deb".into(),
        };
        let (file, list) = (folder.path().join("file.deb"), folder.path().join(KEPT));
        fs::write(&file, "content").unwrap();
        let text = serde_json::to_string(&[&package]).unwrap();
        fs::write(&list, text).unwrap();
        let packages = store.packages(&[WANTED], false).unwrap();
        assert_eq!(packages, [package]);
        let error = |wanted| format!("{:#}", store.kept(&[wanted]).unwrap_err());
        let other = Wanted {
            suite: "other",
            ..WANTED
        };
        assert_eq!(error(other), "wanted of other is not kept");
        fs::write(&file, "c0ntent").unwrap();
        assert!(error(WANTED).contains("has the SHA-256") && !error(WANTED).contains('\n'));
        assert!(store.path(&packages[0]).is_err());
        fs::remove_file(&file).unwrap();
        assert!(error(WANTED).contains("cannot read"));
        fs::write(&list, "{").unwrap();
        assert!(error(WANTED).contains("is damaged"));
    }

    #[test]
    fn hashes_are_those_of_sha256sum() {
        assert_eq!(
            hash(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
