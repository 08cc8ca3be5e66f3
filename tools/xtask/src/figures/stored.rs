//! The files of `docs/results`: the results of a run, with the commit, the commands and the machine.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::runs::Run;
use xtask::workspace::{capture, commit, cpu_name, program, root};
use xtask::{files, graph};

/// The name of a run's file from the workspace's root.
pub(super) fn name(run: &str) -> String {
    format!("docs/results/{run}.json")
}

fn path(run: &str) -> PathBuf {
    root().join(name(run))
}

/// The file of a run, if it was made.
pub(super) fn read(run: &str) -> Result<Option<Value>> {
    if !path(run).exists() {
        return Ok(None);
    }
    let text = files::text(&path(run))?;
    let file = serde_json::from_str(&text);
    file.with_context(|| format!("{} is not JSON", name(run)))
}

/// Writes the file of a run: the JSON that each command printed, and `made`, where and of what.
pub(super) fn write(run: &Run, made: &Made, results: &[Value]) -> Result<()> {
    let file = json!({
        "commit": made.commit,
        "machine": made.machine,
        "commands": run.commands,
        "results": results,
    });
    let mut text = String::new();
    lines(&file, 0, &mut text);
    // Paths of the image and of programs.
    let text = text.replace(&format!("{}/", root().display()), "");
    files::folder(&root().join("docs/results"))?;
    files::write(&path(&run.name), text + "\n")
}

/// The measured commit and the measuring machine.
#[derive(Debug)]
pub(super) struct Made {
    commit: String,
    machine: String,
}

impl Made {
    pub(super) fn here() -> Result<Self> {
        let is_new = |line: &str| line.starts_with("??");
        let is_code = |line: &str| !line.ends_with(".md") && !line.contains("docs/results/");
        let commit = commit(|line| is_code(line) && !is_new(line))?;
        let qemu = capture(program("qemu-system-aarch64", &["--version"]))?;
        let qemu = qemu.lines().next().unwrap_or_default();
        let machine = format!("{} × {}; {qemu}", graph::parallel(), cpu_name());
        Ok(Self { commit, machine })
    }
}

/// The longest line of what is not a single value: most rows are a line, so that a change of one shows.
const WIDTH: usize = 300;

/// Writes a value in one line if it fits, else each of its parts so.
fn lines(value: &Value, indent: usize, text: &mut String) {
    let line = value.to_string();
    let key = |(key, part)| (format!("{}: ", Value::from(String::clone(key))), part);
    let (open, close, parts): (_, _, Vec<_>) = match value {
        Value::Object(all) if line.len() > WIDTH => ('{', '}', all.iter().map(key).collect()),
        Value::Array(all) if line.len() > WIDTH => (
            '[',
            ']',
            all.iter().map(|part| (String::new(), part)).collect(),
        ),
        _ => return text.push_str(&line),
    };
    text.push(open);
    for (at, (key, part)) in parts.into_iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        text.push_str(&format!("{comma}\n{:1$}{key}", "", indent + 1));
        lines(part, indent + 1, text);
    }
    text.push_str(&format!("\n{:1$}{close}", "", indent));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_line() {
        let row = json!({"op": "fork", "instructions": 7});
        let file = json!({"results": [vec![row; 16]], "commit": "a"});
        let mut text = String::new();
        lines(&file, 0, &mut text);
        assert!(
            text.contains("\n   {\"op\":\"fork\",\"instructions\":7},\n"),
            "{text}"
        );
        assert!(text.ends_with(" \"commit\": \"a\"\n}"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), file);
    }
}
