//! The instructions of the rows of `granule-bench` on arm64, counted by `examples/instruction-counts` under QEMU's
//! `-icount`: once with link-time optimisation, and once as cargo builds where nobody says otherwise.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::reached;
use crate::guest;
use xtask::drawn;
use xtask::workspace::{KERNEL_TARGET, build_executable, root, target_dir};

/// A build: its profile, whether that has link-time optimisation, and what the program is to count. The ranges of
/// the second are smaller, for it adds little but time.
struct Build {
    profile: &'static str,
    lto: bool,
    words: &'static str,
}

#[rustfmt::skip]
const BUILDS: [Build; 2] = [
    Build { profile: "release", lto: true, words: "ranges=large" },
    Build { profile: "plain", lto: false, words: "ranges=small" },
];

/// The steps, in the order of the columns.
const STEPS: [&str; 4] = ["map", "protect", "unmap", "query"];

/// Counts with each build, and returns the rows and the goals of all.
pub(super) fn counts() -> Result<Value> {
    let mut all = Counts::default();
    for build in &BUILDS {
        let console = console(build)?;
        all.add(&console, build.lto)?;
    }
    Ok(json!({"rows": all.rows, "goals": all.goals}))
}

/// Builds and boots the program, and returns what it prints.
fn console(build: &Build) -> Result<String> {
    let manifest = root().join("examples/Cargo.toml");
    let target = target_dir().join("examples");
    let (manifest, target) = (manifest.to_string_lossy(), target.to_string_lossy());
    let words = ["-p", "instruction-counts", "--target", KERNEL_TARGET];
    let places = ["--manifest-path", &manifest, "--target-dir", &target];
    let profile = ["--profile", build.profile];
    let program = build_executable(
        &[words, places]
            .concat()
            .into_iter()
            .chain(profile)
            .collect::<Vec<_>>(),
    )?;
    let machine = ["-M", "virt", "-cpu", "max", "-icount", "shift=0"];
    let options = [&machine[..], &["-append", build.words]].concat();
    guest::console(&program, &options, guest::LIMIT * 10)
}

/// The rows and goals of the builds.
#[derive(Default)]
struct Counts {
    rows: Vec<Value>,
    goals: Vec<Value>,
}

impl Counts {
    /// Adds the objects on the console of a build, which ends with `done`.
    fn add(&mut self, console: &str, lto: bool) -> Result<()> {
        let lines = console.strip_suffix("done\n").with_context(|| {
            let last = console.lines().next_back().unwrap_or("nothing");
            format!("instruction-counts printed `{last}` last, expected `done`")
        })?;
        for line in lines.lines() {
            let object: Map<String, Value> = serde_json::from_str(line)
                .with_context(|| format!("instruction-counts printed `{line}`, expected a row"))?;
            let is_goal = object.contains_key("what");
            let count = object.get("instructions").and_then(Value::as_u64);
            ensure!(
                is_goal || count.is_some_and(|count| count > 0),
                "no instruction was counted for `{line}`"
            );
            let mut with_build = Map::from_iter([("lto".to_owned(), Value::from(lto))]);
            with_build.extend(object);
            let all = if is_goal {
                &mut self.goals
            } else {
                &mut self.rows
            };
            all.push(with_build.into());
        }
        Ok(())
    }
}

/// A table with a row for each job and subject and a column for each build and step, and the goals of each build.
pub(super) fn text(result: &Value) -> Result<String> {
    let mut lines: Vec<([String; 2], [String; BUILDS.len() * STEPS.len()])> = Vec::new();
    for row in result["rows"].as_array().context("no rows")? {
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let word = |key: &str| row[key].as_str().unwrap_or_default();
        let (bytes, leaf) = (number("bytes") >> 20, number("leaf_bytes") >> 10);
        let (each, count) = match word("calls") {
            "range" => ("leaf", "leaves"),
            _ => ("call", "call_count"),
        };
        let calls = word("calls");
        let job = format!("{bytes} MiB, leaves of {leaf} KiB, {calls}: a {each}");
        let names = [job, word("subject").to_owned()];
        let place = lines.iter().position(|(other, _)| *other == names);
        let place = place.unwrap_or_else(|| {
            lines.push((names, Default::default()));
            lines.len() - 1
        });
        let build = BUILDS.iter().position(|build| row["lto"] == build.lto);
        let step = STEPS.iter().position(|step| word("step") == *step);
        if let (Some(build), Some(step)) = (build, step) {
            let figure = number("instructions") as f64 / number(count) as f64;
            lines[place].1[build * STEPS.len() + step] = format!("{figure:.1}");
        }
    }
    let columns = ["with LTO", "without"].into_iter();
    let columns = columns.flat_map(|build| STEPS.map(|step| format!("{build}: {step}")));
    let head: Vec<_> = ["instructions", ""]
        .map(str::to_owned)
        .into_iter()
        .chain(columns)
        .collect();
    let mut table = drawn::table(2, &head.iter().map(String::as_str).collect::<Vec<_>>());
    for (names, figures) in lines {
        table.add_row(names.into_iter().chain(figures));
    }
    let mut text = format!("{table}\n");
    for goal in result["goals"].as_array().into_iter().flatten() {
        let what = goal["what"].as_str().unwrap_or_default();
        let build = if goal["lto"] == true {
            "with LTO"
        } else {
            "without"
        };
        let (most, measured, reached) = (&goal["at_most"], &goal["measured"], reached(goal));
        let _ = writeln!(
            text,
            "{build}: {what}: at most {most}, measured {measured}: {reached}"
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console(instructions: u64) -> String {
        let row = |subject: &str, instructions: u64| {
            format!(
                "{{\"bytes\": 4096, \"leaf_bytes\": 4096, \"calls\": \"4 pages\", \"subject\": \"{subject}\", \
                 \"step\": \"map\", \"leaves\": 8, \"call_count\": 2, \"instructions\": {instructions}}}\n"
            )
        };
        let goal = "{\"what\": \"map\", \"at_most\": 1.5, \"measured\": 1.25, \"reached\": true}\n";
        row("x86_64", 16) + &row("granule", instructions) + goal + "done\n"
    }

    #[test]
    fn both_builds_are_reported_side_by_side() {
        let mut all = Counts::default();
        all.add(&console(20), true).unwrap();
        all.add(&console(25), false).unwrap();
        assert_eq!((all.rows.len(), all.goals.len()), (4, 2));
        assert_eq!(
            (&all.rows[0]["lto"], &all.rows[3]["lto"]),
            (&json!(true), &json!(false))
        );
        let text = text(&json!({"rows": all.rows, "goals": all.goals})).unwrap();
        let line = text.lines().find(|line| line.contains("granule")).unwrap();
        let words: Vec<_> = line
            .split([' ', '│', '┆'])
            .filter(|word| !word.is_empty())
            .collect();
        assert_eq!(
            words.join(" "),
            "0 MiB, leaves of 4 KiB, 4 pages: a call granule 10.0 12.5"
        );
        assert!(
            text.contains("without: map: at most 1.5, measured 1.25: reached"),
            "{text}"
        );
    }

    #[test]
    fn a_console_that_is_cut_or_counts_nothing_is_an_error() {
        let add = |console: &str| Counts::default().add(console, true);
        let whole = console(20);
        let cut = add(whole.strip_suffix("done\n").unwrap()).unwrap_err();
        assert!(cut.to_string().contains("expected `done`"), "{cut}");
        let none = add(&whole.replace(": 20}", ": 0}")).unwrap_err();
        assert!(none.to_string().contains("no instruction"), "{none}");
        let failed = add("failed: why\n").unwrap_err();
        assert!(failed.to_string().contains("failed: why"));
    }
}
