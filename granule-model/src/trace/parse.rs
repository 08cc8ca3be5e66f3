//! From a line to an event. Never panics, whatever the line is: a fuzz target calls
//! [`parse_line`] as it stands.

use super::error::LineError;
use super::words::{Words, number};
use crate::event::tlbi::Tlbi;
use crate::event::{Barrier, CacheOp, Event, EventKind, Order, Purpose, Register, Scope};

const VERB: &str = "reset, msr, store, fill, update, data, code, dsb, dmb, isb, tlbi, dc, ic, \
                    obtain, free, rely, sync or #";
const ADDRESS_OF_DESCRIPTOR: &str = "the address of a descriptor, a multiple of 8";
const COUNT: &str = "a number of descriptors, at least 1";
const ADDRESS: &str = "an address";
const BYTES: &str = "a number of bytes, at least 1";
const VALUE: &str = "a value of 64 bits";

/// Reads one line, without its line feed: an event, or nothing where it is a comment.
///
/// # Errors
///
/// The first thing that is wrong with it, with its column.
pub fn parse_line(line: &str) -> Result<Option<Event>, LineError> {
    if let Some(text) = line.strip_prefix('#') {
        return comment(line, text);
    }
    let mut words = Words::new(line);
    let start = words.error(VERB);
    let verb = words.next(VERB)?;
    let kind = match verb {
        "reset" | "msr" | "store" | "fill" | "update" | "data" | "code" | "dsb" | "dmb" | "isb"
        | "tlbi" | "dc" | "ic" | "obtain" | "free" | "rely" | "sync" => verb,
        _ => return Err(start),
    };
    let cpu = words.next_as("cpu and a number, as in cpu0", |word| {
        number(word.strip_prefix("cpu")?)?.try_into().ok()
    })?;
    let kind = event(kind, &mut words)?;
    words.end()?;
    Ok(Some(Event { cpu, kind }))
}

/// What counts TLBIs by a word search must count right; and lines end alike.
fn comment(line: &str, comment: &str) -> Result<Option<Event>, LineError> {
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

fn event(verb: &str, words: &mut Words<'_>) -> Result<EventKind, LineError> {
    Ok(match verb {
        "reset" => EventKind::Reset,
        "msr" => {
            let register = words.next_as("a translation register's name", Register::from_name)?;
            let value = words.next_as(VALUE, number)?;
            EventKind::RegisterWrite { register, value }
        }
        "store" => EventKind::StoreDescriptor {
            address: words.next_as(ADDRESS_OF_DESCRIPTOR, descriptor_address)?,
            value: words.next_as(VALUE, number)?,
            order: order(words)?,
        },
        "fill" => {
            let (address, count) = run(words)?;
            EventKind::FillDescriptors {
                address,
                count,
                first: words.next_as(VALUE, number)?,
                step: words.next_as(VALUE, number)?,
                order: order(words)?,
            }
        }
        "update" => {
            let (address, count) = run(words)?;
            EventKind::UpdateDescriptors {
                address,
                count,
                of: words.next_as(VALUE, number)?,
                clear: words.next_as(VALUE, number)?,
                set: words.next_as(VALUE, number)?,
                order: order(words)?,
            }
        }
        "data" | "code" => {
            let (address, bytes) = range(words)?;
            let purpose = if verb == "data" {
                Purpose::Data
            } else {
                Purpose::Code
            };
            EventKind::OtherStore {
                address,
                bytes,
                purpose,
            }
        }
        "dsb" => EventKind::Barrier(words.next_as("ishst, ish, nshst, nsh, st or sy", |word| {
            barrier("dsb ", word)
        })?),
        "dmb" => {
            EventKind::Barrier(words.next_as("ishst, ish, st or sy", |word| barrier("dmb ", word))?)
        }
        "isb" => EventKind::Barrier(Barrier::Isb),
        "tlbi" => tlbi(words)?,
        "dc" => {
            let op = words.next_as("cvac, civac, ivac or cvau", CacheOp::from_name)?;
            let (address, bytes) = range(words)?;
            EventKind::Cache { op, address, bytes }
        }
        "ic" => EventKind::InstructionCache {
            scope: words.next_as("iallu or ialluis", |word| match word {
                "iallu" => Some(Scope::Local),
                "ialluis" => Some(Scope::Broadcast),
                _ => None,
            })?,
        },
        "obtain" => {
            let (address, bytes) = range(words)?;
            EventKind::TableObtained { address, bytes }
        }
        "free" => {
            let (address, bytes) = range(words)?;
            EventKind::TableFreed { address, bytes }
        }
        "rely" => {
            let (address, bytes) = range(words)?;
            EventKind::Relied { address, bytes }
        }
        _ => EventKind::Sync,
    })
}

/// The barrier of this kind with this option; an ISB has none.
fn barrier(kind: &str, option: &str) -> Option<Barrier> {
    Barrier::ALL
        .iter()
        .copied()
        .find(|barrier| barrier.name().strip_prefix(kind) == Some(option))
}

fn tlbi(words: &mut Words<'_>) -> Result<EventKind, LineError> {
    const NAME: &str = "an invalidation's name, as in vaale1is";
    let op = words.next_as(NAME, |name| Tlbi::from_name(name, 0))?;
    if !op.has_operand() {
        return Ok(EventKind::Tlbi(op));
    }
    let operand = words.next_as("the register operand", number)?;
    Ok(EventKind::Tlbi(Tlbi { operand, ..op }))
}

fn descriptor_address(word: &str) -> Option<u64> {
    number(word).filter(|address| address % 8 == 0)
}

/// Address and count of descriptors.
fn run(words: &mut Words<'_>) -> Result<(u64, u64), LineError> {
    let address = words.next_as(ADDRESS_OF_DESCRIPTOR, descriptor_address)?;
    let count = words.next_as(COUNT, |word| {
        let count = number(word)?;
        let bytes = count.checked_mul(8)?;
        address.checked_add(bytes)?;
        (count > 0).then_some(count)
    })?;
    Ok((address, count))
}

/// Address and bytes.
fn range(words: &mut Words<'_>) -> Result<(u64, u64), LineError> {
    let address = words.next_as(ADDRESS, number)?;
    let bytes = words.next_as(BYTES, |word| {
        let bytes = number(word)?;
        // The last byte must be inside 64 bits; the one behind it need not.
        address.checked_add(bytes.checked_sub(1)?)?;
        Some(bytes)
    })?;
    Ok((address, bytes))
}

fn order(words: &mut Words<'_>) -> Result<Order, LineError> {
    if !words.has_more() {
        return Ok(Order::Plain);
    }
    words.next_as(
        "release, exchange or the end of the line",
        |word| match word {
            "release" => Some(Order::Release),
            "exchange" => Some(Order::Exchange),
            _ => None,
        },
    )
}
