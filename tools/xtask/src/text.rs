//! `cargo xtask text`: the text that calls of the library take, as the difference to a program without
//! them. One page size, `opt-level` 3, without link-time optimization: what cargo builds where nobody
//! says otherwise.
//!
//! The programs are `examples/text-size`; nobody runs them. The command, and the step `figures` with it, fails if a row
//! is larger than its limit, which is the last size and some room and only goes down; if a function of the library
//! has a frame of more than [`FRAME_LIMIT`] bytes; or if a program links a way to a panic.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use serde::Serialize;
use xtask::files;
use xtask::workspace::{KERNEL_TARGET, cargo, root, run, target_dir};

/// The most bytes of the frame of a function of the library: kernels have small stacks.
const FRAME_LIMIT: u64 = 512;

/// The programs: what each has, its name and features, the limit of its text, and the aim.
#[rustfmt::skip]
const PROGRAMS: [(&str, &str, &str, u64, Option<u64>); 8] = [
    ("map and enable", "enable", "", 13_800, Some(6_000)),
    ("query", "live", "query", 3_000, None),
    ("map", "live", "map", 12_500, None),
    ("protect", "live", "protect", 26_600, None),
    ("modify", "live", "modify", 26_600, None),
    ("unmap", "live", "unmap", 27_400, None),
    ("the other calls", "live", "rest", 44_000, None),
    ("map, protect, unmap, query", "live", "map,protect,unmap,query", 34_800, Some(20_000)),
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

pub(crate) fn text(json: bool) -> Result<()> {
    let texts = measured()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&texts)?);
    }
    for row in texts.rows.iter().filter(|_| !json) {
        let aim = row.aim.map_or(String::new(), |aim| format!(", aim {aim}"));
        println!(
            "{:6} bytes: {} (limit {}{aim}), largest frame {} bytes in {}",
            row.bytes, row.what, row.limit, row.frame.bytes, row.frame.function
        );
    }
    for row in &texts.rows {
        let (what, bytes, limit, frame) = (row.what, row.bytes, row.limit, &row.frame);
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
    let rows = PROGRAMS.iter().map(|&(what, name, features, limit, aim)| {
        let built = built(name, features)?;
        Ok(Text {
            what,
            bytes: built.text.saturating_sub(nothing),
            limit,
            frame: built.frame,
            aim,
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
