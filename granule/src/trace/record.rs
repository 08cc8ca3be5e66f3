//! One event as four words.
//!
//! | word | bits | what |
//! |---|---|---|
//! | 0 | 7:0 | kind |
//! | 0 | 15:8 | detail: how a store was made and of which entries, which barrier |
//! | 0 | 31:16 | CPU |
//! | 0 | 63:32 | count of descriptors, or encoding of a system register or instruction |
//! | 1 to 3 | | as the kind has them |

use super::system::System;
use crate::arch::{Descriptor, PhysicalAddress};
use crate::table::{BitChange, TableEvent, Visibility};

/// 64-bit words of a record.
pub const RECORD_WORDS: usize = 4;

/// Which barrier instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum BarrierKind {
    /// Waits for what came before to be complete.
    Dsb,
    /// Orders what came before and what comes after.
    Dmb,
    /// What comes after is fetched and translated anew.
    Isb,
}

/// A barrier instruction with its option.
///
/// A struct, not an enum with an option in it: [`Event`] would take over the cases of that, and a
/// choice between so many is compiled to a jump through a table, which code that runs with the
/// MMU off must not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Barrier {
    /// The instruction.
    pub kind: BarrierKind,
    /// CRm of the instruction: 15 for SY, 11 for ISH, 7 for NSH, one less for stores only.
    pub option: u8,
}

impl Barrier {
    /// DSB SY.
    pub const DSB_SY: Self = Self::dsb(0b1111);
    /// DSB ISH.
    pub const DSB_ISH: Self = Self::dsb(0b1011);
    /// DSB ISHST.
    pub const DSB_ISHST: Self = Self::dsb(0b1010);
    /// DSB NSHST.
    pub const DSB_NSHST: Self = Self::dsb(0b0110);
    /// DSB NSH.
    pub const DSB_NSH: Self = Self::dsb(0b0111);
    /// DMB SY.
    pub const DMB_SY: Self = Self {
        kind: BarrierKind::Dmb,
        option: 0b1111,
    };
    /// ISB.
    pub const ISB: Self = Self {
        kind: BarrierKind::Isb,
        option: 0b1111,
    };

    const fn dsb(option: u8) -> Self {
        let kind = BarrierKind::Dsb;
        Self { kind, option }
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// `count` descriptors were stored from `address` on: `descriptor`, `descriptor + step` and
    /// so on.
    Store {
        /// Of the first entry.
        address: PhysicalAddress,
        /// How many.
        count: u32,
        /// The first.
        descriptor: Descriptor,
        /// What is added, wrapping, for each that follows.
        step: u64,
        /// How they were stored.
        visibility: Visibility,
    },
    /// Bits were changed of those among `count` descriptors from `address` on that the change
    /// concerns.
    Update {
        /// Of the first entry.
        address: PhysicalAddress,
        /// How many.
        count: u32,
        /// The change.
        change: BitChange,
        /// How they were stored.
        visibility: Visibility,
    },
    /// Memory was obtained for tables.
    Obtained {
        /// The first byte.
        start: PhysicalAddress,
        /// How many.
        bytes: u64,
    },
    /// Table memory was given back.
    Freed {
        /// The first byte.
        start: PhysicalAddress,
        /// How many.
        bytes: u64,
    },
    /// From here on the CPU uses a range of virtual addresses as the tables say.
    Relied {
        /// The first address.
        start: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// From here on the CPU uses all that the tables say.
    Settled,
    /// A barrier.
    Barrier(Barrier),
    /// A register was written, or an instruction with at most one operand executed.
    System(System, u64),
    /// An instruction on every cache line that holds a byte of a range of physical addresses.
    Lines {
        /// The instruction.
        instruction: System,
        /// The first address.
        start: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Bytes were stored that are no descriptors, and that code which runs with the MMU off reads.
    Data {
        /// The first byte's physical address.
        start: PhysicalAddress,
        /// How many.
        bytes: u64,
    },
}

impl Event {
    /// What happened in tables of pages of `page_bytes`.
    #[must_use]
    pub const fn of_table(event: TableEvent, page_bytes: u64) -> Self {
        match event {
            TableEvent::DsbIshst => Self::Barrier(Barrier::DSB_ISHST),
            TableEvent::DsbIsh => Self::Barrier(Barrier::DSB_ISH),
            TableEvent::Tlbi(regime, op) => {
                let (system, operand) = System::of_tlbi(regime, op);
                Self::System(system, operand)
            }
            TableEvent::Relied { start, bytes } => Self::Relied {
                start: start.0,
                bytes,
            },
            TableEvent::Isb => Self::Barrier(Barrier::ISB),
            TableEvent::Store { .. }
            | TableEvent::Update { .. }
            | TableEvent::Obtained(_)
            | TableEvent::Freed(_) => match Self::of_private_table(event, page_bytes) {
                Some(event) => event,
                // It has all four of them.
                None => Self::Settled,
            },
        }
    }

    /// The same for tables that nobody walks yet, round which there are no barriers and TLBIs;
    /// `None` for these. Few cases, for code that runs with the MMU off: see [`Barrier`].
    #[must_use]
    pub const fn of_private_table(event: TableEvent, page_bytes: u64) -> Option<Self> {
        match event {
            TableEvent::Store {
                table,
                first,
                count,
                descriptor,
                step,
                visibility,
            } => Some(Self::Store {
                address: PhysicalAddress(table.0.wrapping_add(8 * first as u64)),
                count: count as u32,
                descriptor,
                step,
                visibility,
            }),
            TableEvent::Update {
                table,
                first,
                count,
                change,
                visibility,
            } => Some(Self::Update {
                address: PhysicalAddress(table.0.wrapping_add(8 * first as u64)),
                count: count as u32,
                change,
                visibility,
            }),
            TableEvent::Obtained(run) => Some(Self::Obtained {
                start: run.first,
                bytes: page_bytes.wrapping_mul(run.count as u64),
            }),
            TableEvent::Freed(start) => Some(Self::Freed {
                start,
                bytes: page_bytes,
            }),
            _ => None,
        }
    }
}

/// An event and the CPU it happened on, encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record(pub [u64; RECORD_WORDS]);

/// Why words are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// There is no such kind.
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
/// And `DMB`, `ISB` after it, in the order of [`BarrierKind`].
const DSB: u8 = 4;
const DMB: u8 = DSB + BarrierKind::Dmb as u8;
const ISB: u8 = DSB + BarrierKind::Isb as u8;
const SYSTEM: u8 = 7;
const LINES: u8 = 8;
const DATA: u8 = 9;
const UPDATE: u8 = 10;
const RELIED: u8 = 11;
const SETTLED: u8 = 12;

/// The detail of a record that stores descriptors.
const fn how(visibility: Visibility) -> u8 {
    match visibility {
        Visibility::Private => 0,
        Visibility::Live => 1,
        Visibility::Publish => 2,
        Visibility::Exchange => 3,
    }
}

/// In the detail of an update: valid entries were changed.
const OF_VALID: u8 = 1 << 2;
/// In the detail of an update: hidden entries were changed.
const OF_HIDDEN: u8 = 1 << 3;

/// In the detail of an update: which entries were changed.
const fn of(bits: u64) -> u8 {
    let valid = bits & Descriptor::VALID != 0;
    let hidden = bits & Descriptor::HIDDEN != 0;
    (valid as u8 * OF_VALID) | (hidden as u8 * OF_HIDDEN)
}

/// The other way.
const fn entries(of: u8) -> u64 {
    let valid = (of & OF_VALID != 0) as u64 * Descriptor::VALID;
    let hidden = (of & OF_HIDDEN != 0) as u64 * Descriptor::HIDDEN;
    valid | hidden
}

/// The other way round than [`how`].
const fn visibility(detail: u8) -> Option<Visibility> {
    match detail {
        0 => Some(Visibility::Private),
        1 => Some(Visibility::Live),
        2 => Some(Visibility::Publish),
        3 => Some(Visibility::Exchange),
        _ => None,
    }
}

impl Record {
    /// Encodes.
    #[must_use]
    pub const fn new(cpu: u16, event: Event) -> Self {
        let (kind, detail, more, words) = match event {
            Event::Store {
                address,
                count,
                descriptor,
                step,
                visibility,
            } => {
                let words = [address.0, descriptor.0, step];
                (STORE, how(visibility), count, words)
            }
            Event::Update {
                address,
                count,
                change,
                visibility,
            } => {
                let words = [address.0, change.clear, change.set];
                (UPDATE, how(visibility) | of(change.of), count, words)
            }
            Event::Obtained { start, bytes } => (OBTAINED, 0, 0, [start.0, bytes, 0]),
            Event::Freed { start, bytes } => (FREED, 0, 0, [start.0, bytes, 0]),
            Event::Barrier(Barrier { kind, option }) => (DSB + kind as u8, option, 0, [0; 3]),
            Event::System(system, value) => (SYSTEM, 0, system.0 as u32, [value, 0, 0]),
            Event::Lines {
                instruction,
                start,
                bytes,
            } => (LINES, 0, instruction.0 as u32, [start, bytes, 0]),
            Event::Data { start, bytes } => (DATA, 0, 0, [start.0, bytes, 0]),
            Event::Relied { start, bytes } => (RELIED, 0, 0, [start, bytes, 0]),
            Event::Settled => (SETTLED, 0, 0, [0; 3]),
        };
        let first = kind as u64 | (detail as u64) << 8 | (cpu as u64) << 16 | (more as u64) << 32;
        let [a, b, c] = words;
        Self([first, a, b, c])
    }

    /// Decodes: the CPU and the event.
    ///
    /// # Errors
    ///
    /// When the words are no record.
    pub const fn event(&self) -> Result<(u16, Event), RecordError> {
        let [first, a, b, c] = self.0;
        let detail = (first >> 8) as u8;
        let more = (first >> 32) as u32;
        let start = PhysicalAddress(a);
        let event = match first as u8 {
            STORE | UPDATE => {
                let is_store = first as u8 == STORE;
                let of = if is_store {
                    0
                } else {
                    detail & (OF_VALID | OF_HIDDEN)
                };
                let Some(visibility) = visibility(detail & !of) else {
                    return Err(RecordError::Detail(detail));
                };
                let (address, count) = (start, more);
                if is_store {
                    Event::Store {
                        address,
                        count,
                        descriptor: Descriptor(b),
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
            RELIED => Event::Relied { start: a, bytes: b },
            SETTLED => Event::Settled,
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
        let start = PhysicalAddress(0x000f_ffff_ffff_fff8);
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
            Event::Relied {
                start: u64::MAX,
                bytes: 1,
            },
            Event::Settled,
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
        ] {
            events.push(Event::Store {
                address: start,
                count: u32::MAX,
                descriptor: Descriptor(u64::MAX),
                step: 1 << 63,
                visibility,
            });
        }
        for of in [Descriptor::VALID, Descriptor::HIDDEN, BitChange::LEAVES] {
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
                assert_eq!(Record::new(cpu, event).event(), Ok((cpu, event)));
            }
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        assert_eq!(Record([0; 4]).event(), Err(RecordError::Kind(0)));
        assert_eq!(Record([13; 4]).event(), Err(RecordError::Kind(13)));
        for (kind, detail) in [
            (STORE, 4),
            (STORE, 5),
            (UPDATE, 16),
            (UPDATE, 35),
            (DSB, 16),
            (DMB, 255),
        ] {
            let first = u64::from(kind) | u64::from(detail) << 8;
            assert_eq!(
                Record([first, 0, 0, 0]).event(),
                Err(RecordError::Detail(detail))
            );
        }
    }
}
