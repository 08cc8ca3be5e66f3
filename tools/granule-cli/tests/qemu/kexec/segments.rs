//! `kexec_load`: segments that a program lays out itself, refused or left for, by programs for tests and by the one
//! that leaves a Linux, too.

use granule_cli::PageSize::{K4, K16, K64};
use granule_cli::{Initramfs, Outcome, PageSize};
use test_case::test_case;

use crate::image::{built, image};
use crate::kexec::chain::{PERSIST, every_pair, machine, number, program_does, records};
use crate::kexec::machine::{NEXT, ends};

/// Each line of a refusal, and how often: with nothing loaded, and with something.
const LINES: [(&str, usize); 16] = [
    ("kexec_load has flags 0x2: expected", 2),
    ("kexec_load has flags 0x100000000: expected", 2),
    ("no memory is reserved for a crash kernel", 2),
    ("kexec_load has 17 segments: expected at most 16", 2),
    ("the list of segments's 64 bytes at 0x40 cannot be read", 2),
    ("segment1 takes 0x10000 bytes at 0x50100800: expected", 2),
    ("segment1 takes 0x10800 bytes at 0x50100000: expected", 2),
    ("segment1 takes 0xffffffffffff0000 bytes at 0x50100000", 2),
    ("segment1 overlaps segment0", 2),
    ("segment1 has more bytes than memory", 2),
    ("the segments take more than half of the 0x20000000", 2),
    ("the segment1 is to be at 0x3fff0000..", 2),
    ("the segment1 is to be at 0x5fff0000..", 2),
    ("where 0x4f000000..0x4f001000 is reserved", 2),
    ("the segment1's ", 4),
    (" is in no segment: expected the address", 10),
];

#[test]
fn each_wrong_segment_is_refused_and_changes_nothing() {
    for (size, cpus, el) in [(K4, 4, 1), (K64, 1, 2)] {
        let request = machine(cpus, el, 3, "max").page_size(size).append(PERSIST);
        let words = format!("kexec-segments {} {cpus}", 0x4f00_0000);
        let ran = program_does(&request, &words, Outcome::Ok);
        ran.prints_line("segments refused");
        ran.frames_came_back();
        for (words, times) in LINES {
            let refused = "granule: kexec refused: ";
            let lines = ran
                .console
                .lines()
                .filter_map(|line| line.strip_prefix(refused));
            let found = lines.filter(|line| line.contains(words)).count();
            assert_eq!(found, times, "{words}:\n{}", ran.console);
        }
    }
}

/// From every page size into every other: each kernel leaves for the next, whose bytes and registers code between
/// them has compared, with what is behind the bytes.
#[test_case(1, 4, "max", false; "in place at EL1")]
#[test_case(2, 1, "neoverse-n1", true; "copied at EL2 with VHE")]
#[test_case(1, 1, "max", true; "copied at EL1")]
#[test_case(2, 4, "cortex-a72", false; "in place at EL2 without VHE")]
fn from_every_page_size_into_every_other(el: u8, cpus: u32, cpu: &str, copied: bool) {
    let sizes = match cpu {
        "cortex-a72" => &[K4, K64][..],
        _ => &PageSize::ALL,
    };
    let sizes = every_pair(sizes);
    let words: Vec<_> = sizes.iter().map(|size| size.word()).collect();
    let way = if copied { "copied" } else { "in-place" };
    let request = machine(cpus, el, 3, cpu);
    let request = granule_cli::Request {
        page_size: None,
        ..request.append(format!("arm64.pagesize={:<3} {PERSIST}", words[0]))
    };
    let words = format!("kexec-chain {way} {}", words[1..].join(" "));
    let ran = program_does(&request, &words, Outcome::Ok);
    let recorded = records(&ran);
    assert_eq!(recorded.len(), sizes.len(), "{}", ran.console);
    let image = std::fs::read(image()).unwrap();
    let memory = u64::from_le_bytes(image[16..24].try_into().unwrap()).next_multiple_of(64 << 10);
    for (index, (one, size)) in recorded.iter().zip(&sizes).enumerate() {
        assert_eq!(one["outcome"], "ok", "kernel {index}");
        assert_eq!(number(one, "page_size"), size.bytes(), "kernel {index}");
        assert_eq!(number(one, "cpus"), u64::from(cpus));
        assert_eq!(number(one, "entry_el"), u64::from(el));
        assert_eq!(number(one, "persist.boots"), index as u64 + 1);
        // No tree names a note.
        assert!(!one.contains_key("kexec.from_page_size"));
        let left = |key: &str| number(one, &format!("kexec.leaving.{key}"));
        if index + 1 == sizes.len() {
            assert!(!one.contains_key("kexec.leaving.bytes_total"));
            continue;
        }
        let (all, copied_bytes) = (left("bytes_total"), left("bytes_copied"));
        assert!(all > memory + (6 << 16), "{all}");
        if copied {
            // The place is the one of the kernel that leaves, some of whose memory is free.
            let least = image.len() as u64;
            assert!(
                (least..=all).contains(&copied_bytes),
                "{copied_bytes} of {all}"
            );
        } else {
            assert_eq!(copied_bytes, 0, "kernel {index}");
        }
        assert_eq!(left("segment.segment1.start") % (2 << 20), 0);
    }
}

/// The program that leaves a Linux, by either call. The next kernel has no initramfs, and the first call no other tree.
#[test]
fn the_program_that_leaves_a_linux_leaves_this_kernel() {
    let program = std::fs::read(built("granule-user-leave", "cargo xtask user")).unwrap();
    let archive = || {
        Initramfs::new()
            .program("/init", &program)
            .directory("/boot")
            .file(NEXT, &std::fs::read(image()).unwrap())
    };
    for (words, from, to) in [
        (format!("{NEXT} 50000000"), K16, K16),
        (
            format!("--file {NEXT} --append arm64.pagesize=64k"),
            K4,
            K64,
        ),
        (format!("--file {NEXT} --initrd {NEXT}"), K64, K4),
    ] {
        let by_file = words.starts_with("--file");
        let request = machine(2, 2, 3, "max").page_size(from);
        let request = request.append(format!("-- {words}"));
        let ran = ends(&request, archive(), Outcome::Ok);
        ran.prints_line("leave: loaded");
        let recorded = records(&ran);
        assert_eq!(recorded.len(), 2, "{}", ran.console);
        assert_eq!(number(&recorded[1], "page_size"), to.bytes());
        assert_eq!(recorded[1].contains_key("kexec.from_page_size"), by_file);
        let has_initrd = recorded[1].contains_key("kexec.segment.initrd.start");
        assert_eq!(has_initrd, words.contains("--initrd"), "{}", ran.console);
    }
    for (words, line) in [
        ("--file", "leave: expected IMAGE ADDRESS, or --file IMAGE"),
        ("--file /none", "leave: the image is not opened: -2"),
    ] {
        let wrong = machine(1, 1, 3, "max").append(format!("-- {words}"));
        ends(&wrong, archive(), Outcome::GuestExit).mentions(line);
    }
}
