//! `cargo xtask text`: the text that calls of the library take, as the difference to a program without
//! them. One page size, `opt-level` 3, without link-time optimization: what cargo builds where nobody
//! says otherwise.
//!
//! The programs are `examples/text-size`; nobody runs them. The step `examples` fails if a row is larger
//! than its limit, which is the last size and some room and only goes down; if a function of the library
//! has a frame of more than [`FRAME_LIMIT`] bytes; or if a program links a way to a panic.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use serde::Serialize;
use xtask::files;
use xtask::workspace::{KERNEL_TARGET, cargo, root, run, target_dir};

/// The most bytes of the frame of a function of the library: kernels have small stacks.
const FRAME_LIMIT: u64 = 512;

/// A program, and what is said of it.
struct Program {
    what: &'static str,
    name: &'static str,
    features: &'static str,
    limit: u64,
    aim: Option<u64>,
}

const PROGRAMS: [Program; 8] = [
    Program {
        what: "map and enable",
        name: "enable",
        features: "",
        limit: 13_800,
        aim: Some(6_000),
    },
    Program {
        what: "query",
        name: "live",
        features: "query",
        limit: 3_000,
        aim: None,
    },
    Program {
        what: "map",
        name: "live",
        features: "map",
        limit: 12_500,
        aim: None,
    },
    Program {
        what: "protect",
        name: "live",
        features: "protect",
        limit: 26_600,
        aim: None,
    },
    Program {
        what: "modify",
        name: "live",
        features: "modify",
        limit: 26_600,
        aim: None,
    },
    Program {
        what: "unmap",
        name: "live",
        features: "unmap",
        limit: 27_400,
        aim: None,
    },
    Program {
        what: "the other calls",
        name: "live",
        features: "rest",
        limit: 44_000,
        aim: None,
    },
    Program {
        what: "map, protect, unmap, query",
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
    /// The largest frame of a function of the library.
    frame: Frame,
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
            "{:6} bytes: {} (limit {}{aim}), largest frame {} bytes in {}",
            row.bytes, row.what, row.limit, row.frame.bytes, row.frame.function
        );
    }
    Ok(())
}

/// Checks the limits.
pub(crate) fn check() -> Result<()> {
    for row in measured()?.rows {
        let Text {
            what,
            bytes,
            limit,
            frame,
            ..
        } = row;
        ensure!(
            bytes <= limit,
            "`{what}` takes {bytes} bytes of text, the limit is {limit}: see `cargo xtask text`"
        );
        ensure!(
            frame.bytes <= FRAME_LIMIT,
            "`{what}`: the frame of `{}` has {} bytes, the limit is {FRAME_LIMIT}",
            frame.function,
            frame.bytes
        );
    }
    Ok(())
}

fn measured() -> Result<Texts> {
    let nothing = built("nothing", "")?.text;
    let rows = PROGRAMS.iter().map(|program| {
        let built = built(program.name, program.features)?;
        Ok(Text {
            what: program.what,
            bytes: built.text.saturating_sub(nothing),
            limit: program.limit,
            frame: built.frame,
            aim: program.aim,
        })
    });
    let rows = rows.collect::<Result<Vec<Text>>>()?;
    Ok(Texts { schema: 1, rows })
}

/// The facts that a finished program shows.
struct Built {
    text: u64,
    frame: Frame,
}

/// A function and the bytes of its frame.
#[derive(Debug, Default, Serialize)]
struct Frame {
    bytes: u64,
    function: String,
}

/// Builds a program, and reads it.
fn built(name: &str, features: &str) -> Result<Built> {
    let target = target_dir().join("examples");
    let mut build = cargo(&["build", "--quiet", "--profile", "plain", "-p", "text-size"]);
    build
        .arg("--manifest-path")
        .arg(root().join("examples/Cargo.toml"));
    build.arg("--target-dir").arg(&target);
    build.args(["--target", KERNEL_TARGET]);
    build.args(["--no-default-features", "--bin", name]);
    build.args(["--features", features]);
    // The flag changes no instruction. It needs no other compiler than that of the sizes.
    build.env("RUSTC_BOOTSTRAP", "1");
    build.arg("--config").arg(format!(
        "target.{KERNEL_TARGET}.rustflags=['-Zemit-stack-sizes']"
    ));
    run(build)?;
    let program = files::read(&target.join(KERNEL_TARGET).join("plain").join(name))?;
    read(&program).with_context(|| format!("examples/text-size, `{name}` with `{features}`"))
}

fn read(program: &[u8]) -> Result<Built> {
    let file = object::File::parse(program)?;
    let section = |name| file.section_by_name(name);
    let text = section(".text").context("it has no text")?.size();
    let frames = section(".stack_sizes").context("it has no stack sizes")?;
    let functions: BTreeMap<u64, String> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text)
        .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?)))
        .map(|(address, name)| (address, format!("{:#}", rustc_demangle::demangle(name))))
        .collect();
    let panic = functions
        .values()
        .find(|name| name.contains("core::panicking"));
    ensure!(panic.is_none(), "it has a way to a panic: {panic:?}");
    let mut largest = Frame::default();
    for (address, bytes) in stack_sizes(frames.data()?)? {
        let function = functions.get(&address).map_or("", String::as_str);
        if function.contains("granule::") && bytes > largest.bytes {
            largest = Frame {
                bytes,
                function: function.to_owned(),
            };
        }
    }
    Ok(Built {
        text,
        frame: largest,
    })
}

/// The records of a section of stack sizes: the address of a function in eight bytes, and the bytes of its
/// frame as ULEB128.
fn stack_sizes(mut section: &[u8]) -> Result<Vec<(u64, u64)>> {
    let mut sizes = Vec::new();
    while let Some((address, rest)) = section.split_first_chunk() {
        let length = rest.iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
        let (number, rest) = rest
            .split_at_checked(length)
            .context("the stack sizes end in the middle of a record")?;
        let bytes = number
            .iter()
            .rev()
            .fold(0, |bytes, byte| bytes << 7 | u64::from(byte & 0x7f));
        sizes.push((u64::from_le_bytes(*address), bytes));
        section = rest;
    }
    ensure!(
        section.is_empty(),
        "the stack sizes end in the middle of a record"
    );
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The README has a column for each recorded row.
    #[test]
    fn the_readme_shows_the_recorded_sizes() {
        let recorded = files::text(&root().join("docs/results/text.json")).unwrap();
        let recorded: serde_json::Value = serde_json::from_str(&recorded).unwrap();
        let rows = recorded["results"][0]["rows"].as_array().unwrap();
        let column = |key: &str| {
            rows.iter()
                .map(|row| row[key].to_string())
                .collect::<Vec<_>>()
        };
        let line = |cells: Vec<String>| format!("| {} |", cells.join(" | ")).replace('"', "");
        let expected = [
            line(column("what")),
            line(vec!["---".into(); rows.len()]),
            line(column("bytes")),
        ];
        let readme = files::text(&root().join("README.md")).unwrap();
        let expected = expected.join("\n");
        assert!(readme.contains(&expected), "README.md lacks:\n{expected}");
    }

    #[test]
    fn stack_sizes_are_read_and_a_cut_record_is_an_error() {
        let section = [
            1, 0, 0, 0, 0, 0, 0, 0, 0x10, 2, 0, 0, 0, 0, 0, 0, 0, 0xd0, 0x04,
        ];
        assert_eq!(stack_sizes(&section).unwrap(), [(1, 0x10), (2, 0x250)]);
        for cut in [1, 8, 17, 18] {
            assert!(stack_sizes(&section[..cut]).is_err(), "{cut}");
        }
    }
}
