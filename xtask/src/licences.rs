//! The step `licences`: compares the licences and sources of dependencies with `cargo metadata`. Allowed
//! licences are in `deny.toml`, in cargo-deny's format. Allowed sources are crates.io and this workspace; a
//! requirement without a version is refused.
//!
//! Advisories are not checked: their database changes from day to day, and a test must not.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use xtask::workspace::{capture, cargo, root};

/// The source of published crates.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks every package that some build of the workspace may use, on any platform.
pub(crate) fn check() -> Result<()> {
    let path = root().join("deny.toml");
    let config = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let allowed = allowed(&config).with_context(|| format!("in {}", path.display()))?;
    let metadata = capture(cargo(&["metadata", "--format-version=1", "--all-features"]))?;
    let metadata: Value =
        serde_json::from_str(&metadata).context("`cargo metadata` printed no JSON")?;
    let packages = metadata["packages"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    ensure!(!packages.is_empty(), "`cargo metadata` told no packages");
    let findings: Vec<_> = packages
        .iter()
        .flat_map(|package| findings(package, &allowed))
        .collect();
    for finding in &findings {
        eprintln!("{finding}");
    }
    ensure!(
        findings.is_empty(),
        "{} finding(s) in {} packages, the first: {}",
        findings.len(),
        packages.len(),
        findings[0]
    );
    println!(
        "{} packages, all under {}",
        packages.len(),
        allowed.join(", ")
    );
    Ok(())
}

/// The licences that the configuration allows, as SPDX names them.
fn allowed(config: &str) -> Result<Vec<String>> {
    let config: toml::Table = config.parse()?;
    let names = config.get("licenses").and_then(|table| table.get("allow"));
    let names = names.and_then(toml::Value::as_array).into_iter().flatten();
    let names: Vec<_> = names.filter_map(toml::Value::as_str).collect();
    ensure!(!names.is_empty(), "licenses.allow lists no licence");
    for name in &names {
        spdx::license_id(name).with_context(|| format!("{name} is no SPDX licence"))?;
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// The faults of one package, a line each.
fn findings(package: &Value, allowed: &[String]) -> Vec<String> {
    let text = |key: &str| package[key].as_str();
    let name = format!(
        "{} {}",
        text("name").unwrap_or("a package without a name"),
        text("version").unwrap_or("")
    );
    let mut findings = Vec::new();
    let licence = text("license").unwrap_or_default();
    match Expression::parse_mode(licence, ParseMode::LAX) {
        Ok(expression) if expression.evaluate(|wanted| is_allowed(wanted, allowed)) => {}
        Ok(_) => findings.push(format!(
            "{name}: its licence {licence} is not among those that deny.toml allows"
        )),
        Err(_) => findings.push(format!(
            "{name}: its licence {licence:?} is no SPDX expression; take another crate"
        )),
    }
    match text("source") {
        None | Some(CRATES_IO) => {}
        Some(other) => findings.push(format!("{name}: it comes from {other}, not from crates.io")),
    }
    // The workspace's own requirements: a published crate cannot have a requirement without a version.
    let own = package["source"].is_null();
    let requirements = package["dependencies"].as_array().into_iter().flatten();
    for wanted in requirements.filter(|wanted| own && wanted["req"] == "*") {
        if wanted["path"].is_null() {
            let wanted = wanted["name"].as_str().unwrap_or("a dependency");
            findings.push(format!(
                "{name}: any version of {wanted} would do; say which"
            ));
        }
    }
    findings
}

fn is_allowed(wanted: &spdx::LicenseReq, allowed: &[String]) -> bool {
    let plain = wanted.addition.is_none();
    let id = wanted.license.id();
    plain && id.is_some_and(|id| allowed.iter().any(|name| name == id.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(package: &Value) -> String {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned);
        findings(package, &allowed).join("; ")
    }

    fn licensed(licence: &str) -> String {
        found(&json!({
            "name": "crate", "version": "1.2.3", "license": licence, "source": CRATES_IO,
            "dependencies": [],
        }))
    }

    #[test]
    fn a_licence_that_is_not_allowed_is_refused() {
        for licence in [
            "MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 OR GPL-3.0-only",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert_eq!(licensed(licence), "", "{licence}");
        }
        for licence in [
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "Apache-2.0 WITH LLVM-exception",
            "LicenseRef-own",
        ] {
            let told = licensed(licence);
            assert!(
                told.contains("crate 1.2.3") && told.contains(licence),
                "{told}"
            );
        }
        assert!(licensed("as you like").contains("no SPDX expression"));
        assert!(licensed("").contains("no SPDX expression"));
    }

    #[test]
    fn other_sources_and_any_version_are_refused() {
        let package = |source: Value, dependency: Value| {
            found(&json!({
                "name": "crate", "version": "1.2.3", "license": "MIT", "source": source,
                "dependencies": [dependency],
            }))
        };
        let some = json!({"name": "d", "req": "^1"});
        let any = json!({"name": "d", "req": "*"});
        let path = json!({"name": "d", "req": "*", "path": "/w/d"});
        assert_eq!(package(Value::Null, some.clone()), "");
        assert_eq!(package(Value::Null, path), "");
        assert!(package(Value::Null, any).contains("any version of d"));
        assert!(package(json!("git+https://example.org/d"), some).contains("not from crates.io"));
    }

    #[test]
    fn the_configuration_lists_licences() {
        let read = |text: &str| allowed(text).map_err(|error| format!("{error:#}"));
        assert_eq!(read("[licenses]\nallow = [\"MIT\"]").unwrap(), ["MIT"]);
        assert!(read("").unwrap_err().contains("lists no licence"));
        assert!(
            read("[licenses]\nallow = [\"MITT\"]")
                .unwrap_err()
                .contains("MITT")
        );
        let file = std::fs::read_to_string(root().join("deny.toml")).unwrap();
        assert!(allowed(&file).unwrap().len() > 2);
    }
}
