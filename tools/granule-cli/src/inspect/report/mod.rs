//! `granule report`: a page of HTML. The data of the page is made here, and the page is put together of
//! its files: what it shows and how is in `page.html`, `page.css` and the scripts.
//!
//! `common.js` has words and colours (their values are in `page.css`), `rows.js` the places of cells,
//! `map.js` the map of memory, `charts.js` totals and benchmarks, `page.js` the controls. The page loads
//! nothing from the network.

mod bench;
mod data;
#[cfg(test)]
mod tests;

use std::io::Write;

use granule_inspect::source::Source;
use serde::Serialize;
use serde_json::Value;

use super::args::ReportArgs;
use super::{Failure, Interrupt, Progress, UNREADABLE, go_on, open};
use crate::json::value;
use crate::page::{CHARTS, COMMON, fill};

const PAGE: &str = include_str!("page.html");
/// One script, in the order in which its parts use each other.
const SCRIPTS: [&str; 5] = [
    COMMON,
    include_str!("rows.js"),
    include_str!("map.js"),
    CHARTS,
    include_str!("page.js"),
];

/// Carries the command out and returns its exit code. Notes go to `notes`, a line each.
/// Fails if a source or a file cannot be read, or the page not be written.
pub fn run(
    args: &ReportArgs,
    out: &mut dyn Write,
    notes: &mut dyn FnMut(&str),
    progress: Progress<'_>,
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    let (files, given): (Vec<_>, Vec<_>) = args.sources.iter().partition(|it| is_results(it));
    if args.names.len() > given.len() {
        return Err(Failure::Source(format!(
            "{} names for {} sources: give --name once for each source, in their order",
            args.names.len(),
            given.len()
        )));
    }
    // Before the sources, which may take long.
    let mut benches = Vec::new();
    let files = files.into_iter().map(describe);
    let named = args.bench.iter().map(|path| path.display().to_string());
    for name in named.chain(files) {
        let bench = std::fs::read_to_string(&name).map_err(|error| error.to_string());
        let bench = bench.and_then(|text| bench::read(&text));
        let bench = bench.map_err(|error| Failure::Source(format!("{name}: {error}")))?;
        for (at, one) in bench.iter().enumerate() {
            let number = if at == 0 {
                String::new()
            } else {
                format!(" ({})", at + 1)
            };
            benches.push(value(one.object(&format!("{}{number}", short(&name)))));
        }
    }
    let options = args.options();
    let shorts: Vec<String> = given.iter().map(|it| short(&describe(it))).collect();
    let (mut sources, mut no_root) = (Vec::new(), false);
    for (at, source) in given.into_iter().enumerate() {
        let whole = describe(source);
        let opened = open(source, &options, progress, interrupt)?;
        let lines = opened.notes.iter();
        lines.for_each(|note| notes(&format!("{whole}: {note}")));
        let short = shorts
            .get(at)
            .filter(|own| shorts.iter().filter(|it| it == own).count() == 1);
        let name = args.names.get(at).or(short).unwrap_or(&whole);
        let drawn = data::source(name, &opened, args.detail as usize, args.most, progress);
        go_on(interrupt)?;
        no_root |= drawn.no_root;
        sources.push(drawn.object);
    }
    let page = fill(PAGE, &SCRIPTS, &value(Data { sources, benches }));
    if args.output.as_os_str() == "-" {
        out.write_all(page.as_bytes())?;
    } else {
        std::fs::write(&args.output, page)
            .map_err(|error| Failure::File(args.output.display().to_string(), error))?;
    }
    Ok(if no_root { UNREADABLE } else { 0 })
}

/// The data of the page.
#[derive(Serialize)]
struct Data {
    sources: Vec<data::Source>,
    benches: Vec<Value>,
}

/// Whether a source is a file with results of benchmarks.
fn is_results(source: &Source) -> bool {
    matches!(source, Source::File(path) if path.extension().is_some_and(|it| it == "json"))
}

fn describe(source: &Source) -> String {
    match source {
        Source::File(path) => path.display().to_string(),
        Source::Raw(images) => {
            let paths: Vec<_> = images
                .iter()
                .map(|(path, _)| path.display().to_string())
                .collect();
            paths.join(",")
        }
        Source::Gdb(endpoint) => format!("gdb:{endpoint}"),
        Source::Qmp(endpoint) => format!("qmp:{endpoint}"),
    }
}

/// The last part of a path.
fn short(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}
