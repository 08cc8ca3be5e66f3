//! Parses Debian's package lists, which are paragraphs of `Field: value` lines, and finds packages
//! in them. Pure: `apt` fetches the lists.

use anyhow::{Context, Result, bail};

/// A package, as in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) package: String,
    pub(crate) version: String,
    /// In lower-case hexadecimal.
    pub(crate) sha256: String,
    depends: String,
}

/// The most steps from the package that depends on the newest kernel to that kernel: two or three
/// are usual.
const MOST_STEPS: usize = 4;

/// Splits a list into its paragraphs.
pub(crate) fn paragraphs(list: &str) -> impl Iterator<Item = &str> {
    list.split("\n\n")
        .map(|paragraph| paragraph.trim_start_matches('\n'))
        .filter(|paragraph| !paragraph.is_empty())
}

/// Finds a field of a paragraph, if it is on one line.
pub(crate) fn field<'a>(paragraph: &'a str, name: &str) -> Option<&'a str> {
    paragraph.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?.trim();
        (!value.is_empty()).then_some(value)
    })
}

/// Finds a package by its name.
pub(crate) fn find(list: &str, package: &str) -> Result<Entry> {
    // Searches the text, because a list has some sixty thousand paragraphs.
    let first = format!("Package: {package}\n");
    let start = if list.starts_with(&first) {
        Some(0)
    } else {
        list.find(&format!("\n\n{first}")).map(|at| at + 2)
    };
    let start = start.with_context(|| format!("there is no package {package}"))?;
    let rest = list.get(start..).unwrap_or_default();
    let paragraph = rest.split("\n\n").next().unwrap_or_default();
    let text = |name| {
        field(paragraph, name).with_context(|| format!("the package {package} has no {name}"))
    };
    let sha256 = text("SHA256")?.to_ascii_lowercase();
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        bail!("the package {package} has an invalid SHA256: {sha256}");
    }
    Ok(Entry {
        package: package.to_owned(),
        version: text("Version")?.to_owned(),
        sha256,
        depends: field(paragraph, "Depends").unwrap_or_default().to_owned(),
    })
}

/// Finds the package with the kernel, its modules or its device trees from one that only depends on
/// others. The kernel's package is `linux-binary-…` since 7.x, and was `linux-image-…` before; the
/// trees are in `linux-base-…` since.
pub(crate) fn kernel(list: &str, package: &str) -> Result<Entry> {
    let mut entry = find(list, package)?;
    for _ in 0..MOST_STEPS {
        let Some(next) = entry.kernel_below() else {
            return Ok(entry);
        };
        entry = find(list, next)?;
    }
    bail!("the package {package} leads to no kernel in {MOST_STEPS} steps");
}

impl Entry {
    /// Finds the dependency, of exactly the same version, that is a kernel or modules, or leads to
    /// one.
    fn kernel_below(&self) -> Option<&str> {
        let exactly = format!("(= {})", self.version);
        let names = self.depends.split(',').filter_map(|dependency| {
            let (name, condition) = dependency.trim().split_once(' ')?;
            (condition == exactly && name != self.package).then_some(name)
        });
        let base = "linux-base-";
        // A kernel and its modules depend on the base too, so only a base leads to one.
        let base = self.package.starts_with(base).then_some(base);
        ["linux-binary-", "linux-image-", "linux-modules-"]
            .into_iter()
            .chain(base)
            .find_map(|prefix| names.clone().find(|name| name.starts_with(prefix)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> String {
        let hash = "AB".repeat(32);
        format!(
            "Package: linux-image-arm64\nVersion: 7.3-1\nDepends: linux-base-arm64 (= 7.3-1), \
             linux-image-7.3 (= 7.3-1), linux-modules (= 7.3-1)\nSHA256: {hash}\n\n\
             Package: linux-image-7.3\nVersion: 7.3-1\nDescription: x\n SHA256: no field\n\
             Depends: dracut | linux-tool, linux-binary-7.3 (= 7.3-1)\nSHA256: {hash}\n\n\
             Package: linux-binary-7.3\nVersion: 7.3-1\nDepends: linux-base-7.3 (= 7.3-1)\n\
             SHA256: {hash}\n\n\
             Package: linux-image-old\nVersion: 6.1-1\nDepends: linux-image-6.1-0 (= 6.1-1)\n\
             SHA256: {hash}\n\n\
             Package: linux-image-6.1-0\nVersion: 6.1-1\nDepends: linux-image-other (= 6.0-1)\n\
             SHA256: {hash}\n\n\
             Package: round\nVersion: 1\nDepends: linux-image-round (= 1)\nSHA256: {hash}\n\n\
             Package: linux-image-round\nVersion: 1\nDepends: linux-binary-round (= 1)\n\
             SHA256: {hash}\n\n\
             Package: linux-binary-round\nVersion: 1\nDepends: linux-image-round (= 1)\n\
             SHA256: {hash}\n\n\
             Package: short\nVersion: 1\nSHA256: abc\n\nPackage: none\nVersion: 1\n"
        )
    }

    #[test]
    fn the_package_that_depends_on_a_kernel_leads_to_it() {
        let found = kernel(&list(), "linux-image-arm64").unwrap();
        assert_eq!(found.package, "linux-binary-7.3");
        assert_eq!(found.sha256, "ab".repeat(32));
        let found = kernel(&list(), "linux-image-old").unwrap();
        assert_eq!(
            (found.package.as_str(), found.version.as_str()),
            ("linux-image-6.1-0", "6.1-1")
        );
    }

    #[test]
    fn only_a_base_leads_to_a_base() {
        let hash = "ab".repeat(32);
        let list = format!(
            "Package: linux-base-arm64\nVersion: 7.3-1\nDepends: linux-base-7.3 (= 7.3-1)\nSHA256: {hash}\n\n\
             Package: linux-base-7.3\nVersion: 7.3-1\nSHA256: {hash}\n\n\
             Package: linux-binary-7.3\nVersion: 7.3-1\nDepends: linux-base-7.3 (= 7.3-1)\nSHA256: {hash}\n"
        );
        let found = |package| kernel(&list, package).unwrap().package;
        assert_eq!(found("linux-base-arm64"), "linux-base-7.3");
        assert_eq!(found("linux-binary-7.3"), "linux-binary-7.3");
    }

    #[test]
    fn a_damaged_list_is_reported() {
        let error = |package| kernel(&list(), package).unwrap_err().to_string();
        assert_eq!(error("linux-image"), "there is no package linux-image");
        assert!(error("round").contains("no kernel in 4 steps"));
        assert!(error("short").contains("invalid SHA256: abc"));
        assert_eq!(error("none"), "the package none has no SHA256");
    }

    #[test]
    fn fields_are_lines_of_their_own() {
        let paragraph = "A: 1\nAB: 2\n B: 3\nC:\n";
        assert_eq!(field(paragraph, "A"), Some("1"));
        assert_eq!(field(paragraph, "AB"), Some("2"));
        assert_eq!(field(paragraph, "B"), None);
        assert_eq!(field(paragraph, "C"), None);
        assert_eq!(
            paragraphs("a\n\n\nb\n\n").collect::<Vec<_>>(),
            ["a", "b\n"].map(|p| p.trim_end_matches('\n')).to_vec()
        );
    }
}
