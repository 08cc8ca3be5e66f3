//! A case that is a program. The program starts in a process group of its own, its output goes to a file,
//! and it ends with all its children when the soak ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::programs::passed_in;
use crate::stop::Stop;
use xtask::deadline::Group;
use xtask::files;
use xtask::workspace::root;

/// The program of a case.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Whether it prints libtest's summaries; then a run of no test is a failure.
    pub(crate) tests: bool,
    /// After this time the program counts as hung.
    pub(crate) limit: Duration,
}

/// The end of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// The failure, in one line.
    Failed(String),
    /// The soak was stopped before the case ended.
    Unfinished,
}

impl Program {
    /// The command as a person types it.
    pub(crate) fn typed(&self) -> String {
        let variables = self
            .variables
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let words = [self.program.display().to_string()];
        let words = words.iter().chain(&self.arguments);
        let words = words.map(|word| match word.contains(['{', ' ']) {
            true => format!("'{word}'"),
            false => word.clone(),
        });
        variables.chain(words).collect::<Vec<_>>().join(" ")
    }

    /// Runs the program until it or the soak ends.
    pub(crate) fn run(&self, log: &Path, stop: &Stop) -> Outcome {
        self.try_run(log, stop)
            .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
    }

    fn try_run(&self, log: &Path, stop: &Stop) -> Result<Outcome> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let mut group = Group::start(&mut command)
            .with_context(|| format!("cannot start `{}`", self.typed()))?;
        let status = group.wait(self.limit, || stop.now())?;
        // The signal that ends the soak may have ended the program first.
        if stop.now() && !status.is_some_and(|status| status.success()) {
            return Ok(Outcome::Unfinished);
        }
        let Some(status) = status else {
            let (limit, log) = (self.limit.as_secs(), log.display());
            let hung = format!("not done after {limit} s; {log}");
            return Ok(Outcome::Failed(hung));
        };
        let bytes = files::read(log)?;
        let output = String::from_utf8_lossy(&bytes);
        let wrong = wrong(status, &output, self.tests);
        Ok(wrong.map_or(Outcome::Passed, |wrong| {
            Outcome::Failed(format!("{wrong}; {}", log.display()))
        }))
    }
}

/// The failure of a program with this end and this output.
fn wrong(status: ExitStatus, output: &str, tests: bool) -> Option<String> {
    if !status.success() {
        let why = output
            .lines()
            .rev()
            .find(|line| line.starts_with("failed: ") || line.starts_with("error"));
        return Some(match why {
            Some(line) => format!("{status}: {}", line.trim()),
            None => status.to_string(),
        });
    }
    let none = tests && output.lines().map(passed_in).sum::<u64>() == 0;
    none.then(|| "no test was run".to_owned())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program {
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            variables: vec![("WORD", "word".into())],
            tests: false,
            limit: Duration::from_secs(60),
        }
    }

    fn outcome(program: &Program) -> Outcome {
        let folder = tempfile::tempdir().unwrap();
        let stop = Stop::never();
        program.run(&folder.path().join("log"), &stop)
    }

    #[test]
    fn programs_pass_or_say_why_not() {
        let tests = |script| Program {
            tests: true,
            ..shell(script)
        };
        let hangs = Program {
            limit: Duration::from_millis(100),
            ..shell("sleep 100")
        };
        let missing = Program {
            program: "/no/such/program".into(),
            ..shell("")
        };
        assert_eq!(missing.typed(), "WORD=word /no/such/program -c ");
        for (program, expected) in [
            (shell("test $WORD = word"), None),
            (
                shell("echo failed: this >&2; echo x; exit 3"),
                Some("3: failed: this"),
            ),
            (missing, Some("cannot start")),
            (tests("echo 'test result: ok. 1 passed; 0 failed'"), None),
            // Tests that run none have not passed.
            (
                tests("echo 'test result: ok. 0 passed; 0 failed'"),
                Some("no test"),
            ),
            (hangs, Some("not done")),
        ] {
            match (outcome(&program), expected) {
                (Outcome::Passed, None) => (),
                (Outcome::Failed(why), Some(part)) => assert!(why.contains(part), "{why}"),
                (other, _) => panic!("{}: {other:?}, expected {expected:?}", program.typed()),
            }
        }
    }

    #[test]
    fn the_end_of_the_soak_ends_all_that_a_program_started() {
        let folder = tempfile::tempdir().unwrap();
        let (log, number) = (folder.path().join("log"), folder.path().join("number"));
        let program = shell(&format!("sleep 100 & echo $! > {}; wait", number.display()));
        let stop = Stop::never();
        std::thread::scope(|scope| {
            let run = scope.spawn(|| program.run(&log, &stop));
            let child = loop {
                let text = std::fs::read_to_string(&number).unwrap_or_default();
                match text.trim().parse() {
                    Ok(number) if text.ends_with('\n') => break number,
                    _ => std::thread::sleep(Duration::from_millis(10)),
                }
            };
            let child = rustix::process::Pid::from_raw(child).unwrap();
            rustix::process::test_kill_process(child).unwrap();
            stop.ask();
            assert_eq!(run.join().unwrap(), Outcome::Unfinished);
            // Its parent is gone; the process that inherits orphans reaps it later.
            let gone = || {
                let status = format!("/proc/{}/stat", child.as_raw_nonzero());
                rustix::process::test_kill_process(child).is_err()
                    || std::fs::read_to_string(status).is_ok_and(|text| text.contains(") Z "))
            };
            let start = std::time::Instant::now();
            while !gone() && start.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(gone(), "the program's child still runs");
        });
    }
}
