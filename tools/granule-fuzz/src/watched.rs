//! Effects of a watched guest on the plugin, which is part of QEMU's process, and of the plugin's
//! stream on its reader.

use std::cell::RefCell;
use std::collections::BTreeSet;

use granule_plugin::accesses::{self, AccessKind, Block, Collector};
use granule_plugin::decode::StoreForm;
use granule_plugin::stream::{self, Reader, Seen};
use granule_plugin::track::{Marks, Memory, Origin, Store, Tracker};
use granule_tlb::replay::Replay;
use granule_trace::{Barrier, Event, System};

use crate::bytes::Bytes;

const RAM: u64 = 0x4000_0000;
const PAGES: u64 = 32;
const WORDS: usize = PAGES as usize * 512;

/// A few pages of RAM.
struct Ram<'a>(&'a RefCell<Vec<u64>>);

impl Memory for Ram<'_> {
    fn load(&self, address: u64, to: &mut [u64]) -> bool {
        let words = self.0.borrow();
        let from = address.wrapping_sub(RAM) / 8;
        let found = usize::try_from(from)
            .ok()
            .and_then(|from| words.get(from..from.checked_add(to.len())?));
        found.is_some_and(|found| {
            to.copy_from_slice(found);
            true
        })
    }
}

/// A value that may be a descriptor, a TTBR or anything.
fn value(bytes: &mut Bytes<'_>) -> u64 {
    let page = RAM + (bytes.below(PAGES as usize) as u64) * 4096;
    match bytes.below(6) {
        0 => page | 3,
        1 => page | 0x703,
        2 => page | 0x701,
        3 => page + bytes.below(512) as u64 * 8,
        4 => 0,
        _ => bytes.word(),
    }
}

/// A TCR that is likely to make sense.
fn tcr(bytes: &mut Bytes<'_>) -> u64 {
    let size = 12 + bytes.below(40) as u64;
    let granules = bytes.below(4) as u64 * (1 << 14 | 1 << 30);
    let more = bytes.byte() as u64;
    size | size << 16 | granules | (more & 1) << 59 | (more >> 1 & 7) << 32 | (more >> 4 & 3) << 39
}

/// A guest does anything: the tracker reports what it saw of tables inside RAM, each once, and every
/// record comes back from the stream.
pub(crate) fn watched_guest(bytes: &[u8]) {
    let bytes = &mut Bytes(bytes);
    let ram = RefCell::new(vec![0; WORDS]);
    let marks = Marks::new(RAM, PAGES, 2);
    let mut tracker = Tracker::new(Ram(&ram), &marks, 2);
    let mut tables = BTreeSet::new();
    let mut steps = 0;
    while !bytes.is_empty() && steps < 300 {
        steps += 1;
        let cpu = bytes.below(2) as u16;
        let by = Origin { cpu, pc: steps };
        let el = 1 + bytes.below(3) as u8;
        let address = value(bytes);
        match bytes.below(10) {
            0..=3 => {
                let word = value(bytes);
                let index = (address.wrapping_sub(RAM) / 8) as usize;
                if let Some(to) = ram.borrow_mut().get_mut(index) {
                    *to = word;
                }
                let size = [1, 4, 8, 16][bytes.below(4)];
                let form = StoreForm {
                    release: word & 4 != 0,
                    exchange: word & 8 != 0,
                };
                marks.store(cpu, address);
                tracker.store(
                    by,
                    Store {
                        address: address & !(size - 1),
                        bytes: size as u8,
                        words: (size >= 8).then_some([word, 0]),
                        form,
                    },
                );
            }
            4 | 5 => {
                let registers = System::NAMED.iter().filter(|(it, _)| it.is_register());
                let registers: Vec<_> = registers.map(|(register, _)| *register).collect();
                let register = registers[bytes.below(registers.len())];
                let value = match register {
                    System::TCR_EL1 | System::TCR_EL2 | System::TCR_EL3 => tcr(bytes),
                    System::SCTLR_EL1 | System::SCTLR_EL2 | System::SCTLR_EL3 => {
                        bytes.below(8) as u64
                    }
                    _ => value(bytes),
                };
                tracker.register(by, el, register, value);
            }
            6 => {
                let length = 1 + bytes.below(64) as u64 * 64;
                let length = length.min(4096 - address % 4096);
                tracker.will_store(by, address, length, [1, 2048][bytes.below(2)]);
            }
            7 => tracker.maintained(by, el, System::DC_CIVAC, address),
            8 => {
                tracker.invalidated(by, el, System::VMALLE1IS, 0);
                tracker.translate(cpu, el, address);
                tracker.is_program(cpu, address);
            }
            _ if bytes.below(8) == 0 => tracker.reset(by),
            _ => {
                if marks.barrier(cpu, Barrier::DSB_ISH) {
                    tracker.barrier(by, Barrier::DSB_ISH);
                }
            }
        }
        for (by, seen) in tracker.take() {
            check(by, &seen, &mut tables);
        }
    }
    tracker.finish();
    for (by, seen) in tracker.take() {
        check(by, &seen, &mut tables);
    }
}

fn check(by: Origin, seen: &Seen, tables: &mut BTreeSet<(u64, u64)>) {
    let end = RAM + PAGES * 4096;
    match *seen {
        Seen::Event(Event::Obtained { start, bytes }) => {
            assert!(start >= RAM && start + bytes <= end, "{seen:x?}");
            tables.insert((start, bytes));
        }
        Seen::Event(Event::Freed { start, bytes }) => {
            assert!(
                tables.contains(&(start, bytes)),
                "{seen:x?} was not a table"
            );
        }
        Seen::Event(Event::Store { address, count, .. }) => {
            let bytes = u64::from(count) * 8;
            let inside = |&(start, length): &(u64, u64)| {
                address >= start && address + bytes <= start + length
            };
            assert!(tables.iter().any(inside), "{seen:x?} is in no table");
        }
        _ => (),
    }
    let words = stream::encode(by.cpu, by.pc, seen);
    assert_eq!(stream::decode(words), Ok((by.cpu, by.pc, *seen)));
}

/// Any bytes after a head are records or an error.
pub(crate) fn watch_stream(bytes: &[u8]) {
    let head = stream::Head { api: 4, cpus: 1 };
    let mut all: Vec<u8> = head
        .words()
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    all.extend(bytes);
    let Ok((mut reader, read)) = Reader::new(&all[..]) else {
        panic!("a head is none");
    };
    assert_eq!(read, head);
    seen(&mut reader, bytes.len());
    // Without a head there is no stream.
    if let Ok((mut reader, head)) = Reader::new(bytes) {
        assert_eq!(&bytes[..8], b"GRNLWTCH", "{head:?}");
        seen(&mut reader, bytes.len());
    }
}

/// Reads all records.
fn seen(reader: &mut Reader<&[u8]>, bytes: usize) {
    let mut records = 0;
    while let Ok(Some((cpu, pc, seen))) = reader.next_seen() {
        records += 1;
        let again = stream::decode(stream::encode(cpu, pc, &seen));
        assert_eq!(again, Ok((cpu, pc, seen)));
    }
    assert!(records <= bytes / stream::BYTES);
}

/// The most records that go through all models, each of which a TLBI searches.
const MOST_REPLAYED: usize = 16;

/// A guest with any tables accesses anything: the plugin reports it in records, which the models accept.
pub(crate) fn accessed_guest(bytes: &[u8]) {
    let bytes = &mut Bytes(bytes);
    let ram = RefCell::new(vec![0; WORDS]);
    let mut collector = Collector::new(Ram(&ram));
    collector.register(System::SCTLR_EL1, 1);
    let mut steps = 0;
    while !bytes.is_empty() && steps < 200 {
        steps += 1;
        let el = bytes.below(4) as u8;
        match bytes.below(8) {
            0 => collector.register(System::TCR_EL1, tcr(bytes)),
            1 => collector.register(System::TTBR0_EL1, value(bytes)),
            2 => collector.register(System::TTBR1_EL1, value(bytes)),
            3 => {
                let index = bytes.below(WORDS);
                ram.borrow_mut()[index] = value(bytes);
            }
            4 => {
                let first = value(bytes);
                collector.block(&Block {
                    first,
                    last: first.wrapping_add(4 * bytes.below(100) as u64),
                    instructions: bytes.below(100) as u32,
                    el,
                });
            }
            5 => {
                let named = System::NAMED[bytes.below(System::NAMED.len())].0;
                collector.invalidated(named, bytes.word());
            }
            _ => collector.access(AccessKind::Data, el, value(bytes)),
        }
    }
    collector.finish();
    let stream = std::mem::take(collector.out());
    let (records, ended) = replayed(&stream);
    assert!(ended || records > MOST_REPLAYED);
    assert_eq!(stream.len() % accesses::BYTES, 0);
}

/// Any bytes after a head are records, which the models take, or an error.
pub(crate) fn accesses_stream(bytes: &[u8]) {
    let nothing = RefCell::new(Vec::new());
    let mut all = std::mem::take(Collector::new(Ram(&nothing)).out());
    let head = all.len();
    all.extend(bytes);
    replayed(&all);
    if accesses::Reader::new(bytes).is_ok() {
        assert_eq!(bytes.get(..head), all.get(..head));
        replayed(bytes);
    }
}

/// The records of a stream, as far as they are any, and whether one of them was the end.
fn replayed(stream: &[u8]) -> (usize, bool) {
    let Ok(mut reader) = accesses::Reader::new(stream) else {
        panic!("a head is none");
    };
    let mut replay = Replay::default();
    let mut records = 0;
    while let Ok(Some(record)) = reader.next_record() {
        records += 1;
        assert_eq!(accesses::AccessRecord::new(record.words()), Some(record));
        if records <= MOST_REPLAYED {
            replay.add(&record);
        }
    }
    let counted = replay.finish();
    for row in &counted.rows {
        assert!(row.misses.all() <= row.misses.fetch + row.misses.data);
    }
    (records, counted.ended)
}
