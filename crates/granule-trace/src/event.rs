//! The events: what a CPU does to its own translation, and to what relies on it.

use super::system::System;

/// A barrier instruction without its option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum BarrierKind {
    /// Waits until earlier operations are complete.
    Dsb,
    /// Orders earlier accesses before later ones.
    Dmb,
    /// Later instructions are fetched and translated again.
    Isb,
}

/// A barrier instruction with its option.
///
/// This is a struct, not an enum with an option inside. [`Event`] would absorb the cases of such an
/// enum, and the compiler turns a choice between so many cases into a jump through a table, which
/// code that runs with the MMU off must not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Barrier {
    /// The instruction.
    pub kind: BarrierKind,
    /// CRm of the instruction: 15 for SY, 11 for ISH, 7 for NSH; one less for stores only.
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
    /// DSB ST.
    pub const DSB_ST: Self = Self::dsb(0b1110);
    /// DMB SY.
    pub const DMB_SY: Self = Self::dmb(0b1111);
    /// DMB ST.
    pub const DMB_ST: Self = Self::dmb(0b1110);
    /// DMB ISH.
    pub const DMB_ISH: Self = Self::dmb(0b1011);
    /// DMB ISHST.
    pub const DMB_ISHST: Self = Self::dmb(0b1010);
    /// ISB.
    pub const ISB: Self = Self {
        kind: BarrierKind::Isb,
        option: 0b1111,
    };

    /// Every barrier with a constant here.
    pub const NAMED: [Self; 11] = [
        Self::DSB_SY,
        Self::DSB_ISH,
        Self::DSB_ISHST,
        Self::DSB_NSHST,
        Self::DSB_NSH,
        Self::DSB_ST,
        Self::DMB_SY,
        Self::DMB_ST,
        Self::DMB_ISH,
        Self::DMB_ISHST,
        Self::ISB,
    ];

    const fn dsb(option: u8) -> Self {
        let kind = BarrierKind::Dsb;
        Self { kind, option }
    }

    const fn dmb(option: u8) -> Self {
        let kind = BarrierKind::Dmb;
        Self { kind, option }
    }
}

/// The way in which walkers see a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Visibility {
    /// The table is not linked yet, so no walker can see it.
    Private,
    /// Walkers may read the entry at any time, so it is stored whole.
    Live,
    /// As [`Live`](Self::Live), by a store-release: a walker that sees this store sees every
    /// earlier store.
    Publish,
    /// As [`Live`](Self::Live), in one atomic step with a load of the old entry.
    Exchange,
    /// Stored some time ago, when this was not yet a table, and visible to all walkers by now: recorded
    /// late, by an observer that could not foresee that this would become a table.
    Earlier,
}

/// A change of some bits of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitChange {
    /// The change applies to an entry if any of these bits is set in it: [`VALID`](Self::VALID),
    /// [`PRESENT_INVALID`](Self::PRESENT_INVALID), or both.
    pub of: u64,
    /// The bits to clear, before any bit is set.
    pub clear: u64,
    /// The bits to set afterwards.
    pub set: u64,
}

impl BitChange {
    /// The bit of a descriptor that makes it valid.
    pub const VALID: u64 = 1 << 0;
    /// The software bit of a descriptor that is invalid for a while and keeps its other bits.
    pub const PRESENT_INVALID: u64 = 1 << 63;
    /// Both bits.
    pub const LEAVES: u64 = Self::VALID | Self::PRESENT_INVALID;
}

/// A few words of text: printable ASCII, filled up with NULs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text([u8; Self::LONGEST]);

impl Text {
    /// The most bytes of a text.
    pub const LONGEST: usize = 24;

    /// As much of a text as fits. A character that cannot be printed becomes a question mark,
    /// because the text may come from elsewhere and reach a terminal.
    #[must_use]
    pub const fn new(text: &[u8]) -> Self {
        let mut kept = [0; Self::LONGEST];
        let mut at = 0;
        while at < Self::LONGEST && at < text.len() {
            let byte = text[at];
            kept[at] = match byte {
                0 => break,
                b' '..=b'~' => byte,
                _ => b'?',
            };
            at += 1;
        }
        Self(kept)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let text = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        // All bytes are ASCII.
        core::str::from_utf8(text).unwrap_or_default()
    }

    pub(crate) const fn encode(self) -> [u64; 3] {
        let [a, b, c, d, e, f, g, h, rest @ ..] = self.0;
        let [i, j, k, l, m, n, o, p, rest @ ..] = rest;
        [
            u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            u64::from_le_bytes([i, j, k, l, m, n, o, p]),
            u64::from_le_bytes(rest),
        ]
    }

    pub(crate) const fn decode(words: [u64; 3]) -> Self {
        let mut text = [0; Self::LONGEST];
        let mut at = 0;
        while at < Self::LONGEST {
            text[at] = words[at / 8].to_le_bytes()[at % 8];
            at += 1;
        }
        Self::new(&text)
    }
}

impl core::fmt::Debug for Text {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// `count` descriptors were stored from `address` on: `descriptor`, `descriptor + step` and so
    /// on.
    Store {
        /// Physical address of the first entry.
        address: u64,
        /// The number of entries.
        count: u32,
        /// The first descriptor.
        descriptor: u64,
        /// The number added, with wrapping, for each next entry.
        step: u64,
        /// The way in which walkers see the stores.
        visibility: Visibility,
    },
    /// Bits were changed in the entries to which the change applies, among `count` descriptors from
    /// `address` on.
    Update {
        /// Physical address of the first entry.
        address: u64,
        /// The number of entries.
        count: u32,
        /// The change.
        change: BitChange,
        /// The way in which walkers see the stores.
        visibility: Visibility,
    },
    /// Memory was obtained for tables.
    Obtained {
        /// Physical address of the first byte.
        start: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// Table memory was freed.
    Freed {
        /// Physical address of the first byte.
        start: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// From here on the CPU uses a range of virtual addresses as the tables map it.
    AssumeVisible {
        /// The first address.
        start: u64,
        /// The number of bytes.
        bytes: u64,
        /// The address space: programs with this ASID use the addresses, on any CPU. `None`: the
        /// CPU does, in the address space that it is in.
        asid: Option<u16>,
    },
    /// A descriptor was loaded, which hardware may have changed since it was stored: the access
    /// flag and the dirty state (TCR.HA, TCR.HD).
    Found {
        /// Physical address of the entry.
        address: u64,
        /// The descriptor there.
        descriptor: u64,
    },
    /// From here on the CPU uses every translation in the tables.
    Settled,
    /// A barrier.
    Barrier(Barrier),
    /// A register was written, or an instruction with at most one operand executed.
    System(System, u64),
    /// An instruction was executed on every cache line of a range of physical addresses.
    Lines {
        /// The instruction.
        instruction: System,
        /// The first address.
        start: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// Bytes other than descriptors were stored, and an observer that bypasses the caches reads
    /// them; or the store bypassed the caches and the bytes are read through them.
    Data {
        /// The physical address of the first byte.
        start: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// As [`Data`](Self::Data), but the bytes are instructions.
    Code {
        /// The physical address of the first byte.
        start: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// The CPU was switched on or reset. Every CPU starts in this state, so the event is needed
    /// only for a CPU that comes back.
    Reset,
    /// The next events of the CPU come from the instruction at this virtual address.
    At(u64),
    /// Memory that a mapping led to before is taken for something else: it is stored to for the
    /// first time since that mapping was removed.
    Reused {
        /// The physical address of the first byte.
        start: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// The CPU did something that the trace has no event for: the trace is not complete.
    Missing(Text),
    /// The CPU goes on at EL0, by the return from an exception: it synchronises its context, and the
    /// program there relies on its tables.
    User,
}

impl Event {
    /// A [`Store`](Self::Store) of one descriptor into a live table.
    #[must_use]
    pub const fn store(address: u64, descriptor: u64) -> Self {
        Self::fill(address, 1, descriptor, 0)
    }

    /// A [`Store`](Self::Store) of several descriptors into a live table.
    #[must_use]
    pub const fn fill(address: u64, count: u32, descriptor: u64, step: u64) -> Self {
        let visibility = Visibility::Live;
        Self::Store {
            address,
            count,
            descriptor,
            step,
            visibility,
        }
    }

    /// [`Found`](Self::Found).
    #[must_use]
    pub const fn found(address: u64, descriptor: u64) -> Self {
        Self::Found {
            address,
            descriptor,
        }
    }

    /// [`Lines`](Self::Lines).
    #[must_use]
    pub const fn lines(instruction: System, start: u64, bytes: u64) -> Self {
        Self::Lines {
            instruction,
            start,
            bytes,
        }
    }

    /// [`AssumeVisible`](Self::AssumeVisible) in the CPU's own address space.
    #[must_use]
    pub const fn assume_visible(start: u64, bytes: u64) -> Self {
        let asid = None;
        Self::AssumeVisible { start, bytes, asid }
    }

    /// [`Obtained`](Self::Obtained).
    #[must_use]
    pub const fn obtained(start: u64, bytes: u64) -> Self {
        Self::Obtained { start, bytes }
    }

    /// [`Freed`](Self::Freed).
    #[must_use]
    pub const fn freed(start: u64, bytes: u64) -> Self {
        Self::Freed { start, bytes }
    }

    /// [`Reused`](Self::Reused).
    #[must_use]
    pub const fn reused(start: u64, bytes: u64) -> Self {
        Self::Reused { start, bytes }
    }

    /// [`Data`](Self::Data).
    #[must_use]
    pub const fn data(start: u64, bytes: u64) -> Self {
        Self::Data { start, bytes }
    }

    /// [`Code`](Self::Code).
    #[must_use]
    pub const fn code(start: u64, bytes: u64) -> Self {
        Self::Code { start, bytes }
    }
}
