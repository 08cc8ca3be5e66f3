//! The reasons to end a soak or a run of steps before it is complete: a signal, or the end of its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};

/// Whether to go on.
#[derive(Debug)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Stop {
    /// Handles signals from here on: the first asks for an end, the second ends the program.
    pub(crate) fn at(deadline: Option<Instant>) -> Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        #[cfg(unix)]
        for signal in [
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
        ] {
            // The handler that ends the program is registered first, so that it sees the state that the
            // previous signal left.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                Arc::clone(&asked),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&asked)))
            .context("signals cannot be caught")?;
        }
        Ok(Self { asked, deadline })
    }

    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self {
            asked: Arc::new(AtomicBool::new(false)),
            deadline: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> bool {
        self.why().is_some()
    }

    /// The reason to end, if there is one.
    pub(crate) fn why(&self) -> Option<&'static str> {
        if self.asked.load(Ordering::Relaxed) {
            Some("interrupted")
        } else if self.deadline.is_some_and(|end| Instant::now() >= end) {
            Some("the time is up")
        } else {
            None
        }
    }
}
