//! `granule report`: a page of HTML. The data of the page is made here, and the page is put together of
//! its files: what it shows and how is in `page.html`, `page.css` and the scripts.

mod bench;
mod data;
#[cfg(test)]
mod tests;

use std::io::Write;

use granule_inspect::source::Source;
use serde_json::{Value, json};

use super::args::ReportArgs;
use super::{Failure, Progress, UNREADABLE, open};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// One script, in the order in which its parts use each other.
const SCRIPTS: [&str; 5] = [
    include_str!("common.js"),
    include_str!("rows.js"),
    include_str!("map.js"),
    include_str!("charts.js"),
    include_str!("page.js"),
];

/// Carries the command out and returns its exit code. Notes go to `notes`, a line each.
///
/// # Errors
///
/// If a source or a file cannot be read, or the page not be written.
pub fn run(
    args: &ReportArgs,
    out: &mut dyn Write,
    notes: &mut dyn FnMut(&str),
    progress: Progress<'_>,
) -> Result<u8, Failure> {
    if args.names.len() > args.sources.len() {
        return Err(Failure::Source(format!(
            "{} names for {} sources: give --name once for each source, in their order",
            args.names.len(),
            args.sources.len()
        )));
    }
    // Before the sources, which may take long.
    let mut benches = Vec::new();
    for path in &args.bench {
        let name = path.display().to_string();
        let bench = std::fs::read_to_string(path).map_err(|error| error.to_string());
        let bench = bench.and_then(|text| bench::read(&text));
        let bench = bench.map_err(|error| Failure::Source(format!("{name}: {error}")))?;
        benches.push(bench.object(&short(&name)));
    }
    let options = args.options();
    let shorts: Vec<String> = args.sources.iter().map(|it| short(&describe(it))).collect();
    let (mut sources, mut no_root) = (Vec::new(), false);
    for (at, source) in args.sources.iter().enumerate() {
        let whole = describe(source);
        let opened = open(source, &options)?;
        let said = opened.notes.iter();
        said.for_each(|note| notes(&format!("{whole}: {note}")));
        let short = shorts
            .get(at)
            .filter(|own| shorts.iter().filter(|it| it == own).count() == 1);
        let name = args.names.get(at).or(short).unwrap_or(&whole);
        let drawn = data::source(name, &opened, args.detail as usize, args.most, progress);
        no_root |= drawn.no_root;
        sources.push(drawn.object);
    }
    let page = page(&json!({ "sources": sources, "benches": benches }));
    if args.output.as_os_str() == "-" {
        out.write_all(page.as_bytes())?;
    } else {
        std::fs::write(&args.output, page)
            .map_err(|error| Failure::File(args.output.display().to_string(), error))?;
    }
    Ok(if no_root { UNREADABLE } else { 0 })
}

fn describe(source: &Source) -> String {
    match source {
        Source::File(path) => path.display().to_string(),
        Source::Gdb(endpoint) => format!("gdb:{endpoint}"),
        Source::Qmp(endpoint) => format!("qmp:{endpoint}"),
        _ => "source".to_owned(),
    }
}

/// The last part of a path.
fn short(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// The page with its data. Only the template is searched for places to fill.
fn page(data: &Value) -> String {
    let data = in_script(data);
    let script = SCRIPTS.concat();
    let mut page = String::with_capacity(PAGE.len() + STYLE.len() + script.len() + data.len());
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        page.push_str(match name {
            "style" => STYLE,
            "data" => &data,
            "script" => &script,
            _ => "",
        });
        rest = after;
    }
    page.push_str(rest);
    page
}

/// JSON that cannot end the script element that it is in. `<` is in strings only.
fn in_script(data: &Value) -> String {
    data.to_string().replace('<', "\\u003c")
}

/// Text for people out of foreign bytes: without characters that are not seen, or that change the order
/// of others.
fn visible(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let mut shown = String::new();
    for c in text.chars() {
        match hidden(c) {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
    }
    shown
}
