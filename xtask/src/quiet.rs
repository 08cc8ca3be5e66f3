//! Ends a program that prints nothing for too long, so that one test that hangs is a failure with a name and
//! not the end of a whole run. What the output means belongs to the caller.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};

/// No test is silent for so long, not even beside ten other programs for each core: the longest takes
/// two minutes on an idle machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20 * 60);

/// What a program printed to its standard output, and its end.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) text: String,
    /// Nothing if the program was ended because it was silent.
    pub(crate) status: Option<ExitStatus>,
}

impl Printed {
    pub(crate) fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs a program to its end, or until it has printed nothing for `limit`.
pub(crate) fn run(mut command: Command, limit: Duration) -> Result<Printed> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().context("the output is not a pipe")?;
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut bytes) {
            if send.send(bytes[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut text = Vec::new();
    let silent = loop {
        match receive.recv_timeout(limit) {
            Ok(bytes) => text.extend(bytes),
            Err(end) => break end == RecvTimeoutError::Timeout,
        }
    };
    if silent {
        // An error means that it ended by itself meanwhile.
        let _ = child.kill();
    }
    let status = child.wait()?;
    Ok(Printed {
        text: String::from_utf8_lossy(&text).into_owned(),
        status: (!silent).then_some(status),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Printed {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, limit).unwrap()
    }

    #[test]
    fn a_silent_program_is_ended_and_its_words_are_kept() {
        let printed = shell("echo word; exec sleep 1000", Duration::from_millis(300));
        assert_eq!(printed.text, "word\n");
        assert!(printed.status.is_none() && !printed.succeeded());
    }

    #[test]
    fn the_end_of_a_program_is_told() {
        let printed = shell("echo word; exit 3", LIMIT);
        assert_eq!(printed.text, "word\n");
        assert_eq!(printed.status.unwrap().code(), Some(3));
        assert!(shell("exit 0", LIMIT).succeeded());
    }
}
