//! The console as a terminal: what is typed becomes lines, control characters become signals, and
//! output gets its carriage returns.
//!
//! Bytes in, bytes and signals out; where they come from, where they go and who waits is not known
//! here. One terminal, since there is one console.

use crate::user::abi::signal::{SIGINT, SIGQUIT, SIGTSTP};
use crate::user::abi::terminal::{
    ECHO, ECHOCTL, ECHOE, ECHOK, ECHONL, ICANON, ICRNL, IGNCR, INLCR, ISIG, NOFLSH, ONLCR, OPOST,
    Termios, VEOF, VEOL, VERASE, VINTR, VKILL, VMIN, VQUIT, VSUSP, WindowSize,
};
use arrayvec::ArrayVec;

/// Bytes of input that nobody has read yet, at most; also the longest line.
const BYTES: usize = 1024;

/// What a byte that was typed does beside being input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Sent to the group in the foreground.
    pub(crate) signal: Option<u8>,
    /// Shown, as [`Terminal::output`] gave it out.
    pub(crate) echo: ArrayVec<u8, 8>,
    /// Whether something can be read that could not before.
    pub(crate) readable: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Terminal {
    pub(crate) settings: Termios,
    pub(crate) window: WindowSize,
    /// The process group in the foreground; 0 before there is any.
    pub(crate) foreground: u32,
    /// The session whose terminal it is; 0 before there is any.
    pub(crate) session: u32,
    input: [u8; BYTES],
    start: usize,
    used: usize,
    /// Of these, bytes in whole lines; all while lines are not collected.
    whole: usize,
    /// A bit for each place in `input` whose byte ends a line. A NUL that does is an end of file,
    /// which is read as nothing.
    ends: [u64; BYTES / 64],
}

impl Terminal {
    /// As it is at first: lines, echo, 24 by 80.
    pub(crate) const fn new() -> Self {
        Self {
            settings: Termios::NEW,
            window: WindowSize {
                rows: 24,
                columns: 80,
                pixels: [0; 2],
            },
            foreground: 0,
            session: 0,
            input: [0; BYTES],
            start: 0,
            used: 0,
            whole: 0,
            ends: [0; BYTES / 64],
        }
    }

    /// Takes new settings; input that nobody has read becomes readable if lines no longer matter.
    pub(crate) fn set(&mut self, settings: Termios, flush_input: bool) {
        if flush_input {
            self.flush();
        }
        self.settings = settings;
        if !settings.has(ICANON) {
            self.whole = self.used;
        }
    }

    /// Forgets what nobody has read.
    pub(crate) fn flush(&mut self) {
        (self.used, self.whole) = (0, 0);
    }

    /// A byte was typed.
    pub(crate) fn receive(&mut self, byte: u8) -> Effect {
        let mut effect = Effect::default();
        let Some(byte) = self.translated(byte) else {
            return effect;
        };
        let settings = self.settings;
        if settings.has(ISIG) {
            let signals = [(VINTR, SIGINT), (VQUIT, SIGQUIT), (VSUSP, SIGTSTP)];
            let signal = signals.iter().find(|(index, _)| settings.is(*index, byte));
            if let Some((_, signal)) = signal {
                if !settings.has(NOFLSH) {
                    self.flush();
                }
                self.echo(byte, &mut effect);
                effect.signal = Some(*signal);
                return effect;
            }
        }
        if !settings.has(ICANON) {
            if self.push(byte, false) {
                self.echo(byte, &mut effect);
                self.whole = self.used;
                effect.readable = true;
            }
            return effect;
        }
        if settings.is(VERASE, byte) {
            if self.used > self.whole {
                self.used -= 1;
                self.erase(&mut effect);
            }
        } else if settings.is(VKILL, byte) {
            self.used = self.whole;
            if settings.has(ECHOK) {
                self.echo(byte, &mut effect);
                self.echo(b'\n', &mut effect);
            }
        } else if settings.is(VEOF, byte) {
            effect.readable = self.push(0, true);
        } else if byte == b'\n' || settings.is(VEOL, byte) {
            effect.readable = self.push(byte, true);
            self.echo(byte, &mut effect);
        // One place is kept for the end of the line.
        } else if self.used < BYTES - 1 && self.push(byte, false) {
            self.echo(byte, &mut effect);
        }
        if effect.readable {
            self.whole = self.used;
        }
        effect
    }

    fn translated(&self, byte: u8) -> Option<u8> {
        let has = |flag| self.settings.input & flag != 0;
        match byte {
            b'\r' if has(IGNCR) => None,
            b'\r' if has(ICRNL) => Some(b'\n'),
            b'\n' if has(INLCR) => Some(b'\r'),
            _ => Some(byte),
        }
    }

    fn push(&mut self, byte: u8, ends: bool) -> bool {
        if self.used >= BYTES {
            return false;
        }
        let at = (self.start + self.used) % BYTES;
        if let (Some(slot), Some(bits)) = (self.input.get_mut(at), self.ends.get_mut(at / 64)) {
            *slot = byte;
            *bits = *bits & !(1 << (at % 64)) | u64::from(ends) << (at % 64);
        }
        self.used += 1;
        true
    }

    fn echo(&self, byte: u8, effect: &mut Effect) {
        let settings = &self.settings;
        let newline = byte == b'\n';
        if !(settings.has(ECHO) || newline && settings.has(ECHONL) && settings.has(ICANON)) {
            return;
        }
        if settings.has(ECHOCTL) && (byte < b' ' && !newline && byte != b'\t' || byte == 127) {
            let shown = [b'^', byte ^ 0x40];
            let _ = effect.echo.try_extend_from_slice(&shown);
        } else {
            self.output(&[byte], |piece| {
                let _ = effect.echo.try_extend_from_slice(piece);
            });
        }
    }

    fn erase(&self, effect: &mut Effect) {
        let settings = &self.settings;
        if !settings.has(ECHO) || !settings.has(ECHOE) {
            return;
        }
        // What was erased is behind the input's end now.
        let at = (self.start + self.used) % BYTES;
        let erased = self.input.get(at).copied().unwrap_or(0);
        let wide = settings.has(ECHOCTL) && (erased < b' ' && erased != b'\t' || erased == 127);
        for _ in 0..=usize::from(wide) {
            let _ = effect.echo.try_extend_from_slice(b"\x08 \x08");
        }
    }

    /// Whether a read would not wait.
    pub(crate) fn is_readable(&self) -> bool {
        if self.settings.has(ICANON) {
            self.whole > 0
        } else {
            let least = self.settings.characters.get(VMIN).copied().unwrap_or(1);
            self.used >= usize::from(least).min(BYTES)
        }
    }

    /// Bytes that could be read now.
    pub(crate) fn readable_bytes(&self) -> usize {
        self.whole
    }

    /// Takes out what can be read now: at most one line where lines are collected; 0 is the end of
    /// input. `None` if it would have to wait.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Option<usize> {
        if !self.is_readable() {
            return None;
        }
        let lines = self.settings.has(ICANON);
        let mut count = 0;
        while self.whole > 0 {
            let at = self.start;
            let byte = self.input.get(at).copied().unwrap_or(0);
            let ends = self
                .ends
                .get(at / 64)
                .is_some_and(|bits| bits >> (at % 64) & 1 != 0);
            let end_of_file = lines && ends && byte == 0;
            if !end_of_file {
                let Some(slot) = into.get_mut(count) else {
                    break;
                };
                *slot = byte;
                count += 1;
            }
            self.start = (at + 1) % BYTES;
            self.used -= 1;
            self.whole -= 1;
            if lines && ends {
                break;
            }
        }
        Some(count)
    }

    /// What of `bytes` goes out, in pieces.
    pub(crate) fn output(&self, bytes: &[u8], mut out: impl FnMut(&[u8])) {
        if self.settings.output & (OPOST | ONLCR) != OPOST | ONLCR {
            out(bytes);
            return;
        }
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            match line {
                [text @ .., b'\n'] => {
                    if !text.is_empty() {
                        out(text);
                    }
                    out(b"\r\n");
                }
                text => out(text),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types `text`; what is echoed.
    fn typed(terminal: &mut Terminal, text: &str) -> String {
        let mut shown = Vec::new();
        for byte in text.bytes() {
            shown.extend(terminal.receive(byte).echo);
        }
        String::from_utf8(shown).unwrap()
    }

    fn read(terminal: &mut Terminal, most: usize) -> Option<String> {
        let mut bytes = vec![0; most];
        let count = terminal.read(&mut bytes)?;
        Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }

    #[test]
    fn lines_are_read_one_by_one_once_they_are_whole() {
        let mut terminal = Terminal::new();
        assert_eq!(typed(&mut terminal, "ec"), "ec");
        assert_eq!(read(&mut terminal, 10), None);
        assert_eq!(typed(&mut terminal, "ho\rls\n"), "ho\r\nls\r\n");
        assert_eq!(terminal.readable_bytes(), 8);
        assert_eq!(read(&mut terminal, 10).as_deref(), Some("echo\n"));
        assert_eq!(read(&mut terminal, 1).as_deref(), Some("l"));
        assert_eq!(read(&mut terminal, 10).as_deref(), Some("s\n"));
        assert_eq!(read(&mut terminal, 10), None);
    }

    #[test]
    fn lines_are_edited() {
        let mut terminal = Terminal::new();
        assert_eq!(
            typed(&mut terminal, "ab\x7f\x7f\x7f"),
            "ab\x08 \x08\x08 \x08"
        );
        assert_eq!(typed(&mut terminal, "\x01\x7f"), "^A\x08 \x08\x08 \x08");
        assert_eq!(typed(&mut terminal, "junk\x15ok\n"), "junk^U\r\nok\r\n");
        assert_eq!(read(&mut terminal, 10).as_deref(), Some("ok\n"));
        // What is whole is not edited any more.
        typed(&mut terminal, "line\n\x7f\x15");
        assert_eq!(read(&mut terminal, 10).as_deref(), Some("line\n"));
    }

    #[test]
    fn the_end_of_input_is_read_once() {
        let mut terminal = Terminal::new();
        assert_eq!(typed(&mut terminal, "\x04"), "");
        assert_eq!(read(&mut terminal, 10).as_deref(), Some(""));
        assert_eq!(read(&mut terminal, 10), None);
        // Behind part of a line it only makes that readable.
        typed(&mut terminal, "part\x04rest\n");
        assert_eq!(read(&mut terminal, 10).as_deref(), Some("part"));
        assert_eq!(read(&mut terminal, 10).as_deref(), Some("rest\n"));
        // So it does where the reader's room ends with the part.
        typed(&mut terminal, "1234\x04");
        assert_eq!(read(&mut terminal, 4).as_deref(), Some("1234"));
        assert_eq!(read(&mut terminal, 4), None);
    }

    #[test]
    fn control_characters_send_signals_and_drop_the_input() {
        let mut terminal = Terminal::new();
        typed(&mut terminal, "whole\npart");
        for (byte, signal, shown) in [(3, SIGINT, "^C"), (28, SIGQUIT, "^\\"), (26, SIGTSTP, "^Z")]
        {
            let effect = terminal.receive(byte);
            assert_eq!(effect.signal, Some(signal));
            assert_eq!(&effect.echo[..], shown.as_bytes());
        }
        assert_eq!(read(&mut terminal, 10), None);
        terminal.settings.local &= !ISIG;
        assert_eq!(terminal.receive(3).signal, None);
    }

    #[test]
    fn without_lines_each_byte_is_readable() {
        let mut terminal = Terminal::new();
        typed(&mut terminal, "par");
        let mut raw = terminal.settings;
        raw.local &= !(ICANON | ECHO);
        terminal.set(raw, false);
        assert_eq!(read(&mut terminal, 10).as_deref(), Some("par"));
        assert_eq!(typed(&mut terminal, "\x04\x7f\r"), "");
        assert_eq!(read(&mut terminal, 2).as_deref(), Some("\x04\x7f"));
        assert_eq!(read(&mut terminal, 2).as_deref(), Some("\n"));
        assert_eq!(read(&mut terminal, 2), None);
        // At least so many, or none at all.
        terminal.settings.characters[VMIN] = 2;
        typed(&mut terminal, "x");
        assert!(!terminal.is_readable());
        typed(&mut terminal, "y");
        assert!(terminal.is_readable());
        terminal.settings.characters[VMIN] = 0;
        assert_eq!(read(&mut terminal, 9).as_deref(), Some("xy"));
        assert_eq!(read(&mut terminal, 9).as_deref(), Some(""));
    }

    #[test]
    fn too_long_a_line_can_still_be_ended() {
        let mut terminal = Terminal::new();
        let long = "x".repeat(2 * BYTES);
        assert_eq!(typed(&mut terminal, &long).len(), BYTES - 1);
        typed(&mut terminal, "\n");
        let line = read(&mut terminal, 4 * BYTES).unwrap();
        assert_eq!((line.len(), line.ends_with('\n')), (BYTES, true));
        // And again, from another place in the ring.
        typed(&mut terminal, "one\ntwo\n");
        assert_eq!(read(&mut terminal, 10).as_deref(), Some("one\n"));
        assert_eq!(read(&mut terminal, 10).as_deref(), Some("two\n"));
    }

    #[test]
    fn output_gets_its_carriage_returns_unless_it_is_raw() {
        let shown = |terminal: &Terminal, text: &str| {
            let mut out = Vec::new();
            terminal.output(text.as_bytes(), |piece| out.extend_from_slice(piece));
            String::from_utf8(out).unwrap()
        };
        let mut terminal = Terminal::new();
        assert_eq!(shown(&terminal, "a\n\nb\r\n"), "a\r\n\r\nb\r\r\n");
        assert_eq!(shown(&terminal, ""), "");
        terminal.settings.output = 0;
        assert_eq!(shown(&terminal, "a\nb"), "a\nb");
    }
}
