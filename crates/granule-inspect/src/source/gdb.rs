//! The gdb remote protocol, as far as reading a stopped machine needs it: packets, registers by
//! number, memory, threads, and commands of QEMU's monitor; and stores of words. Who stores what is
//! not decided here.

use super::socket::{PATIENCE, Socket};
use std::io::ErrorKind::{TimedOut, WouldBlock};
use std::io::{Read, Write};
use std::time::Instant;

/// The most bytes of a packet. QEMU's have less than 4096, and its monitor's answers come in many.
const MOST_PACKET: usize = 1 << 20;
/// The most bytes of memory in one packet: QEMU answers in two letters a byte.
pub(super) const MOST_MEMORY: usize = 2048;
/// The most bytes of a description and of a monitor's answer.
const MOST_TEXT: usize = 4 << 20;
/// The most CPUs. QEMU has 512.
const MOST_CPUS: usize = 4096;

/// A connection to a gdb server.
#[derive(Debug)]
pub(super) struct Gdb<S> {
    stream: S,
    input: Vec<u8>,
}

/// One line: what the server did instead of answering.
pub(super) type Answer<T> = Result<T, String>;

impl Gdb<Socket> {
    /// Detaches: QEMU lets the machine run again.
    pub(super) fn detach(&mut self) {
        // QEMU may have ended; then there is no machine either.
        let _ = self.ask("Qqemu.PhyMemMode:0");
        let _ = self.ask("D");
    }
}

impl<S: Read + Write> Gdb<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self {
            stream,
            input: Vec::new(),
        }
    }

    /// Sends a request and returns its answer.
    pub(super) fn ask(&mut self, request: &str) -> Answer<Vec<u8>> {
        self.send(request)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = self.receive(until)?;
            // For a machine that ran, the server reports that the connection stopped it.
            if !matches!(answer.first(), Some(b'T' | b'S')) {
                return Ok(answer);
            }
        }
    }

    /// As [`ask`](Self::ask), where the answer must be `OK`.
    pub(super) fn order(&mut self, request: &str) -> Answer<()> {
        match self.ask(request)?.as_slice() {
            b"OK" => Ok(()),
            other => Err(format!(
                "{request} was answered by {:?}",
                String::from_utf8_lossy(other)
            )),
        }
    }

    fn send(&mut self, request: &str) -> Answer<()> {
        let sum = request.bytes().fold(0_u8, u8::wrapping_add);
        let packet = format!("${request}#{sum:02x}");
        let sent = self.stream.write_all(packet.as_bytes());
        sent.map_err(|error| format!("the connection is lost: {error}"))
    }

    fn receive(&mut self, until: Instant) -> Answer<Vec<u8>> {
        loop {
            if let Some(packet) = take_packet(&mut self.input)? {
                let sent = self.stream.write_all(b"+");
                sent.map_err(|error| format!("the connection is lost: {error}"))?;
                return Ok(packet);
            }
            if self.input.len() > MOST_PACKET {
                return Err(format!(
                    "an answer has more than {MOST_PACKET} bytes, the most that are read"
                ));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err("the connection was closed".into()),
                Ok(count) => self.input.extend(bytes.iter().take(count)),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), WouldBlock | TimedOut) => {
                    let time = PATIENCE.as_secs();
                    return Err(format!("no answer within {time} s; is this a gdb socket?"));
                }
                Err(error) => return Err(format!("the connection is lost: {error}")),
            }
            if Instant::now() > until {
                return Err("no answer in time".into());
            }
        }
    }

    /// A file of the machine's description.
    pub(super) fn description(&mut self, name: &str) -> Answer<String> {
        let mut text = Vec::new();
        loop {
            let offset = text.len();
            let part = self.ask(&format!("qXfer:features:read:{name}:{offset:x},ffb"))?;
            let Some((&more, part)) = part.split_first() else {
                return Err(format!("it has no {name}"));
            };
            text.extend(part);
            match more {
                b'l' => return Ok(String::from_utf8_lossy(&text).into_owned()),
                b'm' if text.len() >= MOST_TEXT => {
                    return Err(format!(
                        "its {name} has {MOST_TEXT} bytes or more, the most that are read"
                    ));
                }
                b'm' if !part.is_empty() => {}
                _ => return Err(format!("its {name} cannot be read")),
            }
        }
    }

    /// The numbers of the CPUs, as the protocol writes them.
    pub(super) fn threads(&mut self) -> Answer<Vec<String>> {
        let mut threads = Vec::new();
        let mut answer = self.ask("qfThreadInfo")?;
        while let Some(list) = answer.strip_prefix(b"m") {
            let list = String::from_utf8_lossy(list).into_owned();
            threads.extend(list.split(',').map(str::to_owned));
            if threads.len() > MOST_CPUS {
                return Err(format!(
                    "it has more than {MOST_CPUS} CPUs, the most that are read"
                ));
            }
            answer = self.ask("qsThreadInfo")?;
        }
        Ok(threads)
    }

    /// A register of the selected CPU, if the server has its value.
    pub(super) fn register(&mut self, number: u32) -> Answer<Option<u64>> {
        let answer = self.ask(&format!("p{number:x}"))?;
        let bytes = from_hex(&answer).filter(|bytes| matches!(bytes.len(), 1..=8));
        let value = |bytes: Vec<u8>| {
            let bytes = bytes.iter().rev();
            bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        Ok(bytes.map(value))
    }

    /// The bytes of memory from `address` on, at most [`MOST_MEMORY`].
    pub(super) fn memory(&mut self, address: u64, buffer: &mut [u8]) -> Answer<()> {
        let answer = self.ask(&format!("m{address:x},{:x}", buffer.len()))?;
        match from_hex(&answer).filter(|bytes| bytes.len() == buffer.len()) {
            Some(bytes) => {
                buffer.copy_from_slice(&bytes);
                Ok(())
            }
            None => Err(format!(
                "QEMU does not give this memory: {:?}",
                String::from_utf8_lossy(&answer)
            )),
        }
    }

    /// Stores a word at an address. QEMU translates code in that memory anew.
    pub(super) fn store(&mut self, address: u64, word: u32) -> Answer<()> {
        // The letters are those of the bytes, in their order in memory.
        self.order(&format!("M{address:x},4:{:08x}", word.swap_bytes()))
    }

    /// Returns the answer of QEMU's monitor to a command.
    pub(super) fn monitor(&mut self, command: &str) -> Answer<String> {
        let hex: String = command.bytes().map(|byte| format!("{byte:02x}")).collect();
        let mut text = Vec::new();
        let mut answer = self.ask(&format!("qRcmd,{hex}"))?;
        let until = Instant::now() + PATIENCE;
        while answer != b"OK" {
            let part = answer.strip_prefix(b"O").and_then(from_hex);
            let part = part.ok_or_else(|| format!("QEMU's monitor has no {command:?} here"))?;
            text.extend(part);
            if text.len() > MOST_TEXT {
                return Err(format!(
                    "the answer to {command:?} has more than {MOST_TEXT} bytes, the most that are read"
                ));
            }
            answer = self.receive(until)?;
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The first whole packet of what came, which is removed; `None` if it is not whole yet.
fn take_packet(input: &mut Vec<u8>) -> Answer<Option<Vec<u8>>> {
    // Bytes before it acknowledge our request.
    let Some(start) = input.iter().position(|&byte| byte == b'$') else {
        input.clear();
        return Ok(None);
    };
    let Some(length) = input.iter().skip(start).position(|&byte| byte == b'#') else {
        return Ok(None);
    };
    let end = start + length;
    let Some(sum) = input.get(end + 1..end + 3).and_then(from_hex) else {
        let whole = input.len() >= end + 3;
        return if whole { Err(damaged()) } else { Ok(None) };
    };
    let body = input.get(start + 1..end).unwrap_or_default();
    let right = body.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    if sum != [right] {
        return Err(damaged());
    }
    let packet = plain(body)?;
    input.drain(..end + 3);
    Ok(Some(packet))
}

fn damaged() -> String {
    "an answer is damaged; is this a gdb socket?".into()
}

/// Without escapes (`}` and a byte with bit 5 flipped) and without repeats (`*` and a count).
fn plain(body: &[u8]) -> Answer<Vec<u8>> {
    let mut plain = Vec::with_capacity(body.len());
    let mut bytes = body.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'}' => plain.push(bytes.next().ok_or_else(damaged)? ^ 0x20),
            b'*' => {
                let count = bytes.next().and_then(|count| count.checked_sub(29));
                let last = plain.last().copied();
                let (Some(count), Some(last)) = (count, last) else {
                    return Err(damaged());
                };
                plain.resize(plain.len() + usize::from(count), last);
            }
            _ => plain.push(byte),
        }
    }
    Ok(plain)
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    let pairs = pairs
        .iter()
        .map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?));
    rest.is_empty().then(|| pairs.collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(input: &str) -> (Answer<Option<Vec<u8>>>, usize) {
        let mut input = input.as_bytes().to_vec();
        let packet = take_packet(&mut input);
        (packet, input.len())
    }

    #[test]
    fn packets() {
        assert_eq!(packet("+$OK#9a$"), (Ok(Some(b"OK".to_vec())), 1));
        assert_eq!(packet("+$OK#9"), (Ok(None), 6));
        assert_eq!(packet("+$OK"), (Ok(None), 4));
        assert_eq!(packet("++"), (Ok(None), 0));
        // An escaped `#`, and a zero four times.
        assert_eq!(packet("$}\u{3}#80").0, Ok(Some(b"#".to_vec())));
        assert_eq!(packet("$0* #7a").0, Ok(Some(b"0000".to_vec())));
        for damaged in ["$OK#9b", "$OK#zz", "$*#2a", "$}#7d"] {
            assert!(packet(damaged).0.is_err(), "{damaged}");
        }
    }

    /// A server that answers `OK`, and records its requests.
    #[derive(Default)]
    struct Agrees {
        asked: Vec<u8>,
        answered: usize,
    }

    impl Read for Agrees {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let requests = self.asked.iter().filter(|&&byte| byte == b'#').count();
            assert!(self.answered < requests, "nothing is asked");
            self.answered += 1;
            buffer[..6].copy_from_slice(b"$OK#9a");
            Ok(6)
        }
    }

    impl Write for Agrees {
        fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
            self.asked.extend(buffer);
            Ok(buffer.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_word_is_stored_with_its_lowest_byte_first() {
        let mut gdb = Gdb::new(Agrees::default());
        gdb.store(0x4000_1000, 0xd503_201f).unwrap();
        let asked = String::from_utf8(gdb.stream.asked).unwrap();
        assert!(asked.starts_with("$M40001000,4:1f2003d5#"), "{asked}");
    }

    #[test]
    fn hexadecimal_letters() {
        assert_eq!(from_hex(b"00fF7a"), Some(vec![0, 0xff, 0x7a]));
        assert_eq!(from_hex(b""), Some(vec![]));
        for other in [&b"0"[..], b"xx", b"E0x"] {
            assert_eq!(from_hex(other), None);
        }
    }
}
