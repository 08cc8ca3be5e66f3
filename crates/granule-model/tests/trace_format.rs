//! The trace format, both ways: every event is read back as it was written, and nothing that is
//! not a trace makes the reader panic or passes for one.

#![allow(clippy::unwrap_used)]

use granule_model::trace::{ReadError, Reader, TraceHeader, parse_line, write_event};
use granule_model::{Barrier, BitChange, Event, Lacks, Policies, System, Text, Visibility};
use granule_testing::cases::config;
use proptest::prelude::*;
use proptest::sample::select;

/// The registers and instructions of a kind.
fn named(kind: fn(System) -> bool) -> impl Strategy<Value = System> {
    let all = System::NAMED.iter().map(|(system, _)| *system);
    select(all.filter(|system| kind(*system)).collect::<Vec<_>>())
}

type Stored = ((u64, u32), [u64; 2], Visibility);

fn store(((address, count), [descriptor, step], visibility): Stored) -> Event {
    Event::Store {
        address,
        count,
        descriptor,
        // The line of a single store has no step.
        step: if count == 1 { 0 } else { step },
        visibility,
    }
}

/// Any event that can be written: those whose numbers make sense together.
fn events() -> impl Strategy<Value = (u32, Event)> {
    let order = prop_oneof![Just(Visibility::Live), Just(Visibility::Publish)];
    let run = (0..1u64 << 49, 2..8193u32).prop_map(|(index, count)| (index * 8, count));
    let single = (0..1u64 << 49).prop_map(|index| (index * 8, 1_u32));
    let runs = prop_oneof![single, run.clone()];
    let range = (any::<u64>(), any::<u64>())
        .prop_map(|(address, bytes)| (address, (bytes % (u64::MAX - address).max(1)).max(1)));
    type OfRange = fn(u64, u64) -> Event;
    let of_range: [OfRange; 5] = [
        Event::data,
        Event::code,
        Event::obtained,
        Event::freed,
        Event::reused,
    ];
    let kind = prop_oneof![
        Just(Event::Reset),
        Just(Event::Settled),
        Just(Event::User),
        (named(System::is_register), any::<u64>())
            .prop_map(|(register, value)| Event::System(register, value)),
        (runs, any::<[u64; 2]>(), order.clone()).prop_map(store),
        (run, any::<[u64; 3]>(), order).prop_map(
            |((address, count), [of, clear, set], visibility)| Event::Update {
                address,
                count,
                change: BitChange { of, clear, set },
                visibility,
            }
        ),
        (select(of_range.to_vec()), range.clone())
            .prop_map(|(event, (start, bytes))| event(start, bytes)),
        select(&Barrier::NAMED[..]).prop_map(Event::Barrier),
        (named(System::is_tlbi), any::<u64>()).prop_map(|(op, operand)| {
            let operand = if op.takes_operand() { operand } else { 0 };
            Event::System(op, operand)
        }),
        (named(System::is_data_cache), range.clone())
            .prop_map(|(op, (address, bytes))| Event::lines(op, address, bytes)),
        named(System::is_instruction_cache).prop_map(|op| Event::System(op, 0)),
        (range, any::<Option<u16>>()).prop_map(|((start, bytes), asid)| Event::AssumeVisible {
            start,
            bytes,
            asid
        }),
        (0..u64::MAX / 8, any::<u64>())
            .prop_map(|(index, descriptor)| Event::found(index * 8, descriptor)),
        any::<u64>().prop_map(Event::At),
        "[ -~]{1,24}".prop_map(|text| Event::Missing(Text::new(text.as_bytes()))),
    ];
    (0..64u32, kind)
}

fn text((cpu, event): &(u32, Event)) -> String {
    let mut line = String::new();
    write_event(*cpu, event, &mut line).unwrap();
    line
}

fn header(events: u64) -> TraceHeader {
    TraceHeader {
        page_bytes: 4096,
        cpus: 64,
        bbm_level: 0,
        policies: Policies::NONE,
        lazy: None,
        lacks: Lacks::NONE,
        complete: true,
        events,
    }
}

fn read(file: &[u8]) -> Result<Vec<(u64, u32, Event)>, ReadError> {
    let mut reader = Reader::new(file)?;
    let mut events = Vec::new();
    while let Some(event) = reader.next_event()? {
        events.push(event);
    }
    Ok(events)
}

proptest! {
    #![proptest_config(config(10_000, 100))]

    #[test]
    fn events_are_read_back(event in events()) {
        let line = text(&event);
        prop_assert_eq!(parse_line(&line).unwrap(), Some(event));
        let is_tlbi = matches!(event.1, Event::System(op, _) if op.is_tlbi());
        prop_assert_eq!(line.split(' ').next() == Some("tlbi"), is_tlbi);
        prop_assert_eq!(line.contains("tlbi"), is_tlbi);
        prop_assert!(line.is_ascii() && !line.contains('\n'));
    }

    #[test]
    fn no_text_makes_the_parser_panic(line in any::<String>()) {
        if let Err(error) = parse_line(&line) {
            prop_assert!((1..=line.chars().count() + 1).contains(&error.column));
        }
    }

    #[test]
    fn damaged_lines_are_refused_or_read_as_what_they_say(
        event in events(),
        at in any::<prop::sample::Index>(),
        with in "[ a-z0-9#x\u{e9}]{0,2}",
    ) {
        let mut line = text(&event);
        let at = at.index(line.len());
        line.replace_range(at..=at, &with);
        match parse_line(&line) {
            Ok(None) => prop_assert!(line.starts_with('#')),
            // Numbers may be written in several ways, but always mean the same.
            Ok(Some(read)) => prop_assert_eq!(parse_line(&text(&read)).unwrap(), Some(read)),
            Err(error) => {
                prop_assert!((1..=line.chars().count() + 1).contains(&error.column));
                prop_assert!(!error.to_string().contains('\n'));
            }
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in any::<Vec<u8>>(), with_header in any::<bool>()) {
        let mut file = Vec::new();
        if with_header {
            file.extend(format!("{}\n", header(3)).bytes());
        }
        file.extend(&bytes);
        prop_assert!(read(&file).is_err());
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let lines = [
        "# made by hand",
        "msr cpu0 tcr_el1 0x19",
        "store cpu0 0x1000 0x3 release",
        "fill cpu0 0x1000 512 0x0 0x0 earlier",
        "tlbi cpu1 vaale1is 0x12",
        "isb cpu1",
    ];
    let file = format!("{}\n{}\n", header(5), lines.join("\n"));
    let events = read(file.as_bytes()).unwrap();
    assert_eq!(
        events.iter().map(|(line, ..)| *line).collect::<Vec<_>>(),
        [3, 4, 5, 6, 7]
    );
    for length in 0..file.len() {
        assert!(read(&file.as_bytes()[..length]).is_err(), "{length}");
    }
    let cut = read(&file.as_bytes()[..file.len() - 12]).unwrap_err();
    assert_eq!(
        cut.to_string(),
        "line 6, column 22: the file ends after 3 of 5 events: it was cut short; record it again"
    );
    let longer = format!("{file}isb cpu0\n");
    let error = read(longer.as_bytes()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 8, column 1: more than the 5 events that line 1 states"
    );
    // The recorder may have died before it counted the last one.
    let incomplete = longer.replace("complete=yes", "complete=no");
    assert_eq!(read(incomplete.as_bytes()).unwrap().len(), 6);
}

#[test]
fn errors_name_line_and_column() {
    for (line, error) in [
        ("", "column 1: expected reset, msr"),
        ("nop cpu0", "column 1: expected reset, msr"),
        (" isb cpu0", "column 1: expected "),
        ("isb", "column 4: expected cpu and a number"),
        ("isb 0", "column 5: expected cpu and a number"),
        ("isb cpu64", "column 5: CPU 64 of 64"),
        ("isb cpu0 ", "column 9: expected the end of the line"),
        (
            "msr cpu0 vbar_el1 0",
            "column 10: expected a translation register",
        ),
        (
            "store cpu0 0x1004 0",
            "column 12: expected the address of a descriptor",
        ),
        (
            "store cpu0 0x1000 0x1 relax",
            "column 23: expected release, exchange, earlier or",
        ),
        (
            "fill cpu0 0x1000 0 0 0",
            "column 18: expected a number of descriptors",
        ),
        ("fill cpu0 0xfffffffffffffff8 2 0 0", "column 30: expected "),
        ("dsb cpu0 osh", "column 10: expected ishst"),
        (
            "tlbi cpu0 vaale1is",
            "column 19: expected the register operand",
        ),
        (
            "tlbi cpu0 vmalle1is 0x0",
            "column 20: expected the end of the line",
        ),
        (
            "tlbi cpu0 vaae2is 0x0",
            "column 11: expected an invalidation's name",
        ),
        ("# no tlbi here", "column 6: expected a comment"),
        (
            "free cpu0 0x1000 0",
            "column 18: expected a number of bytes",
        ),
        ("free cpu0 -1 1", "column 11: expected an address"),
        ("free cpu0 +1 1", "column 11: expected an address"),
        ("free cpu0 0x1ffffffffffffffff 1", "column 11: "),
        ("fr\u{e9}e cpu0", "column 1: "),
        ("isb c\u{e9}u", "column 5: "),
    ] {
        let file = format!("{}\n# one\n{line}\n", header(1));
        let message = read(file.as_bytes()).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("line 3, {error}")),
            "{line}: {message}"
        );
    }
}

#[test]
fn errors_name_what_was_found() {
    let error_of = |line: &str| {
        let file = format!("{}\n{line}\n", header(1));
        read(file.as_bytes()).unwrap_err().to_string()
    };
    assert_eq!(
        error_of("store cpu0 0x1004 0"),
        "line 2, column 12: expected the address of a descriptor, a multiple of 8, found \"0x1004\""
    );
    assert_eq!(
        error_of("tlbi cpu0 vaale1is"),
        "line 2, column 19: expected the register operand, but the line ends"
    );
}

#[test]
fn files_that_are_not_text_are_refused_early() {
    let error_of = |file: &[u8]| read(file).unwrap_err().to_string();
    assert!(error_of(b"").ends_with("in the first line of every trace, but the line ends"));
    assert!(error_of(b"\x7fELF\x02\x01\n").starts_with("line 1, column 1: "));
    assert!(error_of(b"granule\xff\n").starts_with("line 1, column 8: not UTF-8"));
    let endless = vec![b'#'; 1 << 20];
    assert!(error_of(&endless).starts_with("line 1, column 4097: the line is longer"));
}
