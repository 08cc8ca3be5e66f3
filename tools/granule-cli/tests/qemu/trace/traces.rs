//! Records a boot and checks text: code that all rooms share.

use std::path::PathBuf;

use granule_cli::check::{self, CheckOptions, Checked};
use granule_cli::{Boot, PageSize, Request};
use tempfile::TempDir;

use crate::hooked::run;
use crate::image::image;

pub(crate) const SIZES: [PageSize; 3] = [PageSize::K4, PageSize::K16, PageSize::K64];
const STRICT: CheckOptions = CheckOptions {
    strict: true,
    bbm_level: None,
    policies: None,
    most_violations: 10,
};

/// A boot with a trace, and its result.
pub(crate) struct Recorded {
    pub(crate) boot: Boot,
    pub(crate) path: PathBuf,
    _dir: TempDir,
}

impl Recorded {
    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap()
    }

    pub(crate) fn number(&self, path: &str) -> u64 {
        let json = self.boot.json();
        let value = path.split('.').fold(&json, |value, key| &value[key]);
        value.as_u64().unwrap_or_else(|| panic!("{path} in {json}"))
    }

    pub(crate) fn text_of(&self, path: &str) -> String {
        let json = self.boot.json();
        let value = path.split('.').fold(&json, |value, key| &value[key]);
        let text = value.as_str();
        text.unwrap_or_else(|| panic!("{path} in {json}"))
            .to_owned()
    }
}

/// A small machine that records.
pub(crate) fn record(change: impl FnOnce(&mut Request)) -> Recorded {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("boot.trace");
    let mut request = Request {
        image: Some(image()),
        memory: 128 << 20,
        trace: Some(path.clone()),
        ..Request::default()
    };
    change(&mut request);
    Recorded {
        boot: run(&request),
        path,
        _dir: dir,
    }
}

/// The same, and it must end well.
pub(crate) fn record_ok(change: impl FnOnce(&mut Request)) -> Recorded {
    let recorded = record(change);
    let boot = &recorded.boot;
    assert!(
        boot.is_ok(),
        "{}\n{}",
        boot.last_line(),
        boot.console_text()
    );
    recorded
}

pub(crate) fn checked(text: &str) -> Checked {
    check::check(text.as_bytes(), &STRICT, &mut |_| ()).unwrap_or_else(|e| panic!("{e}"))
}

/// The trace without line `line` (counted from 1), with `instead` in its place.
pub(crate) fn with_line(text: &str, line: usize, instead: Option<&str>) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    match instead {
        Some(instead) => lines[line - 1] = instead,
        None => {
            lines.remove(line - 1);
        }
    }
    let (header, events) = lines.split_first().unwrap();
    let (before, _) = header.rsplit_once("events=").unwrap();
    format!("{before}events={}\n{}\n", events.len(), events.join("\n"))
}

/// The first line from `from` on (counted from 1) that begins like this.
pub(crate) fn find(text: &str, from: usize, start: &str) -> usize {
    let mut lines = text.lines().enumerate().skip(from - 1);
    let found = lines.find(|(_, line)| line.starts_with(start));
    found
        .unwrap_or_else(|| panic!("no {start:?} from line {from} on"))
        .0
        + 1
}
