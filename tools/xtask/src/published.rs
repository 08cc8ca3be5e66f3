//! `cargo xtask published`: what was published, row by row, and the command that shows what Granule has of it.
//!
//! `docs/published.json` has the rows, `docs/published.md` is written from it. A command must print what its row has. It is
//! run here if it is cheap, else by whom [`Row::runner`] names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Error, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::figures::{self, path, runs};
use crate::soak::PEERS;
use crate::steps::STEPS;
use xtask::files;
use xtask::workspace::{git, package_dir, root};

const ROWS: &str = "docs/published.json";
const PAGE: &str = "docs/published.md";
const STATES: [&str; 4] = ["there", "part", "worse", "absent"];

#[derive(Debug, Default, clap::Args)]
pub(crate) struct PublishedOptions {
    /// Write nothing, and fail where the page is not that of the rows
    #[arg(long)]
    check: bool,
    /// Measure anew what is read from docs/results otherwise, and run nothing else
    #[arg(long, conflicts_with = "only")]
    dear: bool,
    /// Run the commands of these rows, whatever they take, and no others; `*` at the end stands for anything
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    /// The beginning of the page.
    about: Vec<String>,
    /// Title, and publications by the word that rows have for each.
    sections: Vec<(String, BTreeMap<String, String>)>,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    key: String,
    source: String,
    what: String,
    state: String,
    command: Option<String>,
    /// A part of the output, or an object: values in that of the command by their paths, `< N` for numbers.
    #[serde(default)]
    prints: Value,
    #[serde(default)]
    differs: String,
    #[serde(default)]
    reason: String,
}

/// The facts by which rows are judged.
struct Facts {
    /// The stored results by the commands that measured them.
    stored: BTreeMap<String, Value>,
    /// A line `FILE:fn NAME(` for each function of the repository.
    functions: String,
}

impl Facts {
    fn has_test(&self, package: &str, name: &str) -> bool {
        let (folder, end) = (package_dir(package), format!(":fn {name}("));
        let mut lines = self.functions.lines().filter(|line| line.ends_with(&end));
        lines.any(|line| root().join(line).starts_with(&folder))
    }
}

impl Row {
    /// Who runs the command: nobody else, a step of CI, the soak, or the soak while its stored results are read here.
    fn runner(&self, command: &str, facts: &Facts) -> Result<&'static str> {
        let step = |name| STEPS.iter().find(|step| step.name == name);
        let is_part = |name| PEERS.iter().any(|(_, part, _)| *part == name);
        Ok(match command.split(' ').collect::<Vec<_>>()[..] {
            _ if facts.stored.contains_key(command) => "results",
            ["granule", "boot" | "check" | "plan" | "schema", ..] => "",
            ["cargo", "test", "-p", package, .., name] => {
                let is_there = facts.has_test(package, name);
                ensure!(is_there, "{package} has no test {name}");
                let wanted = format!("{name} ... ok");
                ensure!(self.prints == *wanted, "a test prints `{wanted}`");
                let is_guest = command.contains(" --test qemu ");
                ["host-tests", "guests"][usize::from(is_guest)]
            }
            ["cargo", "xtask", "test", "--only", name] => match step(name) {
                Some(step) => step.name,
                None => bail!("no step {name}"),
            },
            ["cargo", "run", _, "granule-peers", _, _, name] if is_part(name) => "soak",
            _ => bail!("neither CI nor the soak runs `{command}`"),
        })
    }

    /// Fails if the row does not hold together.
    fn check(&self, all: &Published, facts: &Facts) -> Result<()> {
        let mut sources = all.sections.iter().flat_map(|(_, sources)| sources.keys());
        let (state, has_command) = (&*self.state, self.command.is_some());
        let has_reason = !self.reason.is_empty();
        for (holds, fault) in [
            (
                sources.any(|source| *source == self.source),
                "no such source",
            ),
            (STATES.contains(&state), "no such state"),
            (has_command || has_reason, "neither a command nor a reason"),
            (has_command || state == "absent", "no command"),
            (has_reason || state == "there", "no reason"),
            (
                has_command != self.prints.is_null(),
                "`prints` goes with a command",
            ),
        ] {
            ensure!(holds, "{fault}");
        }
        let mut command = self.command.iter();
        command.try_for_each(|command| self.runner(command, facts).map(drop))
    }

    /// Fails if the command printed something else.
    fn compare(&self, (text, json): &(String, Value)) -> Result<()> {
        if let Some(part) = self.prints.as_str() {
            let last = text.lines().last().unwrap_or_default();
            ensure!(
                text.contains(part),
                "no `{part}`; the last line is `{last}`"
            );
        }
        for (path, wanted) in self.prints.as_object().into_iter().flatten() {
            let found = path::select(json, path)?;
            let limit = wanted.as_str().and_then(|text| text.strip_prefix("< "));
            let fits = match limit.and_then(|limit| limit.parse::<f64>().ok()) {
                Some(limit) => found.as_f64().is_some_and(|it| it < limit),
                None => found == wanted,
            };
            ensure!(fits, "{path} is {found}, expected {wanted}");
        }
        Ok(())
    }

    /// The row of the page.
    fn line(&self, facts: &Facts) -> Result<String> {
        let (mut command, mut prints) = (String::new(), String::new());
        if let Some(words) = &self.command {
            let who = self.runner(words, facts)?;
            command = format!("`{words}` ({who})").replace(" ()", "");
        }
        if let Some(part) = self.prints.as_str() {
            prints = format!("`{part}`");
        }
        let values: BTreeMap<_, _> = self.prints.as_object().into_iter().flatten().collect();
        let values = values
            .iter()
            .map(|(path, wanted)| format!("`{path}`: {wanted}"));
        prints += &values.collect::<Vec<_>>().join(", ");
        let head = [&*self.key, &self.source, &self.what, &self.state].join(" | ");
        let why = [&*self.differs, &self.reason].join(" ");
        Ok(format!(
            "| {head} | {command} | {prints} | {} |\n",
            why.trim()
        ))
    }
}

/// Runs a command to its end: its output, and the JSON in it.
fn run(command: &str, granule: &Path) -> Result<(String, Value)> {
    println!("{command}");
    let mut process = runs::process(command, granule)?;
    let is_test = command.contains(" test ");
    process.args((!is_test).then_some("--json"));
    let output = process.stdin(Stdio::null()).output()?;
    let bytes = [&*output.stdout, &output.stderr].concat();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let last = text.lines().last().unwrap_or_default();
    ensure!(output.status.success(), "the last line is `{last}`");
    let json = serde_json::from_slice(&output.stdout);
    Ok((text, json.unwrap_or_default()))
}

/// The rows that do not hold together, a line each.
fn faults(all: &Published, facts: &Facts) -> Vec<String> {
    let mut keys = BTreeSet::new();
    let one = |row: &Row| {
        let fault = match keys.insert(row.key.clone()) {
            true => row.check(all, facts).err()?.to_string(),
            false => "another row has this key".to_owned(),
        };
        Some(format!("{}: {fault}", row.key))
    };
    all.rows.iter().filter_map(one).collect()
}

fn page(all: &Published, facts: &Facts) -> Result<String> {
    let count = |state| all.rows.iter().filter(|row| row.state == state).count();
    let counts = STATES.map(|state| format!("{} {state}", count(state)));
    let (about, counts) = (all.about.join("\n"), counts.join(", "));
    let mut text = format!("{about}\n\n{} rows: {counts}.\n", all.rows.len());
    for (title, sources) in &all.sections {
        text += &format!("\n## {title}\n\n");
        for (word, source) in sources {
            text += &format!("- *{word}*: {source}\n");
        }
        text += "\n| row | source | published | state | command | prints | differs, and why |\n";
        text += "| --- | --- | --- | --- | --- | --- | --- |\n";
        let rows = all.rows.iter();
        for row in rows.filter(|row| sources.contains_key(&row.source)) {
            text += &row.line(facts)?;
        }
    }
    Ok(text)
}

/// The step of `cargo xtask test`.
pub(crate) fn check() -> Result<()> {
    let check = true;
    published(&PublishedOptions {
        check,
        ..PublishedOptions::default()
    })
}

/// Runs the commands, and writes the page or compares it.
pub(crate) fn published(options: &PublishedOptions) -> Result<()> {
    let all: Published = serde_json::from_str(&files::text(&root().join(ROWS))?).context(ROWS)?;
    let functions = git(&root(), &["grep", "-oE", r"fn [a-z0-9_]+\(", "--", "*.rs"])?;
    let stored = figures::stored_by_command()?;
    let facts = Facts { stored, functions };
    let mut wrong = faults(&all, &facts);
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    let granule = figures::prepare(options.dear)?;
    // Several rows look at what one command prints.
    let mut made = BTreeMap::new();
    for row in &all.rows {
        let Some(command) = &row.command else {
            continue;
        };
        let is_named = |glob: &String| figures::fits(glob, &row.key);
        let is_run = match row.runner(command, &facts)? {
            _ if !options.only.is_empty() => options.only.iter().any(is_named),
            "results" => options.dear && !command.starts_with("cargo run "),
            who => who.is_empty() && !options.dear,
        };
        let result = if is_run {
            let result = made
                .entry(command)
                .or_insert_with(|| run(command, &granule));
            let result = result
                .as_ref()
                .map_err(|error| Error::msg(error.to_string()));
            result.and_then(|printed| row.compare(printed))
        } else if let Some(json) = facts.stored.get(command) {
            row.compare(&(String::new(), json.clone()))
        } else {
            continue;
        };
        if let Err(error) = result {
            wrong.push(format!("{}: `{command}`: {error:#}", row.key));
        }
    }
    println!("{} rows, {} commands run", all.rows.len(), made.len());
    let (path, new) = (root().join(PAGE), page(&all, &facts)?);
    if options.check && files::text(&path)? != new {
        wrong.push(format!("{PAGE} differs: run `cargo xtask published`"));
    } else if !options.check && options.only.is_empty() {
        files::write(&path, new)?;
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[cfg(test)]
#[rustfmt::skip]
mod tests {
    use super::*;
    use serde_json::json;

    fn facts() -> Facts {
        let functions = "tools/xtask/src/a.rs:fn is_there(\ntools/xtask2/a.rs:fn is_not(".to_owned();
        Facts { stored: [("granule bench x".to_owned(), json!({}))].into(), functions }
    }

    /// Rows with a reason and without a command, but for these keys.
    fn all(rows: &[Value]) -> Published {
        let rows = rows.iter().map(|keys| {
            let mut row = json!({"key": "a", "source": "s", "what": "w", "state": "absent", "reason": "r"});
            row.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            row
        });
        let rows: Vec<_> = rows.collect();
        serde_json::from_value(json!({"about": ["A"], "sections": [["T", {"s": "S"}]], "rows": rows})).unwrap()
    }

    #[test]
    fn rows_that_do_not_hold_together_are_named() {
        let with = |state: &str, reason: &str, command: &str, prints: &str| {
            json!({"state": state, "reason": reason, "command": command, "prints": prints})
        };
        let absent = |command, prints| with("absent", "r", command, prints);
        for (row, fault) in [
            (json!({}), ""),
            (with("there", "", "granule plan", "4"), ""),
            (absent("cargo test -p xtask is_there", "is_there ... ok"), ""),
            (json!({"reason": ""}), "neither a command nor a reason"),
            (json!({"state": "there"}), "no command"),
            (json!({"state": "good"}), "no such state"),
            (json!({"source": "t"}), "no such source"),
            (with("part", "", "granule plan", "4"), "no reason"),
            (json!({"command": "granule plan"}), "`prints` goes with a command"),
            (json!({"prints": "4"}), "`prints` goes with a command"),
            (absent("granule bench y", "4"), "neither CI nor the soak runs `granule bench y`"),
            (absent("cargo run -p granule-peers -- --only y", "4"), "neither CI nor the soak runs `cargo run -p \
                                                                      granule-peers -- --only y`"),
            (absent("cargo xtask test --only y", "4"), "no step y"),
            (absent("cargo test -p xtask is_there", "1 passed"), "a test prints `is_there ... ok`"),
            (absent("cargo test -p xtask is_not", "is_not ... ok"), "xtask has no test is_not"),
        ] {
            let wanted: Vec<_> = [fault].into_iter().filter(|it| !it.is_empty()).map(|it| format!("a: {it}")).collect();
            assert_eq!(faults(&all(&[row]), &facts()), wanted);
        }
        let twice = faults(&all(&[json!({}), json!({"key": "b"}), json!({})]), &facts());
        assert_eq!(twice, ["a: another row has this key"]);
    }

    #[test]
    fn a_command_that_prints_something_else_is_wrong() {
        let json = json!({"rows": [{"a": 1, "tlbi": 7}, {"a": 2, "tlbi": 0}], "is": true});
        let printed = ("1 failed\n2 passed\n".to_owned(), json);
        for (prints, fault) in [
            (json!({"rows[a=1].tlbi": 7, "rows.1.tlbi": 0, "is": true}), ""),
            (json!({"rows[a=1].tlbi": "< 8"}), ""),
            (json!({"rows[a=1].tlbi": "< 7"}), "rows[a=1].tlbi is 7, expected \"< 7\""),
            (json!({"rows[a=1].tlbi": 6}), "rows[a=1].tlbi is 7, expected 6"),
            (json!({"is": "< 7"}), "is is true, expected \"< 7\""),
            (json!({"are": true}), "are: no `are`"),
            (json!("2 passed"), ""),
            (json!("12 passed"), "no `12 passed`; the last line is `2 passed`"),
        ] {
            let all = all(&[json!({"prints": prints})]);
            let found = all.rows[0].compare(&printed).map_or_else(|error| error.to_string(), |()| String::new());
            assert_eq!(found, fault);
        }
    }

    #[test]
    fn the_page_has_each_row_and_counts_the_states() {
        let row = json!({"state": "there", "command": "granule bench x", "prints": {"is": 1}, "reason": ""});
        let page = page(&all(&[json!({}), row]), &facts()).unwrap();
        assert!(page.contains("A\n\n2 rows: 1 there, 0 part, 0 worse, 1 absent.\n\n## T\n\n- *s*: S\n"), "{page}");
        assert!(page.contains("| a | s | w | absent |  |  | r |\n"), "{page}");
        assert!(page.ends_with("| there | `granule bench x` (results) | `is`: 1 |  |\n"), "{page}");
    }
}
