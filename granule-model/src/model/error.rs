//! Events that cannot have happened, or that nobody can check.

use granule_trace::Event;
use std::fmt;

/// An event that cannot have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventError {
    /// There is no such CPU.
    NoSuchCpu {
        /// The event's.
        cpu: u32,
        /// How many there are.
        cpus: u32,
    },
    /// An event that the model does not know: a register, barrier or instruction that it has no
    /// rules for.
    Unknown {
        /// The event.
        event: Event,
    },
    /// A descriptor's address is not a multiple of 8.
    Misaligned {
        /// The address.
        address: u64,
    },
    /// Addresses beyond 52 bits.
    OutsideMemory {
        /// The first address.
        address: u64,
        /// The bytes from there.
        bytes: u64,
    },
    /// More descriptors in one event than a table has.
    TooManyDescriptors {
        /// How many.
        count: u32,
    },
    /// Descriptors in more pages than the model takes.
    TooMuchMemory {
        /// The first page too many.
        address: u64,
    },
    /// More TLBIs, or cache maintenance, than the model takes without a DSB.
    TooManyPending {
        /// How many.
        pending: u64,
    },
    /// The event concerns more entries than the model goes through: tables that are shared
    /// count as often as there are ways to them. The model is not as it was, and of no more use.
    TooManyEntries {
        /// Entries and ways looked at.
        visits: u64,
    },
}

/// Descriptors of one event at most: those of eight of the largest tables, of 64 KiB.
pub(super) const MOST_DESCRIPTORS: u32 = 8 * 8192;
/// Pages of 4 KiB that descriptors were stored in, at most: 4 GiB of tables.
pub(super) const MOST_PAGES: usize = 1 << 20;
/// TLBIs, and lines of cache maintenance, that wait for one DSB at most.
pub(super) const MOST_PENDING: usize = 1 << 20;
impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoSuchCpu { cpu, cpus } => {
                write!(f, "CPU {cpu} does not exist, there are {cpus}")
            }
            Self::Unknown { event } => write!(f, "{event:x?} is nothing that the model knows"),
            Self::Misaligned { address } => {
                write!(
                    f,
                    "a descriptor at {address:#x}, which is not a multiple of 8"
                )
            }
            Self::OutsideMemory { address, bytes } => {
                write!(f, "{bytes:#x} bytes from {address:#x} reach beyond 52 bits")
            }
            Self::TooManyDescriptors { count } => write!(
                f,
                "{count} descriptors in one event, expected at most {MOST_DESCRIPTORS}, \
                 as in eight tables of 64 KiB: write a line for each table"
            ),
            Self::TooMuchMemory { address } => write!(
                f,
                "descriptors at {address:#x}, and in {MOST_PAGES} other pages before: \
                 more tables than can be checked"
            ),
            Self::TooManyPending { pending } => write!(
                f,
                "{pending} TLBIs and cache operations wait for a DSB, more than can be checked: \
                 a DSB is missing, or not in the trace"
            ),
            Self::TooManyEntries { visits } => write!(
                f,
                "{visits} entries to look at, more than can be checked: \
                 tables share tables in too many ways"
            ),
        }
    }
}

impl std::error::Error for EventError {}
