//! The test that unsafe code and assembly are where docs/architecture.md says, and nowhere else.

use std::collections::BTreeSet;
use std::path::Path;

use xtask::workspace::root;

/// The modules that the table names: `crate::module`, `crate::{module, module::inner}`.
fn islands(document: &str) -> BTreeSet<(String, String)> {
    let (_, table) = document.split_once("## Unsafe and assembly").unwrap();
    let rows = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let mut named = BTreeSet::new();
    for (name, _) in rows {
        let (package, modules) = name.split_once("::").unwrap();
        let list = modules.trim_start_matches('{').trim_end_matches('}');
        for module in list.split(", ") {
            named.insert((package.to_owned(), module.replace("::", "/")));
        }
    }
    named
}

/// The modules of a crate whose files have unsafe code or assembly outside of comments.
fn files(package: &str, found: &mut BTreeSet<(String, String)>) {
    fn walk(folder: &Path, base: &Path, package: &str, found: &mut BTreeSet<(String, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, base, package, found);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                if is_island(&text) {
                    let module = path.strip_prefix(base).unwrap().with_extension("");
                    found.insert((package.to_owned(), module.to_string_lossy().into_owned()));
                }
            }
        }
    }
    let base = root().join(package).join("src");
    walk(&base, &base, package, found);
}

fn is_island(text: &str) -> bool {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .any(|code| code.contains("unsafe ") || code.contains("asm!("))
}

/// Whether `file` is the module or part of it.
fn is_in(file: &str, module: &str) -> bool {
    file.strip_prefix(module)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[test]
fn unsafe_code_and_assembly_stand_where_the_document_says() {
    let document = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let islands = islands(&document);
    let mut found = BTreeSet::new();
    for package in [
        "granule",
        "granule-boot",
        "granule-kexec",
        "granule-trace",
        "granule-recorder",
        "granule-plugin",
        "granule-kcore",
        "granule-kernel",
        "granule-linux-abi",
        "granule-probe",
    ] {
        files(package, &mut found);
    }
    assert!(islands.len() > 10 && found.len() > islands.len());
    let covers = |(package, module): &(String, String), (other, file): &(String, String)| {
        package == other && is_in(file, module)
    };
    let elsewhere: Vec<_> = found
        .iter()
        .filter(|file| !islands.iter().any(|island| covers(island, file)))
        .collect();
    assert!(elsewhere.is_empty(), "not in the document: {elsewhere:?}");
    let empty: Vec<_> = islands
        .iter()
        .filter(|island| !found.iter().any(|file| covers(island, file)))
        .collect();
    assert!(empty.is_empty(), "nothing unsafe there: {empty:?}");
}

#[test]
fn code_is_told_from_comments() {
    assert!(is_island("fn f() {\n    unsafe { g() }\n}"));
    assert!(is_island("    asm!(\"nop\");"));
    assert!(!is_island("//! unsafe { is not code }\n// asm!(\n"));
    assert!(is_in("table/map", "table") && is_in("table", "table"));
    assert!(!is_in("tables", "table"));
}
