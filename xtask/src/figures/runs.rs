//! The measuring commands and their output. Computing figures from the output is in `tables` and `values`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use xtask::workspace::{cargo, root};

/// The phase in which a run is made, by its needs and its disturbance of other runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Builds the programs of later runs: alone.
    Build,
    /// Only counts, which a busy machine does not change: two at a time.
    Count,
    /// Downloads, or measures time: alone.
    Alone,
}

/// One measurement.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) name: &'static str,
    /// As a person types them.
    pub(super) commands: &'static [&'static str],
    /// Whether the commands are also run for JSON.
    json: bool,
    pub(super) phase: Phase,
    /// The approximate seconds on two quiet cores with everything built.
    pub(super) seconds: u32,
    /// Whether `--check` makes the run.
    pub(super) checked: bool,
}

const fn run(
    name: &'static str,
    commands: &'static [&'static str],
    phase: Phase,
    seconds: u32,
) -> Run {
    Run {
        name,
        commands,
        json: true,
        phase,
        seconds,
        checked: false,
    }
}

impl Run {
    const fn text(mut self) -> Self {
        self.json = false;
        self
    }

    const fn checked(mut self) -> Self {
        self.checked = true;
        self
    }
}

/// All measurements, in the order they are made.
pub(super) const RUNS: &[Run] = &[
    run("run", &["cargo xtask run"], Phase::Build, 15)
        .text()
        .checked(),
    run("size", &["cargo xtask size"], Phase::Build, 120),
    // The longest first, so that no core is idle at the end.
    run("permissions", &["granule bench permissions"], Phase::Count, 240),
    run(
        "linear-4k",
        &["granule bench linear-map --memory 16G,64G,256G,512G"],
        Phase::Count,
        150,
    ),
    run(
        "user",
        &[
            "granule bench user",
            "granule bench user --large-leaves off",
            "granule bench user --together",
        ],
        Phase::Count,
        300,
    ),
    run(
        "instructions",
        &["cargo xtask bench --instructions"],
        Phase::Count,
        36,
    )
    .checked(),
    run(
        "kexec",
        &["granule bench kexec --payload 84M,380M"],
        Phase::Count,
        30,
    ),
    run(
        "growth",
        &["granule bench linear-map --memory 4G,512G --strategy direct --page-size 4k,16k,64k"],
        Phase::Count,
        15,
    )
    .checked(),
    run(
        "linear-4g",
        &["granule bench linear-map --memory 4G --page-size 4k,16k,64k"],
        Phase::Count,
        10,
    )
    .checked(),
    run(
        "kexec-25m",
        &["granule bench kexec --payload 25M"],
        Phase::Count,
        10,
    )
    .checked(),
    run(
        "kexec-sizes",
        &["granule bench kexec --payload 84M --page-size 16k,64k --mmu on"],
        Phase::Count,
        10,
    ),
    run(
        "blocks",
        &["granule bench linear-map --memory 512G --rodata noalias --page-size 4k,16k,64k"],
        Phase::Count,
        10,
    )
    .checked(),
    run(
        "linear-16k",
        &["granule bench linear-map --memory 64G --page-size 16k"],
        Phase::Count,
        5,
    )
    .checked(),
    run(
        "blocks-52",
        &["granule bench linear-map --memory 512G --rodata noalias --page-size 4k,16k --cpu max --va-bits 52"],
        Phase::Count,
        10,
    )
    .checked(),
    run(
        "blocks-full",
        &[
            "granule bench linear-map --memory 512G --rodata full,noalias --strategy direct --page-size 4k,16k,64k --cpu max,lpa2=off --va-bits 48",
            "granule bench linear-map --memory 512G --rodata full,noalias --strategy direct --page-size 16k --cpu max --va-bits 52",
        ],
        Phase::Count,
        10,
    )
    .checked(),
    run(
        "linear-entry",
        &["granule bench linear-map --memory 4G --strategy no-alloc-remap,lazy-unmap --barriers entry"],
        Phase::Count,
        2,
    )
    .checked(),
    run(
        "permissions-single",
        &["granule bench permissions --changes 1"],
        Phase::Count,
        2,
    )
    .checked(),
    run(
        "plan-memory",
        &[
            "granule plan --memory 256G --rodata full --page-size 4k --bbm 0",
            "granule plan --memory 256G --rodata full --page-size 4k --bbm 2",
            "granule plan --memory 256G --rodata full --page-size 16k --bbm 0",
            "granule plan --memory 256G --rodata full --page-size 16k --bbm 2",
            "granule plan --memory 256G --rodata full --page-size 64k --bbm 0",
            "granule plan --memory 256G --rodata full --page-size 64k --bbm 2",
        ],
        Phase::Count,
        1,
    )
    .checked(),
    run(
        "plan-time",
        &["granule plan --memory 256G --machine altra"],
        Phase::Count,
        1,
    )
    .text()
    .checked(),
    run(
        "plan-model",
        &["granule plan --check-model"],
        Phase::Count,
        1,
    )
    .text()
    .checked(),
    run(
        "peers",
        &["cargo run --package xtask-peers -- --only bench"],
        Phase::Alone,
        300,
    ),
    run(
        "tlb",
        &["cargo run --package xtask-peers -- --only tlb"],
        Phase::Alone,
        90,
    ),
    run(
        "linux-faults",
        &["cargo run --package xtask-peers -- --only faults-all"],
        Phase::Alone,
        90,
    ),
    run(
        "linux-sensitivity",
        &["cargo run --package xtask-peers -- --only sensitivity"],
        Phase::Alone,
        100,
    ),
    run(
        "host",
        &["cargo xtask bench --cpu 1"],
        Phase::Alone,
        900,
    ),
];

/// The output of one command.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) command: &'static str,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Standard output, if JSON was asked for; else null.
    pub(super) json: Value,
}

/// The output of a run with one command.
pub(super) fn one(said: &[Said]) -> Result<&Said> {
    said.first().context("the run has no command")
}

/// The command, as a document shows it.
pub(super) fn command(said: &Said) -> String {
    format!("    {}\n", said.command)
}

/// Makes a run. `granule` is the program of that name.
pub(super) fn measure(run: &Run, granule: &Path) -> Result<Vec<Said>> {
    let said = run.commands.iter().map(|text| {
        let mut command = process(text, granule)?;
        if run.json {
            command.arg("--json");
        }
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start `{text}`"))?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
        ensure!(
            output.status.success(),
            "`{text}` failed ({}): {}",
            output.status,
            last.unwrap_or("it printed nothing")
        );
        let json = if run.json {
            serde_json::from_str(&stdout)
                .with_context(|| format!("`{text} --json` printed no JSON"))?
        } else {
            Value::Null
        };
        Ok(Said {
            command: text,
            stdout,
            stderr,
            json,
        })
    });
    said.collect()
}

/// The command as a process. `granule` is the program that was built, and `cargo xtask` is this program, so
/// that no command waits for cargo's locks.
fn process(text: &str, granule: &Path) -> Result<Command> {
    let mut words = text.split_whitespace();
    let program = words.next().unwrap_or_default();
    let mut words: Vec<&str> = words.collect();
    let mut command = match (program, words.first()) {
        ("granule", _) => Command::new(granule),
        ("cargo", Some(&"xtask")) => {
            words.remove(0);
            Command::new(std::env::current_exe().context("this program's own path")?)
        }
        _ => cargo(&[]),
    };
    command.args(words).current_dir(root());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_phases_in_order() {
        for (at, run) in RUNS.iter().enumerate() {
            assert!(
                RUNS[..at].iter().all(|other| other.name != run.name),
                "{run:?}"
            );
            assert!(at == 0 || RUNS[at - 1].phase <= run.phase, "{run:?}");
        }
    }

    #[test]
    fn a_failing_command_is_told_with_its_last_line() {
        let fails = run("x", &["cargo no-such-command"], Phase::Count, 1);
        let error = measure(&fails, Path::new("granule"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("`cargo no-such-command` failed"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
}
