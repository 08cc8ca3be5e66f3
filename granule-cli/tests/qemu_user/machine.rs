//! Booting a machine with programs on it: what all rooms share.

use std::path::PathBuf;
use std::sync::{Condvar, Mutex};

use granule_cli::{Boot, Initramfs, Outcome, PageSize, Request, boot};
use serde_json::Value;

/// A file that is built before, or the one line that says how to get it.
fn built(name: &str, command: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")),
        PathBuf::from,
    );
    let path = target.join("granule").join(name);
    assert!(
        path.is_file(),
        "{} is missing: build it with `cargo xtask {command}`",
        path.display()
    );
    path
}

/// The program for tests.
pub(crate) fn program() -> Vec<u8> {
    std::fs::read(built("granule-user", "user")).unwrap()
}

/// The program with a standard library.
pub(crate) fn with_std() -> Vec<u8> {
    std::fs::read(built("granule-user-std", "user")).unwrap()
}

/// A machine of 256 MiB with so many CPUs and pages of that size.
pub(crate) fn machine(size: PageSize, cpus: u32) -> Request {
    Request {
        image: Some(built("Image", "image")),
        memory: 256 << 20,
        smp: cpus,
        page_size: Some(size),
        ..Request::default()
    }
}

/// Guests that may still be started: each keeps several host threads busy.
static FREE: (Mutex<u32>, Condvar) = (Mutex::new(2), Condvar::new());

struct Turn;

impl Turn {
    fn take() -> Self {
        let (free, changed) = &FREE;
        let mut free = changed
            .wait_while(free.lock().unwrap(), |free| *free == 0)
            .unwrap();
        *free -= 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (free, changed) = &FREE;
        *free.lock().unwrap() += 1;
        changed.notify_one();
    }
}

/// A boot that has ended as it was to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) json: Value,
    pub(crate) console: String,
    pub(crate) reason: Option<String>,
}

impl Ran {
    /// A number of the record.
    #[track_caller]
    pub(crate) fn number(&self, path: &str) -> u64 {
        let value = path.split('.').fold(&self.json, |value, key| &value[key]);
        value
            .as_u64()
            .unwrap_or_else(|| panic!("{path} is no number in {}", self.json))
    }

    /// Whether the console has this line.
    pub(crate) fn says(&self, line: &str) -> bool {
        self.console.lines().any(|said| said.trim_end() == line)
    }
}

/// Boots with this archive, which must end that way.
#[track_caller]
pub(crate) fn ends(request: &Request, archive: Initramfs, outcome: Outcome) -> Ran {
    let file = tempfile::NamedTempFile::new().unwrap();
    archive.write(file.path()).unwrap();
    let request = Request {
        initrd: Some(file.path().to_owned()),
        ..request.clone()
    };
    let boot: Boot = {
        let _turn = Turn::take();
        boot::run(&request)
    };
    assert_eq!(
        boot.outcome,
        outcome,
        "{}\n{}\n{request:?}",
        boot.last_line(),
        boot.console_text(),
    );
    Ran {
        json: boot.json(),
        console: boot.console_text(),
        reason: boot.reason.clone(),
    }
}

/// The first process is the program for tests, which does what these words say.
#[track_caller]
pub(crate) fn does(request: &Request, words: &str, outcome: Outcome) -> Ran {
    let append = request.append.clone().unwrap_or_default();
    let request = Request {
        append: Some(format!("{append} -- {words}")),
        ..request.clone()
    };
    let archive = Initramfs::new().program("/init", &program());
    let ran = ends(&request, archive, outcome);
    // Whatever it did, every frame came back: else the outcome is another one, but then it must
    // have been counted.
    assert_eq!(
        ran.number("user.frames_before"),
        ran.number("user.frames_after")
    );
    ran
}

/// As [`does`], all of which must be well and end with that line.
#[track_caller]
pub(crate) fn well(request: &Request, words: &str, line: &str) -> Ran {
    let ran = does(request, words, Outcome::Ok);
    assert!(ran.says(line), "no {line:?} in:\n{}", ran.console);
    assert_eq!(ran.number("user.exit_code"), 0);
    ran
}
