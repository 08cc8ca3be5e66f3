//! Which requests take the image with the hooks for tests, and boots on the image that they take.

use std::path::PathBuf;

use granule_cli::{Boot, Outcome, Request, boot};

use crate::image::{built, image};

/// The image with the hooks for tests.
pub(crate) fn test_image() -> PathBuf {
    built("Image-test", "cargo xtask image --test")
}

/// The request, on the test image if one of its words is that image's. A word counts for the next
/// kernel too, which is the same image unless the request names another.
pub(crate) fn hooked(request: &Request) -> Request {
    let next = request
        .kexec
        .as_ref()
        .and_then(|kexec| kexec.append.as_ref());
    let words = [request.append.as_ref(), next];
    let mut words = words.into_iter().flatten();
    let hooks = ["granule.test=", "arm64.fake_cpu=", "arm64.inject_conflict="];
    let mut request = request.clone();
    if request.image == Some(image())
        && words.any(|line| hooks.iter().any(|hook| line.contains(hook)))
    {
        request.image = Some(test_image());
    }
    request
}

/// Boots, on the image that its words belong to, what must end that way.
#[track_caller]
pub(crate) fn ends(request: &Request, outcome: Outcome) -> Boot {
    let boot = boot::run(&hooked(request));
    assert_eq!(
        boot.outcome,
        outcome,
        "{}\n{}\n{:?}",
        boot.last_line(),
        boot.console_text(),
        request
    );
    boot
}
