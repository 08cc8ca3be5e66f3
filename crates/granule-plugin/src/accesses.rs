//! The stream of a system's accesses to memory, page by page, for the TLB models of
//! `granule bench tlb`.
//!
//! [`Collector`] makes it in QEMU, [`Reader`] reads it. It begins with the first instruction of a
//! program at EL0, and contains the fetches, loads and stores of EL0 and EL1, the changes of ASID
//! and the TLBIs.
//!
//! An access to one of the last [`KEPT`] pages of its kind is not recorded: it hits in every TLB
//! that has as many entries and replaces the least recently used one. Such accesses change only the
//! order of these pages, which the next record contains. So time and size of a stream depend on how
//! often a program accesses another page, and the difference is invisible to every TLB model.
//!
//! The stream is for machines of one CPU. A test compares the counts with those that all accesses give. DC
//! ZVA stores without a callback, and is recorded from its register. CPY and SET are not followed; the stream
//! records that they ran. A record has the bits of the guest's own leaf, from a walk of its tables in RAM.
//! The upper half is taken to be global.

use crate::track::{Memory, PAGE_SHIFT, Translation};
use granule_trace::System;
use std::io::{self, Read};

/// The number of pages of each kind that are kept.
pub const KEPT: usize = 4;
/// The bytes of a record: three words.
pub const BYTES: usize = 24;

const MAGIC: u64 = u64::from_le_bytes(*b"GRNLACCS");
const VERSION: u64 = 1;

/// The kinds of records, in the lowest byte.
const BEGIN: u8 = 1;
const ACCESS: u8 = 2;
const ASID: u8 = 3;
const TLBI: u8 = 4;
const PASS: u8 = 5;
const END: u8 = 6;

/// The most instructions of one record, so that a loop within few pages still emits records.
const MOST_INSTRUCTIONS: u32 = 1 << 20;

/// The kind of an access, which selects the first-level TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Fetching instructions.
    Fetch,
    /// Loading and storing.
    Data,
}

/// The part of the address space that a page is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// The lower half.
    Program,
    /// The lower part of the upper half, where arm64 kernels have their linear map.
    Linear,
    /// The rest of the upper half.
    Kernel,
}

/// A page of 4 KiB that is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The virtual address of its first byte.
    pub address: u64,
    /// The part of the address space.
    pub region: Region,
    /// The address bits that its leaf, or contiguous group, leaves untranslated in the guest's own
    /// tables; 0 if these could not be read.
    pub leaf_bits: u8,
}

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A program runs for the first time; with the bits of the kernel's page size.
    Begin(u8),
    /// An access to another page.
    Access(AccessKind, Page),
    /// Another ASID is in force.
    Asid(u16),
    /// A TLBI and its operand.
    Tlbi(System, u64),
    /// Only instructions, with no other event.
    Pass,
    /// The machine ended.
    End {
        /// Whether CPY or SET executed, whose accesses are not seen.
        unseen: bool,
    },
}

/// A record: an event, and the progress since the previous record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRecord {
    /// Instructions since the previous record.
    pub instructions: u32,
    /// The position of each kept page in the order after the previous record: of fetches, and of
    /// data.
    pub order: [[u8; KEPT]; 2],
    /// The event.
    pub what: What,
}

/// The unchanged order.
pub const SAME: [u8; KEPT] = [0, 1, 2, 3];

fn pack(order: [u8; KEPT]) -> u64 {
    order
        .iter()
        .rev()
        .fold(0, |bits, at| bits << 2 | u64::from(*at))
}

fn unpack(bits: u64) -> [u8; KEPT] {
    std::array::from_fn(|at| (bits >> (2 * at) & 3) as u8)
}

impl AccessRecord {
    /// Encodes the record.
    #[must_use]
    pub fn words(&self) -> [u64; 3] {
        let (kind, detail, a, b) = match self.what {
            What::Begin(granule) => (BEGIN, granule, 0, 0),
            What::Access(kind, page) => {
                let detail = page.leaf_bits & 63 | u8::from(kind == AccessKind::Data) << 6;
                (ACCESS, detail, page.address, page.region as u64)
            }
            What::Asid(asid) => (ASID, 0, asid.into(), 0),
            What::Tlbi(op, operand) => (TLBI, 0, op.0.into(), operand),
            What::Pass => (PASS, 0, 0, 0),
            What::End { unseen } => (END, u8::from(unseen), 0, 0),
        };
        let first = u64::from(kind)
            | u64::from(detail) << 8
            | pack(self.order[0]) << 16
            | pack(self.order[1]) << 24
            | u64::from(self.instructions) << 32;
        [first, a, b]
    }

    /// Decodes a record, or returns `None` if the words are not one.
    #[must_use]
    pub fn new([first, a, b]: [u64; 3]) -> Option<Self> {
        let detail = (first >> 8) as u8;
        let what = match first as u8 {
            BEGIN => What::Begin(detail),
            ACCESS => {
                let kind = if detail >> 6 & 1 == 0 {
                    AccessKind::Fetch
                } else {
                    AccessKind::Data
                };
                let region = match b {
                    0 => Region::Program,
                    1 => Region::Linear,
                    2 => Region::Kernel,
                    _ => return None,
                };
                let page = Page {
                    address: a,
                    region,
                    leaf_bits: detail & 63,
                };
                What::Access(kind, page)
            }
            ASID => What::Asid(a as u16),
            TLBI => What::Tlbi(System(a as u16), b),
            PASS => What::Pass,
            END => What::End {
                unseen: detail != 0,
            },
            _ => return None,
        };
        let order = [unpack(first >> 16), unpack(first >> 24)];
        // An order names each place once.
        let is_order = |order: &[u8; KEPT]| (0..KEPT as u8).all(|at| order.contains(&at));
        order.iter().all(is_order).then_some(Self {
            instructions: (first >> 32) as u32,
            order,
            what,
        })
    }
}

/// The last pages of one kind, the most recent first.
#[derive(Clone, Copy, Debug)]
struct Recent {
    /// The page numbers; all ones where there is none.
    pages: [u64; KEPT],
    /// The position of each in the last recorded order.
    order: [u8; KEPT],
}

impl Recent {
    const NONE: Self = Self {
        pages: [u64::MAX; KEPT],
        order: SAME,
    };

    /// Makes a kept page the most recent one. Returns whether the page is kept.
    fn access(&mut self, page: u64) -> bool {
        let Some(at) = self.pages.iter().position(|kept| *kept == page) else {
            return false;
        };
        self.pages[..=at].rotate_right(1);
        self.order[..=at].rotate_right(1);
        true
    }

    /// Keeps a page in place of the oldest.
    fn keep(&mut self, page: u64) {
        self.pages.rotate_right(1);
        self.pages[0] = page;
    }

    /// Returns the order for a record, and starts from it.
    fn take_order(&mut self) -> [u8; KEPT] {
        std::mem::replace(&mut self.order, SAME)
    }
}

/// A block of instructions that QEMU executes as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The address of its first instruction.
    pub first: u64,
    /// The address of its last instruction.
    pub last: u64,
    /// The number of instructions.
    pub instructions: u32,
    /// The exception level that it runs at.
    pub el: u8,
}

/// Makes the stream from the accesses of one CPU.
#[derive(Debug)]
pub struct Collector<M> {
    memory: M,
    translation: Translation,
    /// Of fetches, and of data.
    recent: [Recent; 2],
    begun: bool,
    instructions: u32,
    unseen: bool,
    out: Vec<u8>,
}

/// A virtual address without a tag in its highest byte.
const fn untagged(va: u64) -> u64 {
    ((va << 8) as i64 >> 8) as u64
}

impl<M: Memory> Collector<M> {
    /// Creates a collector for a CPU that was just switched on.
    pub fn new(memory: M) -> Self {
        Self {
            memory,
            translation: Translation::default(),
            recent: [Recent::NONE; 2],
            begun: false,
            instructions: 0,
            unseen: false,
            out: [MAGIC, VERSION, 0]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect(),
        }
    }

    /// Returns the bytes of the stream that are not yet written.
    pub const fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Records the execution of a block.
    pub fn block(&mut self, block: &Block) {
        if !self.begun {
            if block.el != 0 || !self.translation.is_on(0, block.first) {
                return;
            }
            self.begun = true;
            let granule = self.translation.granule(u64::MAX);
            self.emit(What::Begin(granule.unwrap_or_default()), true);
            self.emit(What::Asid(self.translation.asid()), true);
        }
        self.instructions += block.instructions;
        self.access(AccessKind::Fetch, block.el, block.first);
        self.access(AccessKind::Fetch, block.el, block.last);
        if self.instructions >= MOST_INSTRUCTIONS {
            self.emit(What::Pass, false);
        }
    }

    /// Records a load, a store or a fetch.
    pub fn access(&mut self, kind: AccessKind, el: u8, va: u64) {
        let page = untagged(va) >> PAGE_SHIFT;
        if self.recent[kind as usize].access(page) || !self.begun {
            return;
        }
        if !self.translation.is_on(el, va) {
            return;
        }
        let address = page << PAGE_SHIFT;
        let region = if address >> 63 == 0 {
            Region::Program
        } else if self.translation.is_linear(address) {
            Region::Linear
        } else {
            Region::Kernel
        };
        let leaf_bits = self.translation.leaf_bits(&self.memory, address);
        let accessed = Page {
            address,
            region,
            leaf_bits: leaf_bits.unwrap_or_default(),
        };
        self.emit(What::Access(kind, accessed), false);
        self.recent[kind as usize].keep(page);
    }

    /// Records a write of a system register.
    pub fn register(&mut self, register: System, value: u64) {
        let before = self.translation.asid();
        self.translation.set(register, value);
        let asid = self.translation.asid();
        if asid != before && self.begun {
            self.emit(What::Asid(asid), true);
        }
    }

    /// Records a TLBI.
    pub fn invalidated(&mut self, op: System, operand: u64) {
        if self.begun {
            self.emit(What::Tlbi(op, operand), true);
        }
    }

    /// Records that an instruction loads or stores without being seen.
    pub fn unseen(&mut self) {
        self.unseen |= self.begun;
    }

    /// Records the end of the machine.
    pub fn finish(&mut self) {
        let unseen = self.unseen;
        self.emit(What::End { unseen }, false);
    }

    /// Emits a record. `forget` drops all kept pages, because addresses or TLB entries change.
    fn emit(&mut self, what: What, forget: bool) {
        let record = AccessRecord {
            instructions: std::mem::take(&mut self.instructions),
            order: self.recent.each_mut().map(Recent::take_order),
            what,
        };
        if forget {
            self.recent = [Recent::NONE; 2];
        }
        let words = record.words();
        self.out
            .extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
}

/// The reason why a stream cannot be read.
#[derive(Debug)]
pub enum AccessesError {
    /// The bytes could not be read.
    Read(io::Error),
    /// The first record is not a head, or is of another version.
    Head,
    /// A record is malformed.
    Record,
}

impl std::fmt::Display for AccessesError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(error) => write!(f, "the plugin's accesses: {error}"),
            Self::Head => write!(
                f,
                "the plugin's accesses are of another version; build granule and granule-plugin \
                 together"
            ),
            Self::Record => write!(
                f,
                "the plugin's accesses: a record of an unknown kind; build granule and \
                 granule-plugin together"
            ),
        }
    }
}

impl std::error::Error for AccessesError {}

/// Reads a stream.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
}

impl<R: Read> Reader<R> {
    /// Reads the head.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn new(from: R) -> Result<Self, AccessesError> {
        let mut reader = Self { from };
        match reader.words()? {
            Some([MAGIC, VERSION, _]) => Ok(reader),
            _ => Err(AccessesError::Head),
        }
    }

    /// Reads the next record, or returns `None` at the end of the stream, with or without a
    /// [`What::End`].
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is malformed.
    pub fn next_record(&mut self) -> Result<Option<AccessRecord>, AccessesError> {
        let Some(words) = self.words()? else {
            return Ok(None);
        };
        let record = AccessRecord::new(words).ok_or(AccessesError::Record)?;
        Ok(Some(record))
    }

    fn words(&mut self) -> Result<Option<[u64; 3]>, AccessesError> {
        let mut bytes = [0; BYTES];
        match self.from.read_exact(&mut bytes) {
            Ok(()) => (),
            // A QEMU that was killed may leave half a record.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(AccessesError::Read(error)),
        }
        let mut words = [0; 3];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(Some(words))
    }
}

#[cfg(test)]
mod tests;
