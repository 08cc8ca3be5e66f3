//! Boots a machine and reads its record: code that all rooms share.

use granule_cli::{Outcome, PageSize, Request, Rodata};

use crate::booted::Booted;
use crate::hooked::ends;
use crate::image::image;

/// A machine of 2 GiB with so many CPUs of QEMU's `max`, which report level 2 of FEAT_BBM, whose
/// map is in blocks and whose bootargs have these words. Nothing is merged except on request.
pub(crate) fn machine(cpus: u32, size: PageSize, words: &str) -> Request {
    Request::default()
        .image(image())
        .memory(2 << 30)
        .smp(cpus)
        .page_size(size)
        .rodata(Rodata::Noalias)
        .append(format!("granule.merge=off {words}"))
}

/// Boots what must end well.
#[track_caller]
pub(crate) fn ok(request: &Request) -> Booted {
    ends(request, Outcome::Ok)
}

/// Boots what must end in a panic, and gives its line.
#[track_caller]
pub(crate) fn panics(request: &Request) -> String {
    ends(request, Outcome::Panic).reason().to_owned()
}

impl Booted {
    /// The result of a test in the kernel, which also shows that it ran.
    #[track_caller]
    pub(crate) fn tested(&self, path: &str) -> u64 {
        self.number(&format!("test.{path}"))
    }
}
