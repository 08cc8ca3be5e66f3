//! The kernel command line, split into words by the same rules as Linux.
//!
//! White space separates words. A double quote makes white space part of the word until the next
//! double quote; quotes around a whole word or around its value are removed. The words after `--`
//! are for the first user program and are not read as options. If a key is given more than once the
//! last one counts, so that a person can append to a line that a boot loader already filled.

use super::bytes::{Text, after, before, same, split_once};
use super::choice::Wish;
use super::uart::{self, Device, Uart};
use granule::arch::PageSize;

/// The key of the page size on the command line.
pub const PAGE_SIZE_KEY: &[u8] = b"arm64.pagesize=";
/// The key of the VA size on the command line.
pub const VA_BITS_KEY: &[u8] = b"arm64.vabits=";
/// The key of the word about ACPI on the command line.
pub const ACPI_KEY: &[u8] = b"acpi=";

/// The key of an early console on the command line.
pub const EARLYCON_KEY: &[u8] = b"earlycon=";

/// The words of a command line, up to its end, to a NUL or to the word `--`.
#[must_use]
pub fn words(line: &[u8]) -> Words<'_> {
    Words { rest: line }
}

/// Iterator over the words of a command line, from [`words`].
#[derive(Clone, Debug)]
pub struct Words<'a> {
    rest: &'a [u8],
}

/// One word of a command line: `key` or `key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<'a> {
    /// The part before the first `=`, or the whole word.
    pub key: &'a [u8],
    /// The part after the first `=`, without the quotes around it; `None` without a `=`.
    pub value: Option<&'a [u8]>,
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let word = self.next_as_it_stands()?;
        if same(word, b"--") {
            self.rest = &[];
            return None;
        }
        let (whole, was_quoted) = match word.split_first() {
            Some((b'"', inside)) => (unclosed(inside), true),
            _ => (word, false),
        };
        Some(match split_once(whole, b'=') {
            None => Word {
                key: whole,
                value: None,
            },
            Some((key, value)) if was_quoted => Word {
                key,
                value: Some(value),
            },
            Some((key, value)) => Word {
                key,
                value: Some(unquoted(value)),
            },
        })
    }
}

impl<'a> Words<'a> {
    /// The next word with its quotes, including the word `--`.
    fn next_as_it_stands(&mut self) -> Option<&'a [u8]> {
        while let Some((first, rest)) = self.rest.split_first() {
            if !is_space(*first) {
                break;
            }
            self.rest = rest;
        }
        let mut quoted = false;
        let end = self.rest.iter().position(|byte| {
            quoted ^= *byte == b'"';
            *byte == 0 || (is_space(*byte) && !quoted)
        });
        let (word, rest) = self
            .rest
            .split_at_checked(end.unwrap_or(self.rest.len()))
            .unwrap_or_default();
        self.rest = rest;
        if word.is_empty() {
            self.rest = &[];
            return None;
        }
        Some(word)
    }
}

/// The words after `--`, split by the same rules: the first user program's arguments, without the
/// quotes around them.
pub fn init_arguments(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let mut rest = words(line);
    while rest
        .next_as_it_stands()
        .is_some_and(|word| !same(word, b"--"))
    {}
    core::iter::from_fn(move || rest.next_as_it_stands().map(unquoted))
}

/// A value without the quotes around it.
fn unquoted(value: &[u8]) -> &[u8] {
    match value.split_first() {
        Some((b'"', inside)) => unclosed(inside),
        _ => value,
    }
}

/// The text after an opening quote, without the closing one. The closing quote may be missing,
/// because the end of the line closes every quote.
fn unclosed(inside: &[u8]) -> &[u8] {
    match inside.split_last() {
        Some((b'"', text)) => text,
        _ => inside,
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// The value of the last word with this key. The key includes its `=`, as in `b"rodata="`.
#[must_use]
pub fn find<'a>(line: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let mut found = None;
    for word in words(line) {
        let named = after(key, word.key).is_some_and(|rest| same(rest, b"="));
        if named && word.value.is_some() {
            found = word.value;
        }
    }
    found
}

/// Whether the command line has the word `key`, without a value.
#[must_use]
pub fn is_given(line: &[u8], key: &[u8]) -> bool {
    words(line).any(|word| same(word.key, key) && word.value.is_none())
}

/// Returns the page size that the command line requests: `arm64.pagesize=4k`, `16k` or `64k`.
#[must_use]
pub fn page_size(line: &[u8]) -> Wish<PageSize> {
    let Some(text) = find(line, PAGE_SIZE_KEY) else {
        return Wish::Absent;
    };
    for size in PageSize::ALL {
        if same(text, size.name().as_bytes()) {
            return Wish::Wanted(size);
        }
    }
    Wish::Garbled(Text::new(text))
}

/// Returns the VA size that the command line requests: `arm64.vabits=` and a decimal number.
/// [`choice`](super::choice) decides whether the number is a valid VA size.
#[must_use]
pub fn va_bits(line: &[u8]) -> Wish<u32> {
    let Some(text) = find(line, VA_BITS_KEY) else {
        return Wish::Absent;
    };
    match decimal(text) {
        Some(bits) => Wish::Wanted(bits),
        None => Wish::Garbled(Text::new(text)),
    }
}

/// Returns the command line's choice about ACPI: `acpi=off`, `acpi=on` or `acpi=force`.
#[must_use]
pub fn acpi(line: &[u8]) -> Wish<Acpi> {
    match find(line, ACPI_KEY) {
        None => Wish::Absent,
        Some(b"off") => Wish::Wanted(Acpi::Off),
        Some(b"on") => Wish::Wanted(Acpi::On),
        Some(b"force") => Wish::Wanted(Acpi::Force),
        Some(text) => Wish::Garbled(Text::new(text)),
    }
}

/// Whether the machine is described by ACPI's tables. Without the word it is where the device tree has
/// nothing but `/chosen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acpi {
    /// Never.
    Off,
    /// Where its tables can be read, even beside a device tree.
    On,
    /// In any case.
    Force,
}

/// The UART that a value of `earlycon=` names, in Linux's spelling: `NAME,ADDRESS` or
/// `NAME,ACCESS,ADDRESS`, with optional settings after a further comma. `ACCESS` is `mmio`, `mmio16`
/// or `mmio32`: the layout of an 8250's registers.
#[must_use]
pub fn earlycon(value: &[u8]) -> Option<Uart> {
    let (name, rest) = split_once(value, b',')?;
    let (family, layout, rest) = uart::early(name, rest)?;
    Some(Uart {
        base: hexadecimal(after(before(rest, b','), b"0x")?)?,
        family,
        layout,
    })
}

/// The last value of `console=` that names a UART of a known family, as Linux does: `ttyAMA`,
/// `ttyS`, `ttyPS` or `ttymxc`. Other consoles are for others.
#[must_use]
pub fn console(line: &[u8]) -> Option<&[u8]> {
    let mut found = None;
    for word in words(line) {
        let value = word.value.filter(|_| same(word.key, b"console"));
        if value.is_some_and(|value| uart::device(value).is_some()) {
            found = value;
        }
    }
    found
}

/// The kind of device in a value of `console=`, as `ttyAMA`, and the one digit behind it, with
/// optional settings after a comma.
#[must_use]
pub fn console_device(value: &[u8]) -> Option<(Device, u8)> {
    let (device, rest) = uart::device(value)?;
    match before(rest, b',') {
        [digit] => {
            let number = digit.checked_sub(b'0').filter(|digit| *digit <= 9)?;
            Some((device, number))
        }
        _ => None,
    }
}

/// A hexadecimal number of digits only.
fn hexadecimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    let mut number = 0_u64;
    for byte in text {
        let digit = char::from(*byte).to_digit(16)?;
        number = number << 4 | u64::from(digit);
    }
    Some(number)
}

/// A decimal number of digits only.
fn decimal(text: &[u8]) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    let mut number = 0_u32;
    for byte in text {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number = number.checked_mul(10)?.checked_add(u32::from(digit))?;
    }
    Some(number)
}
