//! The lines that name the functions of the recorded system. They are not events: the model does
//! not see them.

use std::fmt;

use super::error::LineError;
use super::words::{Words, number};

/// The first word of the line.
const VERB: &str = "function";
const NAME: &str = "a name, in which %XX stands for a space, %, what is not printable ASCII, and the last \
                    letter of the word of an invalidation";

/// A function of the recorded system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The virtual address of its first instruction.
    pub start: u64,
    /// Its size.
    pub bytes: u64,
    /// Its name.
    pub name: String,
    /// The module that has it; `None` for the program itself.
    pub module: Option<String>,
}

impl Function {
    /// Reads a line, without its line feed; `None` for a line of another kind.
    ///
    /// # Errors
    ///
    /// A `LineError` with the first mistake and its column.
    pub fn parse(line: &str) -> Result<Option<Self>, LineError> {
        if line.split(' ').next() != Some(VERB) {
            return Ok(None);
        }
        let mut words = Words::new(line);
        words.next(VERB)?;
        let start = words.next_as("an address", number)?;
        let bytes = words.next_as("a number of bytes, at least 1", |word| {
            let bytes = number(word)?;
            start.checked_add(bytes.checked_sub(1)?)?;
            Some(bytes)
        })?;
        let name = words.next_as(NAME, unescape)?;
        let module = match words.has_more() {
            true => Some(words.next_as(NAME, unescape)?),
            false => None,
        };
        words.end()?;
        Ok(Some(Self {
            start,
            bytes,
            name,
            module,
        }))
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            start,
            bytes,
            name,
            module,
        } = self;
        write!(f, "{VERB} {start:#x} {bytes:#x} ")?;
        escape(name, f)?;
        match module {
            Some(module) => {
                f.write_str(" ")?;
                escape(module, f)
            }
            None => Ok(()),
        }
    }
}

/// No line but that of an invalidation has its word.
fn escape(name: &str, to: &mut dyn fmt::Write) -> fmt::Result {
    let bytes = name.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        let ends_word = bytes.get(..=at).is_some_and(|it| it.ends_with(b"tlbi"));
        if byte.is_ascii_graphic() && byte != b'%' && !ends_word {
            to.write_char(byte.into())?;
        } else {
            write!(to, "%{byte:02x}")?;
        }
    }
    Ok(())
}

fn unescape(word: &str) -> Option<String> {
    if !word.bytes().all(|byte| byte.is_ascii_graphic()) || word.contains("tlbi") {
        return None;
    }
    let mut parts = word.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if !digits.bytes().all(is_digit) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_comes_back() {
        for (name, module) in [
            ("do_fault", None),
            ("act", Some("a_module")),
            ("local_tlbi_all", None),
            ("caf\u{e9} %41 <&>", Some("x y")),
        ] {
            let function = Function {
                start: u64::MAX - 1,
                bytes: 2,
                name: name.into(),
                module: module.map(str::to_owned),
            };
            let line = function.to_string();
            assert!(!line.contains("tlbi") && line.is_ascii(), "{line}");
            assert_eq!(Function::parse(&line), Ok(Some(function)), "{line}");
        }
        assert_eq!(Function::parse("functions 0 1 x"), Ok(None));
    }

    #[test]
    fn mistakes_have_their_column() {
        for (line, column) in [
            ("function", 9),
            ("function x", 10),
            ("function 0x10 0 f", 15),
            ("function 0x10 1", 16),
            ("function 0x10 1 f%4", 17),
            ("function 0x10 1 f%+4", 17),
            ("function 0x10 1 f%c3", 17),
            ("function 0x10 1 a_tlbi", 17),
            ("function 0x10 1 f m x", 20),
        ] {
            assert_eq!(Function::parse(line).unwrap_err().column, column, "{line}");
        }
    }
}
