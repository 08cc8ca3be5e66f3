//! The test that dependencies go one way: it compares the layers in docs/architecture.md with the imports
//! of the sources.
//!
//! This file has the rules; [`imports`] finds the imports. No crate or module is named here: all names come
//! from the document.

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use imports::{Import, Modules};

use xtask::workspace::{metadata, root};

/// The layers of one crate or of the workspace, lowest first. A layer's members do not import each other.
#[derive(Debug, Default)]
struct Layers(Vec<Vec<String>>);

impl Layers {
    /// The layer of a member, counted from the bottom.
    fn of(&self, member: &str) -> Option<usize> {
        self.0
            .iter()
            .position(|layer| layer.iter().any(|other| other == member))
    }

    fn members(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flatten().map(String::as_str)
    }

    /// The reason why `from` must not import `to`, if there is one.
    fn fault(&self, from: &str, to: &str) -> Option<&'static str> {
        match (self.of(from), self.of(to)) {
            (Some(own), Some(other)) if own < other => Some("goes up"),
            (Some(own), Some(other)) if own == other && from != to => Some("stays on its layer"),
            _ => None,
        }
    }
}

/// The blocks that begin with "```layers NAME": one line for each layer, from the bottom up.
fn blocks(document: &str) -> BTreeMap<String, Layers> {
    let mut found: BTreeMap<String, Layers> = BTreeMap::new();
    let mut open: Option<String> = None;
    for line in document.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("```layers ") {
            open = Some(name.trim().to_owned());
            found.entry(name.trim().to_owned()).or_default();
        } else if line.starts_with("```") {
            open = None;
        } else if let Some(layers) = open.as_ref().and_then(|name| found.get_mut(name)) {
            let members: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            layers.0.extend((!members.is_empty()).then_some(members));
        }
    }
    found
}

/// The faults in the imports of one crate, a line each.
fn faults_of_crate(package: &str, modules: &Modules, layers: &Layers) -> Vec<String> {
    let mut faults = Vec::new();
    let listed: BTreeSet<_> = layers.members().collect();
    let there = modules.top_level();
    for module in there.difference(&listed) {
        faults.push(format!(
            "{package}: the module {module} is in no layer of docs/architecture.md"
        ));
    }
    for module in listed.difference(&there) {
        faults.push(format!(
            "{package}: docs/architecture.md lists the module {module}, which is not there"
        ));
    }
    let mut allowed = Vec::new();
    for import in &modules.imports {
        let (from, to) = (top(&import.from), top(&import.to));
        if from.is_empty() {
            continue;
        }
        if to.is_empty() {
            faults.push(format!(
                "{package}: {} imports from the crate's root: {import}",
                import.from
            ));
        } else if let Some(why) = layers.fault(from, to) {
            faults.push(format!("{package}: an import {why}: {import}"));
        } else {
            allowed.push(import);
        }
    }
    // An import that goes up closes circles through half of a crate, which say nothing beside it.
    for circle in circles(&allowed) {
        faults.push(format!(
            "{package}: a circle of imports that is larger than a module with its own children: {circle}"
        ));
    }
    faults
}

fn top(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
}

fn parent(module: &str) -> &str {
    module.rsplit_once("::").map_or("", |(parent, _)| parent)
}

/// The forbidden circles, as the imports that close them. A module and its own children may import each
/// other; the children may not form a circle without the module.
fn circles(imports: &[&Import]) -> Vec<String> {
    let edges: BTreeSet<(&str, &str)> = imports
        .iter()
        .filter(|import| import.from != import.to && !import.from.is_empty())
        .map(|import| (import.from.as_str(), import.to.as_str()))
        .collect();
    let mut found = Vec::new();
    for circle in components(&edges) {
        let is_family = circle.iter().any(|head| {
            circle
                .iter()
                .all(|member| member == head || parent(member) == *head)
        });
        if !is_family {
            found.push(describe(&circle, imports));
            continue;
        }
        let siblings = edges
            .iter()
            .copied()
            .filter(|(from, to)| circle.contains(from) && circle.contains(to))
            .filter(|(from, to)| parent(from) != *to && parent(to) != *from)
            .collect();
        for circle in components(&siblings) {
            found.push(describe(&circle, imports));
        }
    }
    found
}

fn describe(circle: &BTreeSet<&str>, imports: &[&Import]) -> String {
    let mut seen = BTreeSet::new();
    let lines: Vec<_> = imports
        .iter()
        .filter(|it| it.from != it.to)
        .filter(|it| circle.contains(it.from.as_str()) && circle.contains(it.to.as_str()))
        .filter(|it| seen.insert((&it.from, &it.to)))
        .map(ToString::to_string)
        .collect();
    format!("{} modules: {}", circle.len(), lines.join("; "))
}

/// The strongly connected components with more than one member. Computing reachability from each member is
/// fast enough for a few hundred modules.
fn components<'a>(edges: &BTreeSet<(&'a str, &'a str)>) -> Vec<BTreeSet<&'a str>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = next
        .keys()
        .map(|start| {
            let mut seen = BTreeSet::new();
            let mut open = vec![*start];
            while let Some(at) = open.pop() {
                for to in next.get(at).into_iter().flatten() {
                    if seen.insert(*to) {
                        open.push(to);
                    }
                }
            }
            (*start, seen)
        })
        .collect();
    let mut found: Vec<BTreeSet<&str>> = Vec::new();
    for (start, seen) in &reached {
        if !seen.contains(start) || found.iter().any(|circle| circle.contains(start)) {
            continue;
        }
        let circle = seen
            .iter()
            .copied()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(start)));
        found.push(circle.collect());
    }
    found
}

fn document() -> String {
    std::fs::read_to_string(root().join("docs/architecture.md")).unwrap()
}

#[test]
fn imports_inside_each_crate_go_one_way() {
    let blocks = blocks(&document());
    let crates: BTreeSet<_> = blocks.keys().filter(|name| *name != "workspace").collect();
    // `granule-user` is programs, each with a root of its own.
    let packages = blocks["workspace"].members();
    let packages: BTreeSet<_> = packages.filter(|&name| name != "granule-user").collect();
    assert!(
        crates.iter().copied().eq(packages),
        "docs/architecture.md lists the layers of {crates:?}, not of every crate"
    );
    let mut faults = Vec::new();
    for (package, layers) in blocks.iter().filter(|(name, _)| *name != "workspace") {
        let modules = Modules::read(&root().join(package).join("src"));
        assert!(
            !modules.imports.is_empty(),
            "{package} has no imports: nothing was read"
        );
        faults.extend(faults_of_crate(package, &modules, layers));
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn crates_depend_on_lower_crates_only() {
    let blocks = blocks(&document());
    let layers = &blocks["workspace"];
    let metadata = metadata().unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let names: BTreeSet<_> = packages
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    let listed: BTreeSet<_> = layers.members().collect();
    assert_eq!(names, listed, "the workspace, and docs/architecture.md");
    let mut faults = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            // Tests of a low crate may use tools that depend on it.
            let to = dependency["name"].as_str().unwrap();
            if dependency["kind"] == "dev" || !names.contains(to) {
                continue;
            }
            if let Some(why) = layers.fault(name, to) {
                faults.push(format!("{name} depends on {to}, which {why}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A crate of files in a temporary folder, and the faults of its imports.
#[cfg(test)]
fn planted(files: &[(&str, &str)], document: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path: &Path = &folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let modules = Modules::read(folder.path());
    faults_of_crate("planted", &modules, &blocks(document)["planted"])
}

const LAYERS: &str = "text\n```layers planted\nlow other\nhigh\n```\n";

#[test]
fn an_import_that_goes_up_is_named_with_both_ends() {
    let files = [
        ("lib.rs", "mod low; mod other; mod high;"),
        ("low.rs", "\n\nuse crate::high::Thing;"),
        ("other.rs", ""),
        ("high.rs", "use crate::low; pub struct Thing;"),
    ];
    let faults = planted(&files, LAYERS);
    assert_eq!(
        faults[0],
        "planted: an import goes up: low (low.rs:3) -> high (crate::high::Thing)"
    );
    // The same two modules form a circle, which says nothing more.
    assert_eq!(faults.len(), 1, "{faults:?}");
}

#[test]
fn neighbours_roots_and_strangers_are_refused() {
    let files = [
        (
            "lib.rs",
            "mod low; mod other; mod high; mod stray; pub struct Root;",
        ),
        ("low.rs", "fn f() { crate::other::g(); }"),
        ("other.rs", "pub fn g() -> crate::Root { todo!() }"),
        ("high.rs", "macro_rules! m { () => { $crate::low::f() } }"),
        ("stray.rs", ""),
    ];
    let faults = planted(&files, LAYERS).join("\n");
    assert!(
        faults.contains("stays on its layer: low (low.rs:1) -> other"),
        "{faults}"
    );
    assert!(
        faults.contains("other imports from the crate's root"),
        "{faults}"
    );
    assert!(
        faults.contains("the module stray is in no layer"),
        "{faults}"
    );
    assert_eq!(faults.lines().count(), 3, "{faults}");
}

#[test]
fn a_module_and_its_children_may_be_a_circle_and_nothing_larger() {
    let layers = "```layers planted\nlow\nhigh\n```";
    let fine = [
        ("lib.rs", "mod low; mod high;"),
        ("low/mod.rs", "mod a; mod b; pub use a::A; pub struct L;"),
        ("low/a.rs", "use super::{L, b::B}; pub struct A;"),
        ("low/b.rs", "use super::L; pub struct B;"),
        (
            "high.rs",
            "#[cfg(test)] mod tests { use crate::nowhere::X; } use crate::low::A;",
        ),
    ];
    assert_eq!(planted(&fine, layers), Vec::<String>::new());
    let mut siblings = fine;
    siblings[3] = ("low/b.rs", "use super::a::A; pub struct B;");
    let faults = planted(&siblings, layers);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(
        faults[0].contains("2 modules: low::a (low/a.rs:1) -> low::b"),
        "{faults:?}"
    );
}

#[test]
fn names_that_a_module_hands_on_are_followed_to_where_they_are() {
    let layers = "```layers planted\nlow\nhigh\n```";
    // `high::A` belongs to low: an import of it is no import of `high`, though its path says so.
    let files = [
        ("lib.rs", "mod low; mod high;"),
        (
            "low.rs",
            "pub struct A; pub struct C; fn f() { crate::high::A; }",
        ),
        ("high.rs", "pub use crate::low::A;"),
    ];
    // The path still goes through `high`.
    let faults = planted(&files, layers);
    assert!(
        faults[0].contains("goes up: low (low.rs:1) -> high"),
        "{faults:?}"
    );
}
