//! A handwritten trace for the test of the page of `--report`, and the expected elements of the
//! page. One function has a hostile name.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

/// The script that uses the page as a person does, and checks it.
pub(super) const CHECK: &str = include_str!("findings.js");

const HOSTILE: &str = "<img src=x onerror=errors.push(1)>";

/// One CPU makes a table with the MMU off, turns the MMU on, and moves two blocks without break-before-make.
const LINES: &[&str] = &[
    "at cpu0 0x100",
    "obtain cpu0 0x1000 0x1000",
    "fill cpu0 0x1000 512 0 0",
    "fill cpu0 0x1000 3 0x701 0x40000000",
    "dmb cpu0 sy",
    "dc cpu0 ivac 0x1000 0x1000",
    "dsb cpu0 sy",
    "tlbi cpu0 vmalle1",
    "dsb cpu0 nsh",
    "msr cpu0 mair_el1 0xff",
    "msr cpu0 tcr_el1 0x200803519",
    "msr cpu0 ttbr0_el1 0x1000",
    "isb cpu0",
    "msr cpu0 sctlr_el1 0x30d0180d",
    "isb cpu0",
    "at cpu0 0x200",
    "store cpu0 0x1008 0x100000701",
    "at cpu0 0x300",
    "store cpu0 0x1010 0x180000701",
    "dsb cpu0 ishst",
    "tlbi cpu0 vmalle1is",
    "dsb cpu0 ish",
    "isb cpu0",
];

/// Writes the files, and returns the arguments of `granule`.
pub(super) fn write(folder: &Path) -> Result<Vec<String>> {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut text = format!(
        "granule-trace 2 page=4k cpus=1 bbm=0 complete=yes events={}\n",
        LINES.len()
    );
    for line in LINES {
        text += &format!("{line}\n");
    }
    let hostile = HOSTILE.replace(' ', "%20");
    for (start, name) in [(0x100, "start"), (0x200, &*hostile), (0x300, "mover")] {
        text += &format!("function {start:#x} 0x100 {name}\n");
    }
    fs::write(folder.join("findings.trace"), text)?;
    fs::write(folder.join("accepted"), "RWHZWS mover it is meant\n")?;
    Ok(vec![
        "check".into(),
        file("findings.trace"),
        "--accept".into(),
        file("accepted"),
    ])
}

/// The expected elements of the page.
pub(super) fn expected(data: &Value) -> Value {
    let findings = data["findings"].as_array().into_iter().flatten();
    let steps: Vec<_> = findings
        .filter_map(|it| Some(it["steps"].as_array()?.len()))
        .collect();
    json!({
        "sites": [HOSTILE, "mover"],
        "steps": steps,
        "rule": "RWHZWS",
        "reason": "it is meant",
    })
}
