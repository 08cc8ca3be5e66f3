//! Errors of events: an event that no machine can produce, or that exceeds the model's bounds.

use granule_trace::Event;
use std::fmt;

/// An event that cannot have happened, or that exceeds the model's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventError {
    /// The event's CPU does not exist.
    NoSuchCpu {
        /// The CPU's number in the event.
        cpu: u32,
        /// The number of CPUs.
        cpus: u32,
    },
    /// A register, barrier or instruction that the model has no rules for.
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
        /// The number of descriptors.
        count: u32,
    },
    /// Descriptors in more pages than the model keeps.
    TooMuchMemory {
        /// The first page beyond the bound.
        address: u64,
    },
    /// More TLBIs and cache maintenance without a DSB than the model keeps.
    TooManyPending {
        /// The number that wait.
        pending: u64,
    },
    /// The event makes the model look at too many entries: a shared table counts once for each path
    /// to it. The model's state is incomplete afterwards; do not use it any more.
    TooManyEntries {
        /// Entries and paths looked at.
        visits: u64,
    },
}

/// The most descriptors of one event: eight of the largest tables, of 64 KiB.
pub(super) const MOST_DESCRIPTORS: u32 = 8 * 8192;
/// The most pages of 4 KiB that hold stored descriptors: 4 GiB of tables.
pub(super) const MOST_PAGES: usize = 1 << 20;
/// The most TLBIs, and lines of cache maintenance, that wait for one DSB.
pub(super) const MOST_PENDING: usize = 1 << 20;
impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoSuchCpu { cpu, cpus } => {
                write!(f, "CPU {cpu} does not exist, there are {cpus}")
            }
            Self::Unknown { event } => write!(f, "{event:x?} is unknown to the model"),
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
