//! Booting a machine and asking its record: what all rooms share.

use std::path::PathBuf;
use std::sync::{Condvar, Mutex};

use granule_cli::{Outcome, PageSize, Request, Rodata, boot};
use serde_json::Value;

pub(crate) const SIZES: [PageSize; 3] = [PageSize::K4, PageSize::K16, PageSize::K64];

/// The image, or the one line that says how to get it.
fn image() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")),
        PathBuf::from,
    );
    let path = target.join("granule/Image");
    assert!(
        path.is_file(),
        "{} is missing: build it with `cargo xtask image`",
        path.display()
    );
    path
}

/// A machine of 2 GiB with so many CPUs of QEMU's `max`, which say level 2 of FEAT_BBM, whose map
/// is in blocks and whose bootargs have these words. Nothing is merged unless it is asked for.
pub(crate) fn machine(cpus: u32, size: PageSize, words: &str) -> Request {
    Request {
        image: Some(image()),
        memory: 2 << 30,
        smp: cpus,
        page_size: Some(size),
        rodata: Some(Rodata::Noalias),
        append: Some(format!("granule.merge=off {words}")),
        ..Request::default()
    }
}

/// Guests that may still be started.
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

/// A boot that has ended.
pub(crate) struct Machine {
    json: Value,
    reason: String,
}

#[track_caller]
fn ends(request: &Request, outcome: Outcome) -> Machine {
    let boot = {
        let _turn = Turn::take();
        boot::run(request)
    };
    assert_eq!(
        boot.outcome,
        outcome,
        "{}\n{}\n{:?}",
        boot.last_line(),
        boot.console_text(),
        request
    );
    Machine {
        json: boot.json(),
        reason: boot.reason.clone().unwrap_or_default(),
    }
}

/// Boots what must end well.
#[track_caller]
pub(crate) fn ok(request: &Request) -> Machine {
    ends(request, Outcome::Ok)
}

/// Boots what must end in a panic, and gives its line.
#[track_caller]
pub(crate) fn panics(request: &Request) -> String {
    ends(request, Outcome::Panic).reason
}

impl Machine {
    /// What a test in the kernel said: that it ran at all is in there.
    #[track_caller]
    pub(crate) fn tested(&self, path: &str) -> u64 {
        let seen = path
            .split('.')
            .fold(&self.json["test"], |value, key| &value[key]);
        seen.as_u64()
            .unwrap_or_else(|| panic!("test.{path} is no number in {}", self.json["test"]))
    }
}
