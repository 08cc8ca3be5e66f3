//! The encoding of one event in four words.
//!
//! | word | bits | what |
//! |---|---|---|
//! | 0 | 7:0 | kind |
//! | 0 | 15:8 | detail: how a store was made and of which entries, which barrier |
//! | 0 | 31:16 | CPU |
//! | 0 | 63:32 | count of descriptors, or encoding of a system register or instruction |
//! | 1 to 3 | | as the kind has them |

use super::event::{Barrier, BarrierKind, BitChange, Event, Text, Visibility};
use super::system::System;

/// The size of a record in 64-bit words.
pub const RECORD_WORDS: usize = 4;

/// An event and the CPU it happened on, encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedEvent(pub [u64; RECORD_WORDS]);

/// Why words are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// The kind is unknown.
    Kind(u8),
    /// The kind has no such detail.
    Detail(u8),
}

impl core::fmt::Display for RecordError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "{kind} is the kind of no record"),
            Self::Detail(detail) => write!(f, "the record's kind has no detail {detail}"),
        }
    }
}

impl core::error::Error for RecordError {}

const STORE: u8 = 1;
const OBTAINED: u8 = 2;
const FREED: u8 = 3;
/// `DMB` and `ISB` follow, in the order of [`BarrierKind`].
const DSB: u8 = 4;
const DMB: u8 = DSB + BarrierKind::Dmb as u8;
const ISB: u8 = DSB + BarrierKind::Isb as u8;
const SYSTEM: u8 = 7;
const LINES: u8 = 8;
const DATA: u8 = 9;
const UPDATE: u8 = 10;
const ASSUME_VISIBLE: u8 = 11;
const SETTLED: u8 = 12;
const CODE: u8 = 13;
const RESET: u8 = 14;
const FOUND: u8 = 15;
const AT: u8 = 16;
const REUSED: u8 = 17;
const MISSING: u8 = 18;
const USER: u8 = 19;

/// The detail of a record of stored descriptors.
const fn how(visibility: Visibility) -> u8 {
    match visibility {
        Visibility::Private => 0,
        Visibility::Live => 1,
        Visibility::Publish => 2,
        Visibility::Exchange => 3,
        Visibility::Earlier => 16,
    }
}

/// In the detail of an update: the change applies to valid entries.
const OF_VALID: u8 = 1 << 2;
/// In the detail of an update: the change applies to present-invalid entries.
const OF_PRESENT_INVALID: u8 = 1 << 3;

/// The detail for the entries to which an update applies.
const fn of(bits: u64) -> u8 {
    let valid = bits & BitChange::VALID != 0;
    let present_invalid = bits & BitChange::PRESENT_INVALID != 0;
    (valid as u8 * OF_VALID) | (present_invalid as u8 * OF_PRESENT_INVALID)
}

/// The inverse of `of`.
const fn entries(of: u8) -> u64 {
    let valid = (of & OF_VALID != 0) as u64 * BitChange::VALID;
    let present_invalid = (of & OF_PRESENT_INVALID != 0) as u64 * BitChange::PRESENT_INVALID;
    valid | present_invalid
}

/// The inverse of [`how`].
const fn visibility(detail: u8) -> Option<Visibility> {
    match detail {
        0 => Some(Visibility::Private),
        1 => Some(Visibility::Live),
        2 => Some(Visibility::Publish),
        3 => Some(Visibility::Exchange),
        16 => Some(Visibility::Earlier),
        _ => None,
    }
}

impl EncodedEvent {
    /// Encodes an event.
    ///
    /// The function is always inlined, so that it folds where the kind of the event is known. That
    /// leaves no jump through a table, which code that runs with the MMU off must not contain.
    #[must_use]
    #[inline(always)]
    pub const fn new(cpu: u16, event: Event) -> Self {
        let (kind, detail, more, words) = match event {
            Event::Store {
                address,
                count,
                descriptor,
                step,
                visibility,
            } => {
                let words = [address, descriptor, step];
                (STORE, how(visibility), count, words)
            }
            Event::Update {
                address,
                count,
                change,
                visibility,
            } => {
                let words = [address, change.clear, change.set];
                (UPDATE, how(visibility) | of(change.of), count, words)
            }
            Event::Obtained { start, bytes } => (OBTAINED, 0, 0, [start, bytes, 0]),
            Event::Freed { start, bytes } => (FREED, 0, 0, [start, bytes, 0]),
            Event::Barrier(Barrier { kind, option }) => (DSB + kind as u8, option, 0, [0; 3]),
            Event::System(system, value) => (SYSTEM, 0, system.0 as u32, [value, 0, 0]),
            Event::Lines {
                instruction,
                start,
                bytes,
            } => (LINES, 0, instruction.0 as u32, [start, bytes, 0]),
            Event::Data { start, bytes } => (DATA, 0, 0, [start, bytes, 0]),
            Event::AssumeVisible { start, bytes, asid } => {
                let asid = match asid {
                    Some(asid) => 1 << 16 | asid as u64,
                    None => 0,
                };
                (ASSUME_VISIBLE, 0, 0, [start, bytes, asid])
            }
            Event::Found {
                address,
                descriptor,
            } => (FOUND, 0, 0, [address, descriptor, 0]),
            Event::Settled => (SETTLED, 0, 0, [0; 3]),
            Event::Code { start, bytes } => (CODE, 0, 0, [start, bytes, 0]),
            Event::Reset => (RESET, 0, 0, [0; 3]),
            Event::At(address) => (AT, 0, 0, [address, 0, 0]),
            Event::Reused { start, bytes } => (REUSED, 0, 0, [start, bytes, 0]),
            Event::Missing(what) => (MISSING, 0, 0, what.encode()),
            Event::User => (USER, 0, 0, [0; 3]),
        };
        let first = kind as u64 | (detail as u64) << 8 | (cpu as u64) << 16 | (more as u64) << 32;
        let [a, b, c] = words;
        Self([first, a, b, c])
    }

    /// Decodes a record to the CPU and the event.
    ///
    /// # Errors
    ///
    /// When the words are not a record.
    pub const fn event(&self) -> Result<(u16, Event), RecordError> {
        let [first, a, b, c] = self.0;
        let detail = (first >> 8) as u8;
        let more = (first >> 32) as u32;
        let start = a;
        let event = match first as u8 {
            STORE | UPDATE => {
                let is_store = first as u8 == STORE;
                let of = if is_store {
                    0
                } else {
                    detail & (OF_VALID | OF_PRESENT_INVALID)
                };
                let Some(visibility) = visibility(detail & !of) else {
                    return Err(RecordError::Detail(detail));
                };
                let (address, count) = (start, more);
                if is_store {
                    Event::Store {
                        address,
                        count,
                        descriptor: b,
                        step: c,
                        visibility,
                    }
                } else {
                    Event::Update {
                        address,
                        count,
                        change: BitChange {
                            of: entries(of),
                            clear: b,
                            set: c,
                        },
                        visibility,
                    }
                }
            }
            OBTAINED => Event::Obtained { start, bytes: b },
            FREED => Event::Freed { start, bytes: b },
            kind @ (DSB | DMB | ISB) if detail < 16 => {
                let kind = match kind {
                    DSB => BarrierKind::Dsb,
                    DMB => BarrierKind::Dmb,
                    _ => BarrierKind::Isb,
                };
                Event::Barrier(Barrier {
                    kind,
                    option: detail,
                })
            }
            DSB | DMB | ISB => return Err(RecordError::Detail(detail)),
            SYSTEM => Event::System(System(more as u16), a),
            LINES => Event::Lines {
                instruction: System(more as u16),
                start: a,
                bytes: b,
            },
            DATA => Event::Data { start, bytes: b },
            ASSUME_VISIBLE => Event::AssumeVisible {
                start: a,
                bytes: b,
                asid: if c >> 16 & 1 != 0 {
                    Some(c as u16)
                } else {
                    None
                },
            },
            FOUND => Event::Found {
                address: a,
                descriptor: b,
            },
            SETTLED => Event::Settled,
            CODE => Event::Code { start, bytes: b },
            RESET => Event::Reset,
            AT => Event::At(a),
            REUSED => Event::Reused { start, bytes: b },
            MISSING => Event::Missing(Text::decode([a, b, c])),
            USER => Event::User,
            kind => return Err(RecordError::Kind(kind)),
        };
        Ok(((first >> 16) as u16, event))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn every_event_comes_back() {
        let start = 0x000f_ffff_ffff_fff8;
        let mut events = std::vec![
            Event::Obtained {
                start,
                bytes: 1 << 40
            },
            Event::Freed { start, bytes: 4096 },
            Event::Barrier(Barrier::ISB),
            Event::System(System::TTBR1_EL1, u64::MAX),
            Event::Lines {
                instruction: System::DC_IVAC,
                start: u64::MAX - 7,
                bytes: 8,
            },
            Event::Data { start, bytes: 1 },
            Event::AssumeVisible {
                start: u64::MAX,
                bytes: 1,
                asid: None,
            },
            Event::AssumeVisible {
                start: 0,
                bytes: u64::MAX,
                asid: Some(u16::MAX),
            },
            Event::AssumeVisible {
                start: 0,
                bytes: 1,
                asid: Some(0),
            },
            Event::Found {
                address: start,
                descriptor: u64::MAX,
            },
            Event::Settled,
            Event::Code { start, bytes: 64 },
            Event::Reset,
            Event::At(start),
            Event::Reused { start, bytes: 64 },
            Event::Missing(Text::new(b"twenty-four bytes of text and more")),
            Event::Missing(Text::new(b"")),
            Event::User,
        ];
        for option in 0..16 {
            for kind in [BarrierKind::Dsb, BarrierKind::Dmb, BarrierKind::Isb] {
                events.push(Event::Barrier(Barrier { kind, option }));
            }
        }
        for visibility in [
            Visibility::Private,
            Visibility::Live,
            Visibility::Publish,
            Visibility::Exchange,
            Visibility::Earlier,
        ] {
            events.push(Event::Store {
                address: start,
                count: u32::MAX,
                descriptor: u64::MAX,
                step: 1 << 63,
                visibility,
            });
        }
        for of in [
            BitChange::VALID,
            BitChange::PRESENT_INVALID,
            BitChange::LEAVES,
        ] {
            events.push(Event::Update {
                address: start,
                count: 8192,
                change: BitChange {
                    of,
                    clear: u64::MAX,
                    set: 5,
                },
                visibility: Visibility::Live,
            });
        }
        for event in events {
            for cpu in [0, 1, u16::MAX] {
                assert_eq!(EncodedEvent::new(cpu, event).event(), Ok((cpu, event)));
            }
        }
    }

    #[test]
    fn text_can_be_printed() {
        let escape = Text::new(b"\x1b[31mred\0hidden");
        assert_eq!(escape.as_str(), "?[31mred");
        let words = [u64::from_le_bytes(*b"\xff\xfeabc\x7f\0z"), 0, 7];
        let record = EncodedEvent([u64::from(MISSING), words[0], words[1], words[2]]);
        assert_eq!(
            record.event(),
            Ok((0, Event::Missing(Text::new(b"??abc?"))))
        );
    }

    #[test]
    fn bytes_that_are_no_record_are_refused() {
        assert_eq!(EncodedEvent([0; 4]).event(), Err(RecordError::Kind(0)));
        assert_eq!(EncodedEvent([20; 4]).event(), Err(RecordError::Kind(20)));
        for (kind, detail) in [
            (STORE, 4),
            (STORE, 5),
            (UPDATE, 32),
            (UPDATE, 35),
            (DSB, 16),
            (DMB, 255),
        ] {
            let first = u64::from(kind) | u64::from(detail) << 8;
            assert_eq!(
                EncodedEvent([first, 0, 0, 0]).event(),
                Err(RecordError::Detail(detail))
            );
        }
    }
}
