//! Stores Debian's packages under the target folder: fetches them once, and checks them at each
//! use. A package whose hash is not that of Debian's signed list is not used.

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use xtask::files;

use crate::apt::Apt;
use crate::index::{self, Entry};

/// A wanted package, by its suite and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) suite: &'static str,
    pub(crate) package: &'static str,
    /// Whether it is a kernel or its modules, where the named package only depends on the newest.
    pub(crate) kernel: bool,
}

/// Makes a [`Wanted`].
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
    /// Whether it is the package that was wanted.
    pub(crate) fn is(&self, wanted: &Wanted) -> bool {
        (self.suite.as_str(), self.wanted.as_str()) == (wanted.suite, wanted.package)
    }
}

/// The list of the stored packages.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    packages: Vec<Package>,
}

/// The folder of packages.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    architecture: String,
}

const KEPT: &str = "packages.json";

impl Store {
    /// Creates a store for packages of an architecture.
    pub(crate) fn new(folder: PathBuf, architecture: &str) -> Self {
        let architecture = architecture.to_owned();
        Self {
            folder,
            architecture,
        }
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
        let path = self.folder.join(&package.file);
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
        let path = self.folder.join(KEPT);
        let text = fs::read(&path).with_context(|| format!("there is no {}", path.display()))?;
        let kept: Kept = serde_json::from_slice(&text)
            .with_context(|| format!("{} is damaged", path.display()))?;
        let find = |wanted: &Wanted| {
            let found = kept.packages.iter().find(|package| package.is(wanted));
            let (suite, package) = (wanted.suite, wanted.package);
            let found = found.with_context(|| format!("{package} of {suite} is not kept"))?;
            // Checked now, so that a damaged package is fetched before anything runs.
            self.path(found)?;
            Ok(found.clone())
        };
        wanted.iter().map(find).collect()
    }

    fn fetch(&self, wanted: &[Wanted]) -> Result<Vec<Package>> {
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot make {}", self.folder.display()))?;
        let apt = Apt::new(&self.folder.join("apt"), &self.architecture)?;
        apt.update(&wanted.iter().map(|wanted| wanted.suite).collect())?;
        let mut packages = Vec::new();
        let mut lists: BTreeMap<&str, String> = BTreeMap::new();
        for wanted in wanted {
            let suite = wanted.suite;
            let list = match lists.entry(suite) {
                MapEntry::Occupied(list) => list.into_mut(),
                MapEntry::Vacant(place) => place.insert(apt.list(suite)?),
            };
            let entry = if wanted.kernel {
                index::kernel(list, wanted.package)
            } else {
                index::find(list, wanted.package)
            };
            let entry =
                entry.with_context(|| format!("Debian's {suite} for {}", self.architecture))?;
            packages.push(self.get(&apt, wanted, &entry)?);
        }
        let kept = Kept { packages };
        let text = serde_json::to_string_pretty(&kept)?;
        fs::write(self.folder.join(KEPT), text).context("cannot write the list of packages")?;
        self.drop_others(&kept);
        Ok(kept.packages)
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
        let folder = tempfile::tempdir_in(&self.folder).context("no folder to fetch into")?;
        let file = apt.download(entry, folder.path())?;
        fs::rename(&file, self.folder.join(&package.file))
            .with_context(|| format!("cannot keep {}", file.display()))?;
        self.path(&package)?;
        Ok(package)
    }

    /// Removes files of older versions, as far as possible.
    fn drop_others(&self, kept: &Kept) {
        let files: BTreeSet<&str> = kept.packages.iter().map(|one| one.file.as_str()).collect();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if Path::new(&*name).extension().is_some_and(|e| e == "deb") && !files.contains(&*name)
            {
                let _ = fs::remove_file(entry.path());
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

    fn store(content: &[u8]) -> (tempfile::TempDir, Store, Package) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned(), crate::apt::ARM64);
        let package = Package {
            suite: "suite".into(),
            wanted: "wanted".into(),
            package: "found".into(),
            version: "1".into(),
            sha256: hash(b"content"),
            file: "file.deb".into(),
        };
        fs::write(folder.path().join("file.deb"), content).unwrap();
        let kept = Kept {
            packages: vec![package.clone()],
        };
        let text = serde_json::to_string(&kept).unwrap();
        fs::write(folder.path().join(KEPT), text).unwrap();
        (folder, store, package)
    }

    #[test]
    fn a_kept_package_with_its_hash_is_used() {
        let (_folder, store, package) = store(b"content");
        assert_eq!(store.packages(&[WANTED], false).unwrap(), [package]);
    }

    #[test]
    fn a_package_that_is_missing_or_has_another_hash_is_not_used() {
        let (folder, store, package) = store(b"c0ntent");
        let error = store.kept(&[WANTED]).unwrap_err().to_string();
        assert!(
            error.contains("has the SHA-256") && !error.contains('\n'),
            "{error}"
        );
        assert!(store.path(&package).is_err());
        fs::remove_file(folder.path().join("file.deb")).unwrap();
        assert!(
            store
                .kept(&[WANTED])
                .unwrap_err()
                .to_string()
                .contains("cannot read")
        );
        let other = Wanted {
            suite: "other",
            ..WANTED
        };
        let error = store.kept(&[other]).unwrap_err().to_string();
        assert_eq!(error, "wanted of other is not kept");
        fs::write(folder.path().join(KEPT), "{").unwrap();
        let error = store.kept(&[WANTED]).unwrap_err().to_string();
        assert!(error.contains("is damaged"), "{error}");
    }

    #[test]
    fn hashes_are_those_of_sha256sum() {
        assert_eq!(
            hash(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
