//! Targets for parsers: the first look into the device tree, the command line, sizes, the image's header,
//! traces, and trees from a user.

use crate::bytes::Bytes;
use granule::arch::{CpuFeatures, PageSize};
use granule_boot::choice::Wish;
use granule_boot::tree::{Tree, total_size};
use granule_boot::words;
use granule_cli::bench::user::lines;
use granule_cli::boot::tree;
use granule_cli::sizes::{parse_address, parse_size, show_size};
use granule_cli::trace_area::TraceArea;
use granule_kcore::cpus::fake;
use granule_kcore::parameters::{Parameters, Problem, Rodata};
use granule_model::trace::{Reader, TraceHeader, parse_line, write_event};

pub(crate) fn device_tree_peek(bytes: &[u8]) {
    // Random bytes rarely begin with the magic number, so half of the cases get it, and a size.
    let mut given = bytes.to_vec();
    if bytes.first().is_some_and(|first| first & 1 == 0) && given.len() >= 28 {
        let size = u32::try_from(given.len()).unwrap_or(u32::MAX);
        given[..4].copy_from_slice(&0xd00d_feed_u32.to_be_bytes());
        given[4..8].copy_from_slice(&size.to_be_bytes());
        given[20..24].copy_from_slice(&17_u32.to_be_bytes());
        given[24..28].copy_from_slice(&16_u32.to_be_bytes());
    }
    if let Ok(size) = total_size(&given) {
        assert!((40..=2 << 20).contains(&size));
    }
    if let Ok(tree) = Tree::new(&given) {
        let seen = tree.peek();
        assert!(seen.bootargs.len() <= given.len());
        assert!(seen.compatible.count() <= given.len());
        let mut consoles = seen.consoles;
        consoles.check(&tree, 1 << 48, &[]);
        if let Some(uart) = consoles.first() {
            let Some(page) = uart.page() else {
                panic!("{uart:?} has passed the checks");
            };
            let registers = uart.family.registers() << uart.layout.shift;
            let end = uart.base + registers as u64;
            assert!(uart.base != 0 && uart.base >= page.start && end <= page.start + 4096);
            assert!(page.start.is_multiple_of(4096) && end <= 1 << 48);
            assert!(uart.base.is_multiple_of(uart.layout.width.bytes().into()));
            assert!(uart.layout.width.bytes() <= 1 << uart.layout.shift.min(2));
        }
        assert!(consoles.passed_over().count() <= 3);
        if let Some(damage) = seen.damage {
            assert!(!damage.to_string().is_empty());
        }
    }
}

/// `--dtb`: a user's tree is examined for what its command line requests, and never refused.
pub(crate) fn exact_tree(bytes: &[u8]) {
    let (made, _) = crate::nodes::tree(bytes);
    for tree in [bytes, &made] {
        let _ = (tree::counts_instructions(tree), tree::initrd_start(tree));
        if let Some(area) = tree::trace_area(tree) {
            assert_eq!(TraceArea::of_bootargs(&area.word()), Some(area));
        }
    }
}

pub(crate) fn command_line(bytes: &[u8]) {
    let words = words::words(bytes).count();
    assert!(words <= bytes.len());
    if let Wish::Wanted(size) = words::page_size(bytes) {
        assert!(PageSize::ALL.contains(&size));
    }
    if let Wish::Wanted(bits) = words::va_bits(bytes) {
        assert!(bits < 1000);
    }
    // The kernel's own words: each unusable word is one line.
    let mut reported = 0;
    let parameters = Parameters::parse(bytes, |problem| {
        let line = problem.to_string();
        assert!(line.is_ascii() && !line.contains('\n'), "{line}");
        if let Problem::BadValue { key, value, .. } = problem {
            assert!(line.starts_with(key) && value.len() <= bytes.len());
        }
        reported += 1;
    });
    assert!(reported <= bytes.len());
    assert!(parameters.init_arguments().count() <= bytes.len());
    let last = words::find(bytes, b"rodata=");
    assert_eq!(last == Some(b"off"), parameters.rodata == Rodata::Off);
}

pub(crate) fn pretended_cpu(bytes: &[u8]) {
    let registers = CpuFeatures::NONE;
    let mut bad = 0;
    // The boot CPU never reports other ID fields.
    let none = fake::of_cpu(bytes, 0, |_| bad += 1);
    assert_eq!(none.apply(registers), registers);
    let words = words::words(bytes).filter(|word| word.key == b"arm64.fake_cpu");
    assert!(bad <= words.count());
    // A well-formed word has its effect, whatever precedes it.
    let mut rest = Bytes(bytes);
    let (cpu, value) = (1 + rest.below(31), u64::from(rest.byte() % 16));
    let mut line: Vec<u8> = rest.0.to_vec();
    line.retain(|byte| !b"\"\0-".contains(byte));
    line.extend(format!(" arm64.fake_cpu={cpu}:bbm={value:#x}").bytes());
    let made = fake::of_cpu(&line, cpu, |_| ()).apply(registers);
    assert_eq!(made.mmfr2, value << 52);
}

pub(crate) fn sizes(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(size) = parse_size(&text) {
        // The printed form can be parsed again, with the same meaning.
        assert_eq!(parse_size(&show_size(size)), Ok(size), "{text}");
    }
    let _ = parse_address(&text);
}

pub(crate) fn image_header(bytes: &[u8]) {
    let _ = granule_cli::image::HeaderFields::parse(bytes);
}

/// The benchmark program's output as a guest's console shows it: whole lines made from the bytes, and the
/// bytes themselves.
pub(crate) fn bench_lines(bytes: &[u8]) {
    let mut from = Bytes(bytes);
    let mut text = String::new();
    let beginning = "bench begin page=4096 bytes=65536 pages=16 rounds=1 frequency=62500000\n";
    while !from.is_empty() && text.len() < 1 << 16 {
        let (name, ticks) = (from.below(40), from.word());
        match from.below(7) {
            0 => text += beginning,
            6 => text += &format!("bench op=a{name} page=4096 bytes={ticks}\n"),
            1 => text += &format!("bench end ops={} timed=1\n", ticks % 8),
            2 => text.push_str("bench failed mmap -12\n"),
            3 => text += &String::from_utf8_lossy(bytes),
            kind => {
                let least = if kind == 4 { ticks } else { 0 };
                text += &format!(
                    "bench op=a{name} best={least} median={ticks} worst={ticks} at={name}\n"
                );
            }
        }
    }
    let given = String::from_utf8_lossy(bytes);
    for console in [&*given, text.as_str(), &format!("{beginning}{text}")] {
        match lines::read(console) {
            Ok(read) => {
                assert_eq!(read.pages.checked_mul(read.page), Some(read.bytes));
                assert!((1..=64).contains(&read.ops.len()) && read.rounds > 0);
                let ordered = |op: &lines::Op| match op.time {
                    Some(time) => time.best <= time.median && time.median <= time.worst,
                    None => op.bytes.is_some(),
                };
                assert!(read.ops.iter().all(ordered), "{console}");
            }
            Err(line) => assert!(!line.is_empty() && !line.contains('\n'), "{line}"),
        }
    }
}

pub(crate) fn trace_line(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines() {
        if let Ok(Some((cpu, event))) = parse_line(line) {
            // A parsed event is written in a form that parses to the same event.
            let mut written = String::new();
            assert!(write_event(cpu, &event, &mut written).is_ok(), "{line}");
            assert_eq!(parse_line(&written), Ok(Some((cpu, event))), "{line}");
        }
        let _ = TraceHeader::parse(line);
    }
}

pub(crate) fn trace_file(bytes: &[u8]) {
    let mut text = b"granule-trace 2 page=4k cpus=2 bbm=2 complete=yes events=3\n".to_vec();
    text.extend_from_slice(bytes);
    all_events(&text);
    all_events(bytes);
}

fn all_events(text: &[u8]) {
    let Ok(mut reader) = Reader::new(text) else {
        return;
    };
    // At most as many events as lines, so the reader ends.
    let lines = text.iter().filter(|byte| **byte == b'\n').count() + 1;
    for _ in 0..=lines {
        match reader.next_event() {
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return,
        }
    }
    panic!("the reader finds more events than there are lines");
}
