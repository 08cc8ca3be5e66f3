//! Boots a machine and reads its record: code that all rooms share.

use granule_cli::{Outcome, PageSize, Request, Rodata};
use serde_json::Value;

use crate::hooked;
use crate::image::image;

pub(crate) const SIZES: [PageSize; 3] = [PageSize::K4, PageSize::K16, PageSize::K64];

/// A machine of 2 GiB with so many CPUs of QEMU's `max`, which report level 2 of FEAT_BBM, whose
/// map is in blocks and whose bootargs have these words. Nothing is merged except on request.
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

/// A boot that has ended.
pub(crate) struct Machine {
    json: Value,
    reason: String,
}

#[track_caller]
fn ends(request: &Request, outcome: Outcome) -> Machine {
    let boot = hooked::ends(request, outcome);
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
    /// A number of the record.
    #[track_caller]
    pub(crate) fn number(&self, key: &str) -> u64 {
        let number = self.json[key].as_u64();
        number.unwrap_or_else(|| panic!("{key} is not a number in {}", self.json))
    }

    /// The result of a test in the kernel, which also shows that it ran.
    #[track_caller]
    pub(crate) fn tested(&self, path: &str) -> u64 {
        let seen = path
            .split('.')
            .fold(&self.json["test"], |value, key| &value[key]);
        seen.as_u64()
            .unwrap_or_else(|| panic!("test.{path} is not a number in {}", self.json["test"]))
    }
}
