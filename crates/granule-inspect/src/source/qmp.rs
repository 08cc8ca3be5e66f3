//! QEMU's machine protocol (QMP): JSON objects, one on each line. This file sends commands and
//! receives answers and events; it does not interpret them.

use super::memory::OpenError;
use super::socket::{Endpoint, PATIENCE, Socket};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The time for which [`Qmp::poll`] waits.
const TICK: Duration = Duration::from_millis(50);
/// The most bytes of an object.
const MOST_LINE: u64 = 64 << 20;

#[derive(Debug)]
pub struct Qmp {
    lines: BufReader<Socket>,
    /// The beginning of a line whose end has not arrived yet.
    partial: Vec<u8>,
    /// The number of commands sent; an answer carries its command's number.
    commands: u64,
}

impl Qmp {
    /// A connection that QEMU has not greeted yet.
    /// Fails if the stream has no timeouts.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        Self::of(Socket::Unix(stream))
    }

    fn of(socket: Socket) -> io::Result<Self> {
        socket.set_timeout(TICK)?;
        Ok(Self {
            lines: BufReader::new(socket),
            partial: Vec::new(),
            commands: 0,
        })
    }

    /// A connection that accepts commands.
    /// Fails if nothing listens there, or it is not a QMP socket.
    pub fn connect(endpoint: &Endpoint) -> Result<Self, OpenError> {
        let named = |error: &dyn std::fmt::Display| OpenError(format!("{endpoint}: {error}"));
        let mut qmp = Self::of(endpoint.connect()?).map_err(|error| named(&error))?;
        let until = Instant::now() + PATIENCE;
        let greeting = qmp
            .wait(until)
            .map_err(|error| named(&format!("no greeting ({error}); is this a QMP socket?")))?;
        qmp.run("qmp_capabilities", accepted(&greeting))
            .map_err(|error| named(&error))?;
        Ok(qmp)
    }

    /// The next object that QEMU sends, or `None` if there is none for a moment.
    /// Fails if QEMU has gone, or sends something else.
    pub fn poll(&mut self) -> io::Result<Option<Value>> {
        let left = MOST_LINE - self.partial.len() as u64;
        let mut lines = self.lines.by_ref().take(left);
        match lines.read_until(b'\n', &mut self.partial) {
            Ok(_) if self.partial.last() == Some(&b'\n') => {
                let object = serde_json::from_slice(&self.partial);
                self.partial.clear();
                Ok(Some(object?))
            }
            Ok(_) if self.partial.len() as u64 == MOST_LINE => Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("an answer has {MOST_LINE} bytes or more, the most that are read"),
            )),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a command, and returns the number (`id`) that its answer will have.
    /// Fails if QEMU has gone.
    pub fn send(&mut self, command: &str, arguments: Value) -> io::Result<u64> {
        self.commands += 1;
        let id = self.commands;
        let mut line = json!({ "execute": command, "arguments": arguments, "id": id }).to_string();
        line.push('\n');
        self.lines.get_mut().write_all(line.as_bytes())?;
        Ok(id)
    }

    /// Runs a command and returns its answer; events in between are ignored.
    /// An error is one line: QEMU refuses the command, has gone, or does not answer in time.
    pub fn run(&mut self, command: &str, arguments: Value) -> Result<Value, String> {
        self.run_for(command, arguments, PATIENCE)
    }

    /// As [`run`](Self::run), for a command that takes up to `time`.
    pub fn run_for(
        &mut self,
        command: &str,
        arguments: Value,
        time: Duration,
    ) -> Result<Value, String> {
        let lost = |error: io::Error| format!("{command}: {error}");
        let id = self.send(command, arguments).map_err(lost)?;
        let until = Instant::now() + time;
        loop {
            let mut answer = self.wait(until).map_err(lost)?;
            if answer["id"].as_u64().is_some_and(|other| other != id) {
                continue;
            }
            if let Some(error) = answer.get("error") {
                let why = error["desc"]
                    .as_str()
                    .unwrap_or("no reason")
                    .replace('\n', " ");
                return Err(format!("QEMU refuses {command}: {why}"));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Runs a command of the human monitor and returns what it prints.
    pub fn monitor(&mut self, command: &str) -> Result<String, String> {
        let arguments = json!({ "command-line": command });
        let answer = self.run("human-monitor-command", arguments)?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    fn wait(&mut self, until: Instant) -> io::Result<Value> {
        loop {
            if let Some(object) = self.poll()? {
                return Ok(object);
            }
            if Instant::now() >= until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
            }
        }
    }
}

/// Accepts every capability of QEMU's greeting, which is one: out-of-band commands. We send none of
/// them. Without the capability QEMU suspends its monitor during each command and resumes it by a
/// callback; a guest that powers off before the callback makes QEMU abort ("BH
/// 'monitor_accept_input' leaked") instead of end.
pub fn accepted(greeting: &Value) -> Value {
    match &greeting["QMP"]["capabilities"] {
        Value::Array(offered) => json!({ "enable": offered }),
        _ => json!({}),
    }
}
