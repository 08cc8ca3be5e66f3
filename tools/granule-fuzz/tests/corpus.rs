//! Each file of `corpus` is read by the readers of its format, so that a target begins inside its reader and not in
//! front of it. A target without files has a reason.

#![allow(clippy::unwrap_used)]

use granule::arch::PageSize;
use granule_boot::acpi::{Console, Madt, Srat, timers};
use granule_boot::choice::Wish;
use granule_boot::efi::Map;
use granule_boot::stamp::Stamp;
use granule_boot::tree::{Tree, total_size};
use granule_boot::words;
use granule_cli::BootRecord;
use granule_cli::bench::user::lines;
use granule_cli::boot::tree::model;
use granule_cli::check::{CheckOptions, check};
use granule_cli::image::HeaderFields;
use granule_cli::initramfs::Initramfs;
use granule_cli::result::console_record::RecordLines;
use granule_cli::sizes::parse_size;
use granule_cli::trace_area::TraceArea;
use granule_fuzz::TARGETS;
use granule_inspect::source::{elf_core, kdump};
use granule_kcore::cpus::fake;
use granule_kcore::devicetree::cpus::{Found, NotStarted, Other, cpus};
use granule_kcore::devicetree::intc::controller;
use granule_kcore::devicetree::memory::{Memory, memory};
use granule_kcore::kexec::handoff_note::{BYTES, HandoffNote};
use granule_kcore::module::Module;
use granule_kcore::parameters::Parameters;
use granule_kcore::trace::area::Area;
use granule_linux_abi::files::cpio;
use granule_linux_abi::program::{ProgramPlace, read};
use granule_model::trace::Reader;
use granule_plugin::stream;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The most bytes of a file: a fuzzer reads it for each input.
const MOST_BYTES: u64 = 32 << 10;

/// Whether a reader accepts the bytes.
type Reads = fn(&[u8]) -> bool;

/// Each format: its folder, and whether its readers accept a file.
const FORMATS: &[(&str, Reads)] = &[
    ("acpi", acpi),
    ("bench-lines", |bytes| {
        lines::read(text(bytes)).is_ok_and(|it| it.ops.len() == 11)
    }),
    ("boot-record", |bytes| {
        BootRecord::decode(bytes).is_ok_and(|it| it.is_parked())
    }),
    ("command-line", command_line),
    ("console-record", |bytes| {
        let mut record = RecordLines::default();
        let lines = text(bytes).lines();
        lines.for_each(|line| record.line(&line["@granule ".len()..]));
        record.faults().is_empty() && record.has_ended()
    }),
    ("device-tree", device_tree),
    ("efi-map", |bytes| {
        Map::new(bytes, 48, 1).is_ok_and(|map| map.count() == 30)
    }),
    ("elf-core", |bytes| {
        elf_core::open(bytes.to_vec()).is_ok_and(|(_, facts)| facts.cpus.len() == 1)
    }),
    ("image-header", |bytes| HeaderFields::parse(bytes).is_ok()),
    ("initramfs", |bytes| {
        let entries: Vec<_> = cpio::entries(bytes).collect();
        entries.len() == 4 && entries.iter().all(Result::is_ok)
    }),
    ("kdump", |bytes| {
        kdump::open(bytes.to_vec()).is_ok_and(|(memory, _)| !memory.ranges().is_empty())
    }),
    ("module", module),
    ("program", program),
    ("size", |bytes| parse_size(text(bytes)).is_ok()),
    ("stamp", |bytes| {
        let kind = bytes[16..].first_chunk().unwrap();
        Stamp::open(bytes, *kind).is_ok()
    }),
    ("trace", |bytes| {
        let checked = check(bytes, &CheckOptions::default(), &mut |_| ());
        checked.is_ok_and(|checked| checked.violations == 0)
    }),
    ("watch-stream", watch_stream),
];

/// Targets without a file, by the reason.
const DRAWN: &[(&str, &[&str])] = &[
    (
        "its bytes are calls and their numbers, one after the other",
        &["memblock", "pieces", "watched_guest", "accessed_guest"],
    ),
    (
        "its bytes are words of tables, or numbers of registers, and any are legal",
        &[
            "descriptor",
            "walker",
            "table_view",
            "inspect",
            "translation_registers",
        ],
    ),
    (
        "it builds its format from numbers in the bytes, so that the parts agree",
        &[
            "firmware_tree",
            "trace_replay",
            "trace_record",
            "path_lookup",
        ],
    ),
    (
        "only programs of others write its format, and the code has an imitation",
        &["gdb_answers", "kernel_in_memory", "linux_processes"],
    ),
    (
        "the plugin writes its format, in a QEMU that is newer than the one that tests need",
        &["accesses_stream"],
    ),
];

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn acpi(bytes: &[u8]) -> bool {
    match bytes.first_chunk().unwrap() {
        b"APIC" => Madt::new(bytes).cpus().count() == 2,
        b"SRAT" => Srat::new(bytes).memory().count() == 2,
        b"GTDT" => timers(bytes).is_ok(),
        b"SPCR" => Console::read(bytes).is_some(),
        _ => false,
    }
}

fn command_line(bytes: &[u8]) -> bool {
    let mut bad = 0;
    Parameters::parse(bytes, |_| bad += 1);
    fake::of_cpu(bytes, 1, |_| bad += 1);
    let size = matches!(words::page_size(bytes), Wish::Wanted(_));
    let area = Area::of(bytes).is_ok_and(|area| area.is_wanted());
    bad == 0 && size && area && TraceArea::of_bootargs(text(bytes)).is_some()
}

#[derive(Default)]
struct Cpus(usize);

impl<'a> Found<'a> for Cpus {
    fn is_known(&self, _: u64) -> bool {
        false
    }
    fn found(&mut self, _: Other) {
        self.0 += 1;
    }
    fn left_out(&mut self, _: NotStarted<'a>) {}
}

fn device_tree(bytes: &[u8]) -> bool {
    let tree = Tree::new(bytes).unwrap();
    let mut others = Cpus::default();
    cpus(&tree, 0, &mut others);
    let banks = memory(bytes, None, &mut Memory::new(PageSize::K4), |_| {});
    let read = banks.is_ok() && others.0 == 1 && controller(&tree).is_ok();
    read && total_size(bytes) == Ok(bytes.len() as u32)
        && tree.damage().is_none()
        && model(bytes).is_ok()
}

/// The interface of the file is that of its time, behind the three bytes that the target draws from.
fn module(bytes: &[u8]) -> bool {
    let file = &bytes[3..];
    let head = file.windows(8).position(|bytes| bytes == b"granmod\0");
    let build = u64::from_le_bytes(*file[head.unwrap() + 8..].first_chunk().unwrap());
    Module::read(file, build, PageSize::MIN.bytes()).is_ok_and(|module| module.name() == "ram_disk")
}

/// Its segments lie as a linker for 4K pages places them.
fn program(bytes: &[u8]) -> bool {
    let place = ProgramPlace {
        page: PageSize::K4.bytes(),
        addresses: 64 << 10..1 << 39,
        movable_at: 1 << 32,
    };
    read(bytes, &place).is_ok()
}

fn watch_stream(bytes: &[u8]) -> bool {
    let (mut reader, _) = stream::Reader::new(bytes).unwrap();
    let mut records = 0;
    while let Some((_, _, seen)) = reader.next_seen().unwrap() {
        records += 1;
        if matches!(seen, stream::Seen::End(_)) {
            return records > 5;
        }
    }
    false
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn files_are_accepted_by_their_readers() {
    let readme = std::fs::read_to_string(corpus().join("README.md")).unwrap();
    for (folder, accepts) in FORMATS {
        let files = entries(&corpus().join(folder));
        assert!(!files.is_empty(), "{folder} is empty");
        for file in files {
            let bytes = std::fs::read(&file).unwrap();
            assert!(accepts(&bytes), "{} is refused", file.display());
            assert!(
                bytes.len() as u64 <= MOST_BYTES,
                "{} is large",
                file.display()
            );
            let name = format!("`{folder}/{}`", file.file_name().unwrap().to_str().unwrap());
            assert!(readme.contains(&name), "README.md does not name {name}");
        }
    }
    let there: BTreeSet<_> = entries(&corpus())
        .into_iter()
        .filter(|it| it.is_dir())
        .collect();
    let formats = FORMATS.iter().map(|(folder, _)| corpus().join(folder));
    assert_eq!(there, formats.collect());
}

#[test]
fn every_target_begins_with_a_file_or_has_a_reason() {
    let formats: BTreeSet<_> = FORMATS.iter().map(|(folder, _)| *folder).collect();
    let used = TARGETS
        .iter()
        .flat_map(|(_, _, folders)| folders.iter().copied());
    assert_eq!(used.collect::<BTreeSet<_>>(), formats);
    let without = TARGETS.iter().filter(|(_, _, folders)| folders.is_empty());
    let without: BTreeSet<_> = without.map(|(name, ..)| *name).collect();
    let reasons = DRAWN.iter().flat_map(|(_, names)| names.iter().copied());
    assert_eq!(reasons.collect::<BTreeSet<_>>(), without);
}

/// The files that code of ours writes, from other files.
fn written() -> [(&'static str, Vec<u8>); 4] {
    let program = std::fs::read(corpus().join("program/granule-pagesize")).unwrap();
    let tree = Initramfs::new()
        .directory("/bin")
        .program("/bin/pagesize", &program[..200])
        .file("/etc/motd", b"hello\n")
        .link("/init", "bin/pagesize");
    let head = stream::Head { api: 4, cpus: 2 };
    let mut words = vec![head.words()];
    // The example of the documentation.
    let document = std::fs::read_to_string(corpus().join("../../../docs/trace-format.md")).unwrap();
    let lines = document
        .lines()
        .filter_map(|line| line.strip_prefix("    "));
    let lines = lines.skip_while(|line| !line.starts_with("granule-trace"));
    let trace: String = lines.take(8).map(|line| format!("{line}\n")).collect();
    let mut reader = Reader::new(trace.as_bytes()).unwrap();
    while let Some((_, cpu, event)) = reader.next_event().unwrap() {
        let place = 0xffff_8000_8000_0000 + 4 * words.len() as u64;
        words.push(stream::encode(
            cpu as u16,
            place,
            &stream::Seen::Event(event),
        ));
    }
    let end = stream::Seen::End(stream::Totals::default());
    words.push(stream::encode(0, 0, &end));
    // The note that a kernel leaves for the next one.
    let mut page = [0; BYTES];
    let note = HandoffNote {
        bytes_total: 1 << 20,
        tlbi: 3,
        ..HandoffNote::default()
    };
    note.write(PageSize::K16, &mut page);
    let length = 48 + usize::from(page[32]);
    let note = page[..length].to_vec();
    let stream = words.into_iter().flatten().flat_map(u64::to_le_bytes);
    [
        ("initramfs/tree.cpio", tree.bytes()),
        ("trace/example.trace", trace.clone().into_bytes()),
        ("watch-stream/example.stream", stream.collect()),
        ("stamp/handoff-note.bin", note),
    ]
}

/// `GRANULE_CORPUS=write` writes them anew.
#[test]
fn files_of_our_own_code_are_up_to_date() {
    for (name, bytes) in written() {
        let path = corpus().join(name);
        if std::env::var_os("GRANULE_CORPUS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "{name} is old");
    }
}
