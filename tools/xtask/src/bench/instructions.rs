//! The instructions of the rows of `granule-bench` on arm64, counted by `examples/instruction-counts` under QEMU's
//! `-icount`: once with link-time optimisation, and once as cargo builds where nobody says otherwise.

use std::collections::HashSet;
use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::reached;
use crate::guest;
use xtask::workspace::{KERNEL_TARGET, build_executable, root, target_dir};

/// A build: its profile, whether that has link-time optimisation, and what the program is to count. The ranges of
/// the second are smaller, for it adds little but time.
struct Build {
    profile: &'static str,
    lto: bool,
    words: &'static str,
}

const BUILDS: [Build; 2] = [
    Build {
        profile: "release",
        lto: true,
        words: "ranges=large",
    },
    Build {
        profile: "plain",
        lto: false,
        words: "ranges=small",
    },
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
    let program = build_executable(&[
        "--profile".as_ref(),
        build.profile.as_ref(),
        "-p".as_ref(),
        "instruction-counts".as_ref(),
        "--target".as_ref(),
        KERNEL_TARGET.as_ref(),
        "--manifest-path".as_ref(),
        manifest.as_os_str(),
        "--target-dir".as_ref(),
        target.as_os_str(),
    ])?;
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

/// Writes a block of lines for each job, with a line for each subject, and the goals of each build.
pub(super) fn text(result: &Value) -> Result<String> {
    let rows = result["rows"].as_array().context("no rows")?;
    let mut text = format!("{:37}", "instructions");
    for build in ["with LTO", "without"] {
        let _ = write!(text, "  {build:>8}");
        STEPS.iter().for_each(|step| {
            let _ = write!(text, " {step:>8}");
        });
    }
    text.push('\n');
    let (mut jobs, mut lines) = (HashSet::new(), HashSet::new());
    for row in rows {
        let job = ["bytes", "leaf_bytes", "calls"].map(|key| row[key].to_string());
        let is_of_job = |other: &&Value| {
            ["bytes", "leaf_bytes", "calls"]
                .iter()
                .all(|key| other[*key] == row[*key])
        };
        if !jobs.insert(job.clone()) {
            continue;
        }
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let calls = row["calls"].as_str().unwrap_or_default();
        let each = if calls == "range" { "leaf" } else { "call" };
        let (bytes, leaf) = (number("bytes") >> 20, number("leaf_bytes") >> 10);
        let _ = writeln!(text, "{bytes} MiB, leaves of {leaf} KiB, {calls}: a {each}");
        for row in rows.iter().filter(is_of_job) {
            let subject = row["subject"].as_str().unwrap_or_default();
            if !lines.insert((job.clone(), subject)) {
                continue;
            }
            let same = || {
                rows.iter()
                    .filter(is_of_job)
                    .filter(|it| it["subject"] == subject)
            };
            let _ = write!(text, "  {subject:<35}");
            for build in &BUILDS {
                let _ = write!(text, "  {:8}", "");
                for step in STEPS {
                    let mut found =
                        same().filter(|it| it["lto"] == build.lto && it["step"] == step);
                    let count = found.next().and_then(|it| a_call(it, each));
                    let _ = match count {
                        Some(count) => write!(text, " {count:>8.1}"),
                        None => write!(text, " {:>8}", ""),
                    };
                }
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
    }
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

/// Divides the instructions of a row by its leaves or its calls.
fn a_call(row: &Value, each: &str) -> Option<f64> {
    let key = if each == "leaf" {
        "leaves"
    } else {
        "call_count"
    };
    Some(row["instructions"].as_f64()? / row[key].as_f64()?)
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
        let line = text.lines().find(|line| line.starts_with("  granule"));
        let words: Vec<_> = line.unwrap().split_whitespace().collect();
        assert_eq!(words, ["granule", "10.0", "12.5"], "{text}");
        assert!(text.contains("4 pages: a call"), "{text}");
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
