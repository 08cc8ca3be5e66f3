//! Memory that programs hand over to the next kernel: the record that describes it, and the checks of one that arrives.
//!
//! The kernels before and after may have different page sizes, so the memory consists of runs of the largest page,
//! from the first byte on: every size maps them where they are, and nothing is moved when a kernel leaves. The record
//! lies in such a page too. Its stamp has the version, the length and a checksum.
//!
//! The device tree names the record and all runs ([`PROPERTY`]), and reserves them, so a kernel that does not know the
//! property keeps off them. The record is another kernel's, and is not trusted: it must describe the runs of the tree
//! and nothing else.

use arrayvec::ArrayVec;
use core::fmt;
use granule::arch::PageSize;
use granule_boot::stamp::{self, Stamp, StampError, StampKind, Units};
use granule_boot::tree::Tree;
use granule_kexec::PhysRange;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::devicetree::child;

/// The property of `/chosen`: pairs of address and length, of the record and of each run, in 64 bits.
pub const PROPERTY: &str = "granule,kept-memory";

/// The unit of runs, and their alignment.
pub const UNIT: u64 = PageSize::MAX.bytes();
/// The most objects that are handed over.
pub const MOST_OBJECTS: usize = 16;
/// The most runs of an object.
pub const MOST_RUNS: usize = 4;
/// The most bytes of a name.
pub const MOST_NAME: usize = 31;

/// Version 1; another layout has another kind.
const KIND: StampKind = *b"gr-kept1";

/// The most bytes of a record.
pub const RECORD_BYTES: usize = stamp::BYTES + MOST_OBJECTS * size_of::<Entry>();

/// The record and the runs that a tree names.
pub type Named = ArrayVec<PhysRange, { 1 + MOST_OBJECTS * MOST_RUNS }>;

/// An object that is handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptObject {
    /// The name, of letters, digits, `.`, `_` and `-`.
    pub name: ArrayVec<u8, MOST_NAME>,
    /// Bytes of the content.
    pub bytes: u64,
    /// The `granule_kexec::Digest` of the content when it was written.
    pub digest: u64,
    /// The memory, in order: multiples of [`UNIT`], together the content rounded up.
    pub runs: ArrayVec<PhysRange, MOST_RUNS>,
}

/// An object, as the record has it.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
struct Entry {
    /// Ends with a NUL at least.
    name: [u8; MOST_NAME + 1],
    bytes: u64,
    digest: u64,
    /// Start and length; no run has length 0.
    runs: [[u64; 2]; MOST_RUNS],
}

/// Why a record is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepError {
    /// It is torn, or another kind of data.
    Stamp(StampError),
    /// It is not a list of objects, or has too many.
    Length(u64),
    /// The object of this number has a name that no program can give, or that another one has.
    Name(usize),
    /// The runs of the object of this number are not those of the tree, or not as long as its content.
    Runs(usize),
    /// The tree has further runs.
    Surplus,
}

impl fmt::Display for KeepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stamp(error) => error.fmt(f),
            Self::Length(bytes) => write!(f, "{bytes} bytes are not 1 to {MOST_OBJECTS} objects"),
            Self::Name(number) => write!(f, "the name of object {number} is used, or none"),
            Self::Runs(number) => {
                write!(
                    f,
                    "the memory of object {number} is not what the device tree names"
                )
            }
            Self::Surplus => f.write_str("the device tree names memory that no object has"),
        }
    }
}

/// Whether programs can give that name.
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (1..=MOST_NAME).contains(&name.len()) && name.iter().all(is_letter) && !name.starts_with(b".")
}

/// The memory that the device tree names, the record first; `None` without the property, or if it is not whole units.
#[must_use]
pub fn named(tree: &[u8]) -> Option<Named> {
    let value = child(&Tree::new(tree).ok()?, b"chosen")?.property(PROPERTY.as_bytes())?;
    let (pairs, []) = value.as_chunks::<16>() else {
        return None;
    };
    let mut named = Named::new();
    for pair in pairs {
        let (start, bytes) = pair.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).ok();
        let range = PhysRange::new(word(start)?, word(bytes)?);
        let is_whole = range.start.is_multiple_of(UNIT) && range.bytes.is_multiple_of(UNIT);
        named.try_push(range).ok()?;
        range.end().filter(|_| is_whole && range.bytes > 0)?;
    }
    (!named.is_empty()).then_some(named)
}

/// Writes the record of `objects`. Returns its bytes; `None` if it does not fit.
#[must_use]
pub fn write(into: &mut [u8], running: PageSize, objects: &[KeptObject]) -> Option<usize> {
    let bytes = stamp::BYTES + objects.len() * size_of::<Entry>();
    let (head, data) = into.get_mut(..bytes)?.split_at_mut(stamp::BYTES);
    for (object, to) in objects
        .iter()
        .zip(data.chunks_exact_mut(size_of::<Entry>()))
    {
        let mut entry = Entry {
            name: [0; MOST_NAME + 1],
            bytes: object.bytes,
            digest: object.digest,
            runs: [[0; 2]; MOST_RUNS],
        };
        for (to, from) in entry.name.iter_mut().zip(&object.name) {
            *to = *from;
        }
        for (to, run) in entry.runs.iter_mut().zip(&object.runs) {
            *to = [run.start, run.bytes];
        }
        to.copy_from_slice(entry.as_bytes());
    }
    head.copy_from_slice(&Stamp::new(KIND, Units::Bytes, running, data).to_bytes());
    Some(bytes)
}

/// Reads a record. `runs` are those that the tree names, in order.
///
/// # Errors
///
/// Fails if the record is torn, or does not describe these runs.
pub fn read(
    record: &[u8],
    mut runs: &[PhysRange],
) -> Result<ArrayVec<KeptObject, MOST_OBJECTS>, KeepError> {
    let (_, data) = Stamp::open(record, KIND).map_err(KeepError::Stamp)?;
    let length = KeepError::Length(data.len() as u64);
    let mut objects = ArrayVec::<KeptObject, MOST_OBJECTS>::new();
    let (entries, rest) = data.as_chunks::<{ size_of::<Entry>() }>();
    if entries.is_empty() || !rest.is_empty() {
        return Err(length);
    }
    for (number, entry) in entries.iter().enumerate() {
        let entry: Entry = zerocopy::transmute!(*entry);
        let used = entry.name.iter().position(|byte| *byte == 0).unwrap_or(0);
        let name = entry.name.get(..used).unwrap_or_default();
        if !is_name(name) || objects.iter().any(|other| other.name.as_slice() == name) {
            return Err(KeepError::Name(number));
        }
        let mut object = KeptObject {
            bytes: entry.bytes,
            digest: entry.digest,
            ..KeptObject::default()
        };
        object.name.extend(name.iter().copied());
        let mut room = 0;
        for [start, bytes] in entry.runs.into_iter().take_while(|[_, bytes]| *bytes > 0) {
            let run = PhysRange::new(start, bytes);
            let Some((first, rest)) = runs.split_first().filter(|(first, _)| **first == run) else {
                return Err(KeepError::Runs(number));
            };
            runs = rest;
            room += first.bytes;
            object.runs.extend([run]);
        }
        if entry.bytes == 0 || entry.bytes.checked_next_multiple_of(UNIT) != Some(room) {
            return Err(KeepError::Runs(number));
        }
        objects.try_push(object).map_err(|_| length)?;
    }
    if runs.is_empty() {
        Ok(objects)
    } else {
        Err(KeepError::Surplus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made_trees::{self, node};
    use proptest::prelude::*;

    fn object(name: &str, bytes: u64, runs: &[(u64, u64)]) -> KeptObject {
        KeptObject {
            name: name.bytes().collect(),
            bytes,
            digest: bytes * 3,
            runs: runs
                .iter()
                .map(|run| PhysRange::new(run.0, run.1))
                .collect(),
        }
    }

    fn objects() -> Vec<KeptObject> {
        vec![
            object(
                "disk-0.img",
                0x2_0001,
                &[(0x4000_0000, 0x2_0000), (0x5000_0000, 0x1_0000)],
            ),
            object("log", 1, &[(0x6000_0000, 0x1_0000)]),
        ]
    }

    fn runs(objects: &[KeptObject]) -> Vec<PhysRange> {
        objects
            .iter()
            .flat_map(|object| object.runs.clone())
            .collect()
    }

    fn record(objects: &[KeptObject]) -> Vec<u8> {
        let mut record = vec![0; RECORD_BYTES];
        let bytes = write(&mut record, PageSize::K16, objects).unwrap();
        record.truncate(bytes);
        record
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        let objects = objects();
        let read = read(&record(&objects), &runs(&objects)).unwrap();
        assert_eq!(read.as_slice(), objects);
        assert!(write(&mut [0; 100], PageSize::K4, &objects).is_none());
    }

    #[test]
    fn a_record_of_other_memory_or_names_is_refused() {
        let good = runs(&objects());
        let edits: [(KeepError, fn(&mut Vec<KeptObject>)); 8] = [
            (KeepError::Length(0), |all| all.clear()),
            (KeepError::Name(1), |all| all[1].name = all[0].name.clone()),
            (KeepError::Name(0), |all| all[0].name.clear()),
            (KeepError::Name(0), |all| all[0].name[4] = b'/'),
            (KeepError::Runs(0), |all| all[0].bytes += 0x1_0000),
            (KeepError::Runs(1), |all| all[1].bytes = 0),
            (KeepError::Runs(1), |all| all[1].runs[0].start += UNIT),
            (KeepError::Surplus, |all| drop(all.pop())),
        ];
        for (expected, edit) in edits {
            let mut all = objects();
            edit(&mut all);
            assert_eq!(read(&record(&all), &good), Err(expected));
        }
        let swapped: Vec<_> = good.iter().rev().copied().collect();
        assert_eq!(read(&record(&objects()), &swapped), Err(KeepError::Runs(0)));
    }

    #[test]
    fn the_tree_names_whole_units() {
        let tree = |words: &[u64]| {
            let value: Vec<_> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let chosen = node("chosen", &[(PROPERTY, &value)], []);
            named(&made_trees::tree(node("", &[], [chosen]), &[]))
        };
        let all = [0x4000_0000, UNIT, 0x5000_0000, 3 * UNIT];
        let expected = [
            PhysRange::new(all[0], all[1]),
            PhysRange::new(all[2], all[3]),
        ];
        assert_eq!(tree(&all).unwrap().as_slice(), expected);
        for wrong in [
            &[][..],
            &all[..3],
            &[1, UNIT],
            &[UNIT, 1],
            &[UNIT, 0],
            &[!0 << 16, UNIT << 40],
        ] {
            assert_eq!(tree(wrong), None, "{wrong:x?}");
        }
        assert_eq!(tree(&[UNIT; 2 * 66]), None);
    }

    proptest! {
        /// A torn record is never taken for another one.
        #[test]
        fn a_changed_byte_is_noticed(at in any::<prop::sample::Index>(), change in 1u8..) {
            let objects = objects();
            let mut record = record(&objects);
            let at = at.index(record.len());
            record[at] ^= change;
            prop_assert!(read(&record, &runs(&objects)).is_err());
        }
    }
}
