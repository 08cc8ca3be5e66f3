//! The results of a step, as the process of the step hands them to the run in a file.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A test or check that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) name: String,
    /// Whether chance may decide it: then it is repeated.
    pub(crate) live: bool,
    /// One line.
    pub(crate) why: String,
}

/// The time of a test program over all of its tests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProgramTimes {
    pub(crate) name: String,
    pub(crate) tests: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
}

/// The results of the tests or checks of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) passed: u64,
    pub(crate) failed: Vec<Failure>,
    pub(crate) programs: Vec<ProgramTimes>,
    /// CPU time of all processes, which does not grow on a busy machine.
    pub(crate) cpu_seconds: f64,
}

impl Results {
    /// Those of a step that is one check itself.
    pub(crate) fn of(name: &str, live: bool, result: anyhow::Result<()>) -> Self {
        let failed = result.err().map(|error| Failure {
            name: name.to_owned(),
            live,
            why: format!("{error:#}"),
        });
        Self {
            passed: u64::from(failed.is_none()),
            failed: failed.into_iter().collect(),
            ..Self::default()
        }
    }
}

/// CPU time of all children that have ended (`cutime` and `cstime` of proc(5), in hundredths of a second).
/// Zero on a host without `/proc`.
pub(crate) fn cpu_of_children() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let words = behind_name.split_ascii_whitespace().skip(13).take(2);
    let hundredths: u64 = words.filter_map(|word| word.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * hundredths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_children_is_counted() {
        let before = cpu_of_children();
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        let mut shell = std::process::Command::new("sh");
        assert!(shell.args(["-c", script]).status().unwrap().success());
        assert!(!cfg!(target_os = "linux") || cpu_of_children() > before);
    }
}
