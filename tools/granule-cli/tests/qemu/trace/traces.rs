//! Records a boot and checks text: code that all rooms share.

use std::path::PathBuf;

use granule_cli::Request;
use granule_cli::check::{self, CheckOptions, Checked};
use tempfile::TempDir;

use crate::booted::Booted;
use crate::image::image;

const STRICT: CheckOptions = CheckOptions::STRICT;

/// A boot with a trace, and its result.
pub(crate) struct Recorded {
    pub(crate) ran: Booted,
    pub(crate) path: PathBuf,
    _dir: TempDir,
}

impl Recorded {
    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap()
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
        ran: Booted::by(&request),
        path,
        _dir: dir,
    }
}

/// The same, and it must end well.
pub(crate) fn record_ok(change: impl FnOnce(&mut Request)) -> Recorded {
    let recorded = record(change);
    recorded.ran.has("outcome", "ok");
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
