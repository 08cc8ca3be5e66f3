//! A machine that runs in QEMU, through its gdb socket, or through its QMP socket, by which a gdb
//! socket is opened for the time. The VM is paused meanwhile. Memory is read only where it
//! is asked for, and only where RAM or ROM is: reading a device would change it.

use super::cache::Cache;
use super::cpu::{NAMES, Registers};
use super::gdb::{Answer, Gdb, MOST_MEMORY};
use super::memory::{Facts, Memory, OpenError, ReadError};
use super::qmp::Qmp;
use super::socket::{Endpoint, Socket};
use granule::arch::PhysicalAddress;
use serde_json::json;
use std::cell::RefCell;
use std::io::{Read, Write};
use std::ops::Range;
use std::rc::Rc;
use tempfile::TempDir;

/// The bytes that are fetched together.
const PIECE: u64 = 4096;

/// The note about a VM that ran before.
const PAUSED: &str = "VM paused while its memory is read; resuming afterwards";

/// The memory and the CPUs of the QEMU at this gdb socket.
pub(super) fn by_gdb(endpoint: &Endpoint) -> Result<(Box<dyn Memory>, Facts), OpenError> {
    let (machine, mut facts) = attach(endpoint)?;
    facts.say(PAUSED.into());
    let memory = Attached {
        machine,
        detach: Gdb::detach,
        paused: None,
    };
    Ok((Box::new(memory), facts))
}

/// The memory and the CPUs of the QEMU at this QMP socket.
pub(super) fn by_qmp(endpoint: &Endpoint) -> Result<(Box<dyn Memory>, Facts), OpenError> {
    let named = |error: String| OpenError(format!("{endpoint}: {error}"));
    let mut qmp = Qmp::connect(endpoint)?;
    // The monitor has one gdb socket, and opening another would close it.
    let sockets = qmp.run("query-chardev", json!({})).map_err(named)?;
    let gdb = |socket: &serde_json::Value| socket["label"] == "gdb";
    if let Some(open) = sockets
        .as_array()
        .and_then(|all| all.iter().find(|it| gdb(it)))
    {
        let place = open["filename"].as_str().unwrap_or("unknown");
        return Err(named(format!(
            "this QEMU has a gdb socket already ({place}): read it through that, with gdb:"
        )));
    }
    let status = qmp.run("query-status", json!({})).map_err(named)?;
    let folder = tempfile::tempdir().map_err(|error| named(error.to_string()))?;
    let mut paused = Paused {
        qmp,
        ran: status["running"] == true,
        folder,
    };
    let socket = paused.open_gdb().map_err(named)?;
    let (machine, mut facts) = attach(&socket)?;
    if paused.ran {
        facts.say(PAUSED.into());
    }
    let memory = Attached {
        machine,
        detach: |_| {},
        paused: Some(paused),
    };
    Ok((Box::new(memory), facts))
}

/// Stores words in the memory of the QEMU at this gdb socket. Its VM is paused while `words` lists
/// them, and resumes afterwards.
/// An error is one line: the connection is gone, `words` has none, or memory does not have a word that was stored.
pub fn store(
    endpoint: &Endpoint,
    words: impl FnOnce() -> Result<Vec<(PhysicalAddress, u32)>, String>,
) -> Result<(), String> {
    let socket = endpoint.connect().map_err(|error| error.to_string())?;
    let mut gdb = Gdb::new(socket);
    let stored = gdb
        .order("Qqemu.PhyMemMode:1")
        .and_then(|()| words())
        .and_then(|words| store_words(&mut gdb, words));
    gdb.detach();
    stored
}

fn store_words<S: Read + Write>(
    gdb: &mut Gdb<S>,
    words: Vec<(PhysicalAddress, u32)>,
) -> Answer<()> {
    for (address, word) in words {
        gdb.store(address.0, word)?;
        let mut bytes = [0; 4];
        gdb.memory(address.0, &mut bytes)?;
        let found = u32::from_le_bytes(bytes);
        if found != word {
            return Err(format!(
                "{word:#x} was stored at {:#x}, and {found:#x} is there: is it memory?",
                address.0
            ));
        }
    }
    Ok(())
}

/// A machine that is stopped through QMP. When this is dropped, it does what it did before.
#[derive(Debug)]
struct Paused {
    qmp: Qmp,
    ran: bool,
    /// The folder of the gdb socket.
    folder: TempDir,
}

impl Paused {
    /// Stops the machine and opens a gdb socket.
    fn open_gdb(&mut self) -> Result<Endpoint, String> {
        if self.ran {
            self.qmp.run("stop", json!({}))?;
        }
        let path = self.folder.path().join("gdb");
        let text = path
            .to_str()
            .ok_or("the temporary folder's name is not UTF-8")?;
        // A comma in an option of QEMU is doubled.
        let text = text.replace(',', ",,");
        let command = format!("gdbserver unix:path={text},server=on,wait=off");
        let answer = self.qmp.monitor(&command)?;
        if !path.exists() {
            let answer = answer.lines().next().unwrap_or_default();
            return Err(format!("QEMU opens no gdb socket: {answer}"));
        }
        Ok(Endpoint::Unix(path))
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // QEMU may have ended; then there is no machine either.
        let _ = self.qmp.monitor("gdbserver none");
        if self.ran {
            let _ = self.qmp.run("cont", json!({}));
        }
    }
}

/// A machine while it is read. Its connection ends before it is allowed to run.
struct Attached {
    machine: Machine<Socket>,
    detach: fn(&mut Gdb<Socket>),
    #[expect(dead_code, reason = "it is kept for its end")]
    paused: Option<Paused>,
}

impl Memory for Attached {
    fn read(&self, address: PhysicalAddress, buffer: &mut [u8]) -> Result<(), ReadError> {
        self.machine.read(address, buffer)
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        self.machine.ranges.clone()
    }

    fn searchable(&self) -> Vec<Range<u64>> {
        Vec::new()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        (self.detach)(&mut self.machine.gdb.borrow_mut());
    }
}

fn attach(endpoint: &Endpoint) -> Result<(Machine<Socket>, Facts), OpenError> {
    let socket = endpoint.connect()?;
    Machine::new(Gdb::new(socket)).map_err(|error| OpenError(format!("{endpoint}: {error}")))
}

/// A stopped machine behind a gdb server.
struct Machine<S> {
    gdb: RefCell<Gdb<S>>,
    ranges: Vec<Range<u64>>,
    /// The memory of the secure state, of which QEMU's gdb socket reads nothing.
    secure: Vec<Range<u64>>,
    cache: RefCell<Cache>,
}

impl<S: Read + Write> Machine<S> {
    fn new(mut gdb: Gdb<S>) -> Answer<(Self, Facts)> {
        gdb.ask("qSupported:xmlRegisters=aarch64")?;
        let mut facts = Facts::default();
        let numbers = register_numbers(&mut gdb)?;
        for thread in gdb.threads()? {
            gdb.order(&format!("Hg{thread}"))?;
            let mut cpu = Registers::default();
            for (name, number) in &numbers {
                if let Some(value) = gdb.register(*number)? {
                    cpu.set(name, value);
                }
            }
            facts.cpus.push(cpu);
        }
        gdb.order("Qqemu.PhyMemMode:1").map_err(|error| {
            format!("physical memory cannot be read (QEMU has it from 4.1 on): {error}")
        })?;
        let map = gdb.monitor("info mtree -f")?;
        let ranges = memory_map(&map, &["cpu-memory-0", "memory"]);
        if ranges.is_empty() {
            return Err("QEMU's monitor does not say where memory is (info mtree -f)".into());
        }
        let machine = Self {
            gdb: RefCell::new(gdb),
            ranges,
            secure: memory_map(&map, &["cpu-secure-memory-0"]),
            cache: RefCell::default(),
        };
        Ok((machine, facts))
    }

    fn piece(&self, number: u64, there: &Range<u64>) -> Result<Rc<[u8]>, ReadError> {
        if let Some(piece) = self.cache.borrow().get(number) {
            return Ok(piece);
        }
        let start = number * PIECE;
        // A range may begin or end within a piece.
        let from = there.start.max(start);
        let to = there.end.min(start.saturating_add(PIECE));
        let mut bytes = vec![0; PIECE as usize];
        let part = bytes.get_mut((from - start) as usize..(to - start) as usize);
        let mut at = from;
        for part in part.unwrap_or_default().chunks_mut(MOST_MEMORY) {
            let read = self.gdb.borrow_mut().memory(at, part);
            read.map_err(|why| ReadError::Damaged {
                address: PhysicalAddress(at),
                why,
            })?;
            at += part.len() as u64;
        }
        let bytes: Rc<[u8]> = bytes.into();
        // A piece that two ranges share would have the bytes of one only.
        if to - from == PIECE {
            self.cache.borrow_mut().put(number, &bytes);
        }
        Ok(bytes)
    }

    fn read(&self, address: PhysicalAddress, buffer: &mut [u8]) -> Result<(), ReadError> {
        let (mut at, mut rest) = (address.0, buffer);
        while !rest.is_empty() {
            let there = self.ranges.iter().find(|range| range.contains(&at));
            let there = there.ok_or_else(|| {
                let secure = self.secure.iter().any(|range| range.contains(&at));
                match secure {
                    true => ReadError::Secure(PhysicalAddress(at)),
                    false => ReadError::Absent(PhysicalAddress(at)),
                }
            })?;
            let piece = self.piece(at / PIECE, there)?;
            let piece = piece.get((at % PIECE) as usize..).unwrap_or_default();
            let now = rest.len().min(piece.len());
            let now = now.min(usize::try_from(there.end - at).unwrap_or(now));
            let (part, others) = rest.split_at_mut(now);
            part.copy_from_slice(piece.get(..now).unwrap_or_default());
            at += now as u64;
            rest = others;
        }
        Ok(())
    }
}

/// The numbers of the registers that are wanted, from the machine's description. One without a
/// number follows the one before.
fn register_numbers<S: Read + Write>(gdb: &mut Gdb<S>) -> Answer<Vec<(String, u32)>> {
    let target = gdb.description("target.xml")?;
    let mut numbers = Vec::new();
    let mut next = 0_u32;
    for file in elements(&target, "xi:include") {
        let Some(name) = attribute(file, "href") else {
            continue;
        };
        let text = gdb.description(name)?;
        for register in elements(&text, "reg") {
            let number = attribute(register, "regnum").and_then(|number| number.parse().ok());
            let number = number.unwrap_or(next);
            next = number.saturating_add(1);
            let name = attribute(register, "name").unwrap_or_default();
            let name = match name.to_ascii_lowercase().as_str() {
                // The names of their 32-bit views.
                name @ ("sctlr" | "vbar") => format!("{name}_el1"),
                name => name.to_owned(),
            };
            if NAMES.contains(&name.as_str()) {
                numbers.push((name, number));
            }
        }
    }
    if !numbers.iter().any(|(name, _)| name == "tcr_el1") {
        return Err(
            "it has no system registers of arm64: is it QEMU's, of an aarch64 machine?".into(),
        );
    }
    Ok(numbers)
}

/// The text between `<name ` and `>` of each such element.
fn elements<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let open = format!("<{name} ");
    let found: Vec<&str> = text.split(open.as_str()).skip(1).collect();
    found
        .into_iter()
        .filter_map(|rest| Some(rest.split_once('>')?.0))
}

fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let mut words = element.split_whitespace();
    words.find_map(|word| {
        word.strip_prefix(name)?
            .strip_prefix("=\"")?
            .split('"')
            .next()
    })
}

/// The RAM and ROM of the first of these address spaces, of QEMU's list of what each is made of.
fn memory_map(list: &str, names: &[&str]) -> Vec<Range<u64>> {
    let views = list.split("FlatView ");
    let view = |name: &str| {
        let name = format!("AS \"{name}\"");
        views.clone().find(|view| view.contains(&name))
    };
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let view = names.iter().find_map(|name| view(name));
    for line in view.unwrap_or_default().lines() {
        let Some(range) = memory_range(line) else {
            continue;
        };
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            // The list is in order; what is not would break the promise of `Memory::ranges`.
            Some(last) if last.end > range.start => {}
            _ => ranges.push(range),
        }
    }
    ranges
}

/// The range of a line such as `0000000040000000-000000005fffffff (prio 0, ram): ram`.
fn memory_range(line: &str) -> Option<Range<u64>> {
    let (range, rest) = line.trim().split_once(" (prio ")?;
    let (_, kind) = rest.split_once(')')?.0.split_once(", ")?;
    let (start, last) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(last)?.checked_add(1)?);
    (matches!(kind, "ram" | "rom" | "romd" | "nv-ram") && start < end).then_some(start..end)
}

/// A gdb server that answers from a script, whatever the requests.
struct Script<'a>(&'a [u8]);

impl Read for Script<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Script<'_> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        Ok(buffer.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads a machine whose gdb server sends `answers`: for fuzzing.
#[doc(hidden)]
pub fn read_scripted(answers: &[u8]) -> Option<usize> {
    let (machine, facts) = Machine::new(Gdb::new(Script(answers))).ok()?;
    let mut read = 0;
    for range in machine.ranges.iter().take(8) {
        let address = PhysicalAddress(range.start);
        read += usize::from(machine.read(address, &mut [0; 16]).is_ok());
    }
    Some(facts.cpus.len() + read)
}

#[cfg(test)]
mod tests;
