//! Parses a line into an event. Never panics, whatever the line holds: a fuzz target calls
//! [`parse_line`] directly.

use super::error::LineError;
use super::function::Function;
use super::words::{OPTIONS, Words, number};
use granule_trace::{Barrier, BarrierKind, BitChange, Event, System, Text, Visibility};

const VERB: &str = "reset, msr, store, fill, update, data, code, dsb, dmb, isb, tlbi, dc, ic, \
                    obtain, free, reused, assume-visible, found, sync, user, at, missing, function or #";
const ADDRESS_OF_DESCRIPTOR: &str = "the address of a descriptor, a multiple of 8";
const COUNT: &str = "a number of descriptors, 1 to 4294967295";
const ADDRESS: &str = "an address";
const BYTES: &str = "a number of bytes, at least 1";
const TEXT: &str = "1 to 24 characters of printable ASCII, without the word of an invalidation";
const VALUE: &str = "a value of 64 bits";

/// Reads one line, without its line feed: a CPU and its event, or `None` for a comment and for the
/// name of a function.
///
/// # Errors
///
/// A `LineError` with the first mistake and its column.
pub fn parse_line(line: &str) -> Result<Option<(u32, Event)>, LineError> {
    if let Some(text) = line.strip_prefix('#') {
        return comment(line, text);
    }
    if Function::parse(line)?.is_some() {
        return Ok(None);
    }
    let mut words = Words::new(line);
    let start = words.error(VERB);
    let verb = words.next(VERB)?;
    let kind = match verb {
        "reset" | "msr" | "store" | "fill" | "update" | "data" | "code" | "dsb" | "dmb" | "isb"
        | "tlbi" | "dc" | "ic" | "obtain" | "free" | "reused" | "assume-visible" | "found"
        | "sync" | "user" | "at" | "missing" => verb,
        _ => return Err(start),
    };
    let cpu = words.next_as("cpu and a number, as in cpu0", |word| {
        number(word.strip_prefix("cpu")?)?.try_into().ok()
    })?;
    let event = event(kind, &mut words)?;
    words.end()?;
    Ok(Some((cpu, event)))
}

/// Refuses comments that would mislead simple tools: a word search that counts TLBIs, and a mix of
/// line ends.
fn comment(line: &str, comment: &str) -> Result<Option<(u32, Event)>, LineError> {
    for (text, expected) in [
        ("tlbi", "a comment without the word of an invalidation"),
        ("\r", "a line feed alone, without a carriage return"),
    ] {
        if let Some(at) = comment.find(text) {
            return Err(LineError::new(line, at + 1, expected));
        }
    }
    Ok(None)
}

fn event(verb: &str, words: &mut Words<'_>) -> Result<Event, LineError> {
    Ok(match verb {
        "reset" => Event::Reset,
        "msr" => {
            let register = words.next_as("a translation register's name", |name| {
                System::from_name(name).filter(|system| system.is_register())
            })?;
            Event::System(register, words.next_as(VALUE, number)?)
        }
        "store" => Event::Store {
            address: words.next_as(ADDRESS_OF_DESCRIPTOR, descriptor_address)?,
            count: 1,
            descriptor: words.next_as(VALUE, number)?,
            step: 0,
            visibility: visibility(words)?,
        },
        "fill" => {
            let (address, count) = run(words)?;
            let descriptor = words.next_as(VALUE, number)?;
            let step = words.next_as(VALUE, number)?;
            Event::Store {
                address,
                count,
                descriptor,
                // One descriptor has no next one, so the step is 0 and the line equals that of
                // `store`.
                step: if count == 1 { 0 } else { step },
                visibility: visibility(words)?,
            }
        }
        "update" => {
            let (address, count) = run(words)?;
            Event::Update {
                address,
                count,
                change: BitChange {
                    of: words.next_as(VALUE, number)?,
                    clear: words.next_as(VALUE, number)?,
                    set: words.next_as(VALUE, number)?,
                },
                visibility: visibility(words)?,
            }
        }
        "data" => of_range(words, Event::data)?,
        "code" => of_range(words, Event::code)?,
        "dsb" => {
            let option = words.next_as("ishst, ish, nshst, nsh, st or sy", option)?;
            let kind = BarrierKind::Dsb;
            Event::Barrier(Barrier { kind, option })
        }
        "dmb" => {
            let option = words.next_as("ishst, ish, st or sy", |word| {
                option(word).filter(|_| !word.starts_with("nsh"))
            })?;
            let kind = BarrierKind::Dmb;
            Event::Barrier(Barrier { kind, option })
        }
        "isb" => Event::Barrier(Barrier::ISB),
        "tlbi" => {
            let op = words.next_as("an invalidation's name, as in vaale1is", |name| {
                System::from_name(name).filter(|system| system.is_tlbi())
            })?;
            let operand = if op.takes_operand() {
                words.next_as("the register operand", number)?
            } else {
                0
            };
            Event::System(op, operand)
        }
        "dc" => {
            let instruction = words.next_as("cvac, civac, ivac or cvau", |name| {
                System::from_name(name).filter(|system| system.is_data_cache())
            })?;
            of_range(words, |start, bytes| {
                Event::lines(instruction, start, bytes)
            })?
        }
        "ic" => {
            let op = words.next_as("iallu or ialluis", |name| {
                System::from_name(name).filter(|system| system.is_instruction_cache())
            })?;
            Event::System(op, 0)
        }
        "found" => Event::found(
            words.next_as(ADDRESS_OF_DESCRIPTOR, descriptor_address)?,
            words.next_as(VALUE, number)?,
        ),
        "obtain" => of_range(words, Event::obtained)?,
        "free" => of_range(words, Event::freed)?,
        "reused" => of_range(words, Event::reused)?,
        "user" => Event::User,
        "at" => Event::At(words.next_as(ADDRESS, number)?),
        "missing" => Event::Missing(words.rest_as(TEXT, text)?),
        "assume-visible" => {
            let (start, bytes) = range(words)?;
            let asid = if words.has_more() {
                let expected = "an ASID, at most 65535, or the end of the line";
                Some(words.next_as(expected, |word| number(word)?.try_into().ok())?)
            } else {
                None
            };
            Event::AssumeVisible { start, bytes, asid }
        }
        _ => Event::Settled,
    })
}

/// The option number of the barrier with this name.
fn option(name: &str) -> Option<u8> {
    OPTIONS
        .iter()
        .find(|(_, other)| *other == name)
        .map(|(option, _)| *option)
}

/// The text of `missing`: what is read is written again alike.
fn text(words: &str) -> Option<Text> {
    let text = Text::new(words.as_bytes());
    let is_whole = !words.is_empty() && text.as_str() == words;
    (is_whole && !words.contains("tlbi")).then_some(text)
}

fn descriptor_address(word: &str) -> Option<u64> {
    number(word).filter(|address| address % 8 == 0)
}

/// The address and the count of descriptors.
fn run(words: &mut Words<'_>) -> Result<(u64, u32), LineError> {
    let address = words.next_as(ADDRESS_OF_DESCRIPTOR, descriptor_address)?;
    let count = words.next_as(COUNT, |word| {
        let count: u32 = number(word)?.try_into().ok()?;
        address.checked_add(u64::from(count) * 8)?;
        (count > 0).then_some(count)
    })?;
    Ok((address, count))
}

/// The address and the number of bytes.
fn range(words: &mut Words<'_>) -> Result<(u64, u64), LineError> {
    let address = words.next_as(ADDRESS, number)?;
    let bytes = words.next_as(BYTES, |word| {
        let bytes = number(word)?;
        // The last byte must lie within 64 bits; the byte after it need not.
        address.checked_add(bytes.checked_sub(1)?)?;
        Some(bytes)
    })?;
    Ok((address, bytes))
}

fn of_range(
    words: &mut Words<'_>,
    event: impl FnOnce(u64, u64) -> Event,
) -> Result<Event, LineError> {
    let (start, bytes) = range(words)?;
    Ok(event(start, bytes))
}

/// The ordering of a store: none, release, exchange or earlier.
fn visibility(words: &mut Words<'_>) -> Result<Visibility, LineError> {
    if !words.has_more() {
        return Ok(Visibility::Live);
    }
    words.next_as(
        "release, exchange, earlier or the end of the line",
        |word| match word {
            "release" => Some(Visibility::Publish),
            "exchange" => Some(Visibility::Exchange),
            "earlier" => Some(Visibility::Earlier),
            _ => None,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_that_an_error_names_are_the_words_that_are_read() {
        let named = VERB.replace(" or ", ", ");
        let unknown = parse_line("rely cpu0 0 1").unwrap_err();
        assert_eq!((unknown.column, unknown.expected), (1, VERB));
        for word in named.split(", ").filter(|&word| word != "#") {
            let read = parse_line(word).unwrap_err();
            assert_ne!(read.expected, VERB, "{word}");
        }
    }
}
