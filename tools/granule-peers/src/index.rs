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

    /// A list of packages: name, version and dependencies.
    fn list() -> String {
        let packages = [
            (
                "linux-image-arm64 7.3-1",
                "linux-base-arm64 (= 7.3-1), linux-image-7.3 (= 7.3-1), linux-modules (= 7.3-1)",
            ),
            (
                "linux-image-7.3 7.3-1",
                "dracut | linux-tool, linux-binary-7.3 (= 7.3-1)",
            ),
            ("linux-binary-7.3 7.3-1", "linux-base-7.3 (= 7.3-1)"),
            ("linux-base-arm64 7.3-1", "linux-base-7.3 (= 7.3-1)"),
            ("linux-base-7.3 7.3-1", "x"),
            ("linux-image-old 6.1-1", "linux-image-6.1-0 (= 6.1-1)"),
            ("linux-image-6.1-0 6.1-1", "linux-image-other (= 6.0-1)"),
            ("round 1", "linux-image-round (= 1)"),
            ("linux-image-round 1", "linux-binary-round (= 1)"),
            ("linux-binary-round 1", "linux-image-round (= 1)"),
        ];
        let hash = "AB".repeat(32);
        let paragraph = |(package, depends): (&str, &str)| {
            let (name, version) = package.split_once(' ').unwrap();
            format!(
                "Package: {name}\nVersion: {version}\nDescription: x\n SHA256: not a field\n\
                 Depends: {depends}\nSHA256: {hash}\n\n"
            )
        };
        let more = "Package: short\nVersion: 1\nSHA256: abc\n\nPackage: none\nVersion: 1\n";
        packages.map(paragraph).concat() + more
    }

    #[test]
    fn a_package_leads_to_its_kernel_and_a_base_to_a_base() {
        for (package, found) in [
            ("linux-image-arm64", Ok("linux-binary-7.3 7.3-1")),
            ("linux-binary-7.3", Ok("linux-binary-7.3 7.3-1")),
            ("linux-base-arm64", Ok("linux-base-7.3 7.3-1")),
            ("linux-image-old", Ok("linux-image-6.1-0 6.1-1")),
            ("linux-image", Err("there is no package linux-image")),
            (
                "round",
                Err("the package round leads to no kernel in 4 steps"),
            ),
            ("short", Err("the package short has an invalid SHA256: abc")),
            ("none", Err("the package none has no SHA256")),
        ] {
            let entry = kernel(&list(), package).map_err(|error| error.to_string());
            let entry = entry.map(|it| {
                assert_eq!(it.sha256, "ab".repeat(32));
                format!("{} {}", it.package, it.version)
            });
            let found = found.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(entry, found);
        }
    }

    #[test]
    fn fields_are_lines_of_their_own() {
        let paragraph = "A: 1\nAB: 2\n B: 3\nC:\n";
        assert_eq!(field(paragraph, "A"), Some("1"));
        assert_eq!(field(paragraph, "B").or(field(paragraph, "C")), None);
        assert!(paragraphs("a\n\n\nb\n\n").eq(["a", "b"]));
    }
}
