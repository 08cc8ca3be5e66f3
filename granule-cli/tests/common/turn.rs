//! Guests of several CPUs, so many of them at once as the host bears: for rooms of tests that boot
//! such. Each includes this file.

use std::sync::{Condvar, Mutex};

use granule_cli::{Boot, Outcome, Request, boot};

use crate::hooked::hooked;

/// Guests that may still be started: each keeps several host threads busy, and more of them than two
/// would only wait for each other.
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

/// Boots, when there is a turn, what must end that way.
#[track_caller]
pub(crate) fn ends(request: &Request, outcome: Outcome) -> Boot {
    let boot = {
        let _turn = Turn::take();
        boot::run(&hooked(request))
    };
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
