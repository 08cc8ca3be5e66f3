//! `cargo xtask text`: the text that calls of the library take, as the difference to a program without
//! them. One page size, `opt-level` 3, without link-time optimization: what cargo builds where nobody
//! says otherwise.
//!
//! The programs are `examples/text-size`; nobody runs them. A row that is larger than its limit fails
//! the step `examples`. A limit is the last size and some room, and only goes down.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection};
use serde::Serialize;
use xtask::files;
use xtask::workspace::{KERNEL_TARGET, cargo, root, run, target_dir};

/// A program, and what is said of it.
struct Program {
    what: &'static str,
    name: &'static str,
    features: &'static str,
    limit: u64,
    aim: Option<u64>,
}

const PROGRAMS: [Program; 6] = [
    Program {
        what: "map and enable",
        name: "enable",
        features: "",
        limit: 13_800,
        aim: Some(6_000),
    },
    Program {
        what: "query, live",
        name: "live",
        features: "query",
        limit: 3_000,
        aim: None,
    },
    Program {
        what: "map, live",
        name: "live",
        features: "map",
        limit: 12_500,
        aim: None,
    },
    Program {
        what: "protect, live",
        name: "live",
        features: "protect",
        limit: 26_600,
        aim: None,
    },
    Program {
        what: "unmap, live",
        name: "live",
        features: "unmap",
        limit: 27_400,
        aim: None,
    },
    Program {
        what: "map, protect, unmap, query, live",
        name: "live",
        features: "map,protect,unmap,query",
        limit: 34_800,
        aim: Some(20_000),
    },
];

/// The whole report; `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Texts {
    schema: u32,
    rows: Vec<Text>,
}

#[derive(Debug, Serialize)]
struct Text {
    what: &'static str,
    bytes: u64,
    limit: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    aim: Option<u64>,
}

/// Prints the sizes.
pub(crate) fn text(json: bool) -> Result<()> {
    let texts = measured()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&texts)?);
        return Ok(());
    }
    for row in &texts.rows {
        let aim = row
            .aim
            .map(|aim| format!(", aim {aim}"))
            .unwrap_or_default();
        println!(
            "{:6} bytes: {} (limit {}{aim})",
            row.bytes, row.what, row.limit
        );
    }
    Ok(())
}

/// Checks the limits.
pub(crate) fn check() -> Result<()> {
    for row in measured()?.rows {
        let Text {
            what, bytes, limit, ..
        } = row;
        ensure!(
            bytes <= limit,
            "`{what}` takes {bytes} bytes of text, the limit is {limit}: see `cargo xtask text`"
        );
    }
    Ok(())
}

fn measured() -> Result<Texts> {
    let nothing = built("nothing", "")?;
    let rows = PROGRAMS.iter().map(|program| {
        let bytes = built(program.name, program.features)?;
        Ok(Text {
            what: program.what,
            bytes: bytes.saturating_sub(nothing),
            limit: program.limit,
            aim: program.aim,
        })
    });
    let rows = rows.collect::<Result<Vec<Text>>>()?;
    Ok(Texts { schema: 1, rows })
}

/// Builds a program, and returns the bytes of its text.
fn built(name: &str, features: &str) -> Result<u64> {
    let target = target_dir().join("examples");
    let mut build = cargo(&["build", "--quiet", "--profile", "plain", "-p", "text-size"]);
    build
        .arg("--manifest-path")
        .arg(root().join("examples/Cargo.toml"));
    build.arg("--target-dir").arg(&target);
    build.args([
        "--target",
        KERNEL_TARGET,
        "--no-default-features",
        "--bin",
        name,
    ]);
    build.args(["--features", features]);
    run(build)?;
    text_of(&target.join(KERNEL_TARGET).join("plain").join(name))
}

fn text_of(program: &Path) -> Result<u64> {
    let bytes = files::read(program)?;
    let object = object::File::parse(&*bytes)?;
    let section = object.section_by_name(".text");
    Ok(section.context("the program has no text")?.size())
}
