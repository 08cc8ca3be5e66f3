//! Targets for data between the kernel and `granule`: the console record, the boot record, and the place of
//! a trace. Each side's reader is checked with the other side's output.

use crate::bytes::Bytes;
use granule::arch::PageSize;
use granule_boot::stamp::{Stamp, StampKind, Units};
use granule_cli::bootrec::{self, BYTES};
use granule_cli::result::chain::Records;
use granule_cli::result::console_record::{KEYS, KeyKind, RecordLines};
use granule_cli::trace_area::TraceArea;
use granule_cli::{BootRecord, trace};
use granule_kcore::trace::area::Area;
use granule_model::trace::{parse_line, write_event};
use granule_trace::{BufferHeader, EncodedEvent, RECORD_WORDS};

pub(crate) fn console_record(bytes: &[u8]) {
    let mut record = RecordLines::default();
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines() {
        record.line(line.strip_prefix("@granule ").unwrap_or(line));
    }
    assert!(record.faults().len() <= text.lines().count());
    several(&text);
    // Whatever lines came before, a number is read as it was written, and is not a fault.
    let mut bytes = Bytes(bytes);
    let numbers = KEYS.iter().filter(|(_, kind)| *kind == KeyKind::Integer);
    let keys: Vec<_> = numbers.map(|(key, _)| *key).collect();
    let (key, number) = (keys[bytes.below(keys.len())], bytes.word());
    let faults = record.faults().len();
    record.line(&format!("{key}={number}"));
    let read = record.get(key).and_then(serde_json::Value::as_u64);
    // An unknown key may have made the path end elsewhere; then the line is a fault and is reported.
    if record.faults().len() == faults {
        assert_eq!(read, Some(number), "{key}");
    } else {
        assert_eq!(record.faults().len(), faults + 1, "{key}");
        assert!(!record.faults()[faults].is_empty());
    }
}

/// The lines of a console on which several kernels may have printed: each line is in one record, and no
/// record continues after its end.
fn several(text: &str) {
    let mut all = Records::default();
    let mut parts: Vec<Vec<&str>> = Vec::new();
    for line in text.lines() {
        let line = line.strip_prefix("@granule ").unwrap_or(line);
        assert_eq!(all.line(line), line == "end", "{line}");
        let ended = parts.last().is_none_or(|part| part.contains(&"end"));
        if parts.is_empty() || ended && parts.len() < Records::MOST {
            parts.push(Vec::new());
        }
        let part = parts.last_mut();
        part.into_iter().for_each(|part| part.push(line));
    }
    let split: Vec<&RecordLines> = all.iter().collect();
    // One record exists even if nothing was printed.
    assert_eq!(split.len(), parts.len().max(1));
    for (record, lines) in split.iter().zip(&parts) {
        let mut alone = RecordLines::default();
        for line in lines {
            alone.line(line);
        }
        assert_eq!(record.values(), alone.values(), "{lines:?}");
        assert_eq!(record.faults(), alone.faults(), "{lines:?}");
        assert_eq!(record.has_ended(), lines.contains(&"end"));
    }
    // The record that describes the guest is one of them, and has a page size if any has.
    let sized = split.iter().any(|it| it.get("page_size").is_some());
    assert_eq!(all.ours().get("page_size").is_some(), sized);
    let said = all.count();
    assert_eq!(all.into_boots().len(), said);
}

/// Memory with data of an earlier boot, in any state.
pub(crate) fn stamp(bytes: &[u8]) {
    const KIND: StampKind = *b"fuzzing!";
    let looked_at = |bytes: &[u8], kind: StampKind| match Stamp::open(bytes, kind) {
        Ok((stamp, data)) => {
            assert_eq!(stamp.length(), data.len() as u64);
            for size in PageSize::ALL {
                let may = stamp.units() == Units::Bytes || stamp.page_size() == size;
                assert_eq!(stamp.check(size).is_ok(), may);
                if let Some(pages) = stamp.pages(stamp.length(), data.len() as u64, size) {
                    assert!(pages.start <= pages.end);
                }
            }
            true
        }
        Err(error) => {
            assert_eq!(error.to_string().lines().count(), 1);
            false
        }
    };
    // Whatever the kind of data in the stamp.
    let kind = bytes.get(16..).and_then(|kind| kind.first_chunk());
    looked_at(bytes, kind.copied().unwrap_or(KIND));
    // Stamped data is read; data that changed afterwards is not.
    let mut bytes = Bytes(bytes);
    let size = PageSize::ALL[bytes.below(PageSize::ALL.len())];
    let (flip, data) = (bytes.word(), bytes.0);
    let mut stamped = Stamp::new(KIND, Units::Pages, size, data)
        .to_bytes()
        .to_vec();
    stamped.extend(data);
    assert!(looked_at(&stamped, KIND));
    let bit = (flip % (stamped.len() as u64 * 8)) as usize;
    stamped[bit / 8] ^= 1 << (bit % 8);
    assert!(!looked_at(&stamped, KIND), "bit {bit}");
}

/// A boot record in the layout of docs/boot-record.md.
fn boot_record_of(state: u32, reason: u32, message: &[u8]) -> [u8; BYTES] {
    let mut record = [0; BYTES];
    record[..16].copy_from_slice(b"GRANULE-BOOTREC\0");
    for (at, word) in [
        (16, 1),
        (20, state),
        (24, reason),
        (28, message.len() as u32),
    ] {
        record[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    record[32..32 + message.len()].copy_from_slice(message);
    record
}

pub(crate) fn boot_record(bytes: &[u8]) {
    // A guest's memory in any state is refused, or printed as one line of plain text.
    if let Ok(found) = BootRecord::decode(bytes) {
        let message = found.message();
        assert!(
            message
                .bytes()
                .all(|byte| byte.is_ascii_graphic() || byte == b' ')
        );
        assert!(message.len() <= 224);
    }

    // A kernel's record is read with the meaning that the kernel gave it.
    let mut rest = Bytes(bytes);
    let (state, reason) = (u32::from(rest.byte() % 8), rest.word() as u32);
    let message: String = rest
        .0
        .iter()
        .map(|byte| char::from(b' ' + byte % 95))
        .collect();
    let message = &message[..message.len().min(BYTES - 32)];
    let written = boot_record_of(state, reason, message.as_bytes());
    let read = BootRecord::decode(&written);
    let Ok(read) = read else {
        panic!("{read:?}: {written:02x?}");
    };
    assert_eq!((read.reason(), read.is_parked()), (reason, state == 3));
    assert!(state <= 4 || read.progress().contains(&state.to_string()));
    if message.is_empty() {
        assert!(read.message().contains(&reason.to_string()));
    } else {
        assert_eq!(read.message(), message);
    }

    // Any damage to the record is survived, and damage to its magic number is detected.
    let (at, damage) = (rest.below(BYTES), rest.byte() | 1);
    let mut damaged = written;
    damaged[at] ^= damage;
    assert_eq!(BootRecord::decode(&damaged).is_err(), at < 20, "byte {at}");

    // The record is found in an image at every place that the format allows, and at no other.
    let before = usize::from(bytes.first().copied().unwrap_or(0));
    let mut image = vec![0; before];
    image.extend(written);
    image.extend(bytes);
    let twice = bytes.windows(16).any(|window| window == &written[..16]);
    match bootrec::find(&image) {
        Ok(Some(found)) => {
            assert_eq!((found, before % 64, twice), (before as u64, 0, false));
        }
        Ok(None) => panic!("the record at {before:#x} was not found"),
        Err(why) => assert!(before % 64 != 0 || twice, "{why}"),
    }
    if let Ok(Some(found)) = bootrec::find(bytes) {
        let record = &bytes[found as usize..];
        assert!(BootRecord::decode(record).is_ok() || record[16..20] != [1, 0, 0, 0]);
    }
}

/// A guest's memory at the place of its trace: the head, and a record.
pub(crate) fn trace_record(bytes: &[u8]) {
    let mut rest = Bytes(bytes);
    // Half of the heads are right except for the numbers.
    let right = rest.below(2) == 0;
    let mut words: [u64; BufferHeader::WORDS] = std::array::from_fn(|_| rest.word());
    if right {
        let head = BufferHeader::default();
        words[..3].copy_from_slice(&head.words()[..3]);
    }
    if let Ok(head) = BufferHeader::new(words) {
        assert!(head.records <= head.room);
        assert_eq!(BufferHeader::new(head.words()), Ok(head));
    }

    let mut words: [u64; RECORD_WORDS] = std::array::from_fn(|_| rest.word());
    if right {
        // One of the existing kinds, and a detail that some of them have.
        let (kind, detail) = (words[0] & 0xf, words[0] >> 8 & 0x0f00);
        words[0] = words[0] & !0xffff | kind | detail;
    }
    if let Ok((cpu, event)) = EncodedEvent(words).event() {
        let again = EncodedEvent::new(cpu, event).event();
        assert_eq!(again, Ok((cpu, event)), "{words:x?}");
    }
    let mut record = [0; 8 * RECORD_WORDS];
    for (to, word) in record.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    let mut line = String::new();
    if let Ok((cpu, event)) = trace::decode(&record)
        && write_event(cpu, &event, &mut line).is_ok()
        // The checker refuses addresses that no descriptor has, and ranges that wrap.
        && let Ok(Some((cpu, event))) = parse_line(&line)
    {
        let mut again = String::new();
        assert!(write_event(cpu, &event, &mut again).is_ok(), "{line}");
        assert_eq!(again, line);
    }
}

pub(crate) fn trace_area(bytes: &[u8]) {
    // `granule` looks for a trace where the kernel puts it.
    if let Ok(area) = Area::of(bytes)
        && area.is_wanted()
    {
        assert_eq!((area.start | area.bytes) & 0xffff, 0);
        assert!(area.start.checked_add(area.bytes).is_some());
        let text = String::from_utf8_lossy(bytes);
        let seen = TraceArea::of_bootargs(&text);
        assert_eq!(
            seen.map(|seen| (seen.start, seen.bytes)),
            Some((area.start, area.bytes)),
            "{text}"
        );
        // The kernel refuses a place that overlaps something else, and accepts any other.
        let (start, end) = (area.start, area.start + area.bytes);
        assert!(area.keep_off(&[(end - 1, 1)]).is_err());
        assert!(area.keep_off(&[(start, 1)]).is_err());
        assert!(
            area.keep_off(&[(end, 1), (start.wrapping_sub(1), 1)])
                .is_ok()
        );
    }

    // The kernel does what `granule` requests, or refuses with a reason, whatever other words
    // precede it on the command line.
    let mut rest = Bytes(bytes);
    let asked = TraceArea {
        start: rest.word() & !0xffff >> (rest.byte() & 1),
        bytes: u64::from(rest.byte()) << (10 + rest.below(20)),
    };
    let mut line = b"quiet ".to_vec();
    line.extend(rest.0.iter().filter(|byte| !b"\"\0-".contains(byte)));
    line.push(b' ');
    line.extend(asked.word().bytes());
    let whole = (asked.start | asked.bytes) & 0xffff == 0 && asked.bytes != 0;
    let fits = asked.bytes <= 1 << 30 && asked.start.checked_add(asked.bytes).is_some();
    match Area::of(&line) {
        Ok(area) => {
            assert!(whole && fits, "{asked:?}");
            assert_eq!((area.start, area.bytes), (asked.start, asked.bytes));
        }
        Err(why) => {
            assert!(!(whole && fits), "{asked:?}: {why:?}");
            // The boot record has room for no more.
            assert!((1..=224).contains(&why.text().len()));
        }
    }
}
