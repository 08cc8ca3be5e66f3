//! Refusals, each with its line, that leave the running kernel as it was.
//!
//! The program for tests requests each; it checks that memory and the kernel that was loaded before
//! are as they were, and that programs still run. The kernel counts its pages, too.

use std::ops::Range;
use std::path::Path;

use dtoolkit::ToPropertyValue;
use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::{DeviceTreeNode, DeviceTreeProperty};
use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::boot::tree;
use granule_cli::{Initramfs, Outcome, Request};

use crate::booted::Booted;
use crate::hooked::test_image;
use crate::image::{built, image};
use crate::kexec::machine::{ends, machine};

/// An archive whose first process is the program for tests, with a kernel at `/boot/Image`.
fn tests() -> Initramfs {
    tests_with(&image())
}

fn tests_with(image: &Path) -> Initramfs {
    tests_behind(0, image)
}

/// The tests with this many bytes of nothing behind the program.
fn tests_behind(bytes: usize, image: &Path) -> Initramfs {
    let mut program = std::fs::read(built("granule-user", "cargo xtask user")).unwrap();
    program.resize(program.len() + bytes, 0);
    Initramfs::new()
        .program("/init", &program)
        .directory("/boot")
        .file("/boot/Image", &std::fs::read(image).unwrap())
}

/// Boots a first process that does these words and succeeds.
#[track_caller]
fn does(request: &Request, archive: Initramfs, words: &str, line: &str) -> Booted {
    let append = request.append.clone().unwrap_or_default();
    let request = request.clone().append(format!("{append} -- {words}"));
    let ran = ends(&request, archive, Outcome::Ok);
    ran.prints_line(line);
    ran.frames_came_back();
    ran
}

/// Counts the kernel's refusals with these words.
fn refusals(ran: &Booted, words: &str) -> usize {
    let lines = ran.console.lines();
    let refused = lines.filter_map(|line| line.strip_prefix("granule: kexec refused: "));
    refused.filter(|line| line.contains(words)).count()
}

/// The kernel must have refused so often with these words.
#[track_caller]
fn refuses(ran: &Booted, words: &str, times: usize) {
    assert_eq!(refusals(ran, words), times, "{words}:\n{}", ran.console);
}

/// A file that is refused: its bytes, the error, and words of the line with the reason.
struct Wrong {
    name: &'static str,
    bytes: Vec<u8>,
    error: u32,
    words: &'static str,
}

const ENOEXEC: u32 = 8;
const ENOMEM: u32 = 12;
const EINVAL: u32 = 22;
const EADDRNOTAVAIL: u32 = 99;

/// The image with other bytes at some offset.
fn patched(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut image = std::fs::read(image()).unwrap();
    image[at..at + bytes.len()].copy_from_slice(bytes);
    image
}

fn flags(change: impl Fn(u64) -> u64) -> Vec<u8> {
    let image = std::fs::read(image()).unwrap();
    let flags = u64::from_le_bytes(image[24..32].try_into().unwrap());
    patched(24, &change(flags).to_le_bytes())
}

const IMAGE_SIZE: usize = 16;

fn wrong() -> Vec<Wrong> {
    let one = |name, bytes, error, words| Wrong {
        name,
        bytes,
        error,
        words,
    };
    let size = |bytes: u64| patched(IMAGE_SIZE, &bytes.to_le_bytes());
    let mut elf = vec![0; 4096];
    elf[..4].copy_from_slice(b"\x7fELF");
    let mut riscv = vec![0; 4096];
    riscv[56..60].copy_from_slice(b"RSC\x05");
    let mut gzip = vec![0; 4096];
    gzip[..2].copy_from_slice(b"\x1f\x8b");
    vec![
        one("empty", vec![], ENOEXEC, "is 0 bytes long"),
        one(
            "short",
            patched(0, &[])[..63].to_vec(),
            ENOEXEC,
            "is 63 bytes long",
        ),
        one("text", vec![b'x'; 5000], ENOEXEC, "is not an arm64 Image"),
        one("elf", elf, ENOEXEC, "is an ELF file"),
        one("gzip", gzip, ENOEXEC, "is compressed (gzip)"),
        one(
            "riscv",
            riscv,
            ENOEXEC,
            "is a kernel for RISC-V, not for arm64",
        ),
        one("endian", flags(|it| it | 1), EINVAL, "is big-endian"),
        one("nosize", size(0), EINVAL, "has an image_size of 0"),
        one(
            "large",
            size(1 << 40),
            EADDRNOTAVAIL,
            "the kernel takes 0x10000000000 bytes in one piece",
        ),
        one("huge", size(u64::MAX), EINVAL, "below 2^64"),
        one(
            "odd",
            patched(8, &0x123_u64.to_le_bytes()),
            EINVAL,
            "is not a multiple of this kernel's",
        ),
    ]
}

/// An archive with them, and the words for the program.
fn with(wrong: &[Wrong]) -> (Initramfs, String) {
    let mut archive = tests();
    let mut words = "kexec-refused".to_owned();
    for one in wrong {
        let path = format!("/boot/{}", one.name);
        archive = archive.file(&path, &one.bytes);
        words += &format!(" {path}={}", one.error);
    }
    (archive, words)
}

/// The number of times that a line is printed: with nothing loaded and with something, with pages
/// in place and with none.
const TIMES: usize = 4;

#[test]
fn an_image_for_another_machine_is_refused_and_changes_nothing() {
    for (index, size) in PageSize::ALL.into_iter().enumerate() {
        let (archive, words) = with(&wrong());
        let request = machine(size, 1 + index as u32).el(1 + (index % 2) as u8);
        let ran = does(&request, archive, &words, "refused");
        for one in wrong() {
            refuses(&ran, one.words, TIMES);
        }
        // And the command line, on both rounds.
        refuses(&ran, "the command line has", 6);
    }
}

#[test]
fn an_image_for_a_page_size_that_the_cpu_lacks_is_refused() {
    let wrong = [Wrong {
        name: "16k",
        bytes: flags(|it| it & !0b110 | 0b100),
        error: EINVAL,
        words: "the kernel is for 16k pages (flags bits 2:1 at offset 24), which this CPU does not have",
    }];
    for (cpu, refused) in [("cortex-a53", true), ("max", false)] {
        let (archive, words) = with(&wrong);
        let request = machine(K4, 1).cpu(cpu);
        if refused {
            let ran = does(&request, archive, &words, "refused");
            refuses(&ran, wrong[0].words, TIMES);
        } else {
            // A CPU that has it gets no such line.
            let append = Some(format!(" -- {words}"));
            let request = Request { append, ..request };
            let ran = ends(&request, archive, Outcome::GuestExit);
            refuses(&ran, wrong[0].words, 0);
        }
    }
}

/// Faults of the call itself, each twice: with nothing loaded and with something.
#[test]
fn each_wrong_call_is_reported() {
    let ran = does(&machine(K4, 1), tests(), "kexec-refused", "refused");
    for (words, times) in [
        ("descriptor 77 of the kernel is not a file", 2),
        // A directory and a device.
        (
            "of the kernel is not a file that can be read: expected a regular file",
            6,
        ),
        ("descriptor 77 of the initrd is not a file", 2),
        ("the command line has 5 bytes with its NUL", 2),
        ("no memory is reserved for a crash kernel", 2),
        ("kexec_file_load has flags 0x100004, of which only", 2),
        ("the command line's 8 bytes at 0x40 cannot be read", 2),
        (
            "reboot has magic 0x1, 0x2 and command 0x45584543: expected 0xfee1dead",
            2,
        ),
    ] {
        refuses(&ran, words, times);
    }
}

/// However often a program calls, the log stays short.
#[test]
fn endless_requests_do_not_fill_the_log() {
    let ran = does(&machine(K4, 1), tests(), "kexec-flood", "flooded");
    let loaded = "granule: kexec: the next kernel is loaded";
    let loaded = ran.console.lines().filter(|line| *line == loaded).count();
    let reboots = refusals(&ran, "reboot has magic");
    // 64, and one a second: of 500 and of 100.
    assert!((64..200).contains(&reboots), "{}", ran.console);
    assert!((64..100).contains(&loaded), "{}", ran.console);
    refuses(&ran, "no next kernel is loaded", 1);
    ran.prints_line("granule: kexec: more lines as this one come once a second at most");
}

#[test]
fn an_initramfs_without_bytes_is_refused() {
    let archive = tests().file("/none", &[]);
    let words = format!("kexec-refused /boot/Image,/none={EINVAL}");
    let ran = does(&machine(K4, 1), archive, &words, "refused");
    refuses(&ran, "the initrd has no bytes", TIMES);
}

/// An image that takes all memory but a little: it could be placed, but nothing else is left.
#[test]
fn an_image_that_leaves_no_memory_is_refused() {
    for size in PageSize::ALL {
        let request = machine(size, 1);
        let wrong = [Wrong {
            name: "all",
            bytes: patched(IMAGE_SIZE, &(request.memory - (1 << 18)).to_le_bytes()),
            error: ENOMEM,
            words: "out of memory for the ",
        }];
        let (archive, words) = with(&wrong);
        let ran = does(&request, archive, &words, "refused");
        refuses(&ran, wrong[0].words, TIMES);
    }
}

/// The places of segments that a test requests, and the line.
#[test]
fn places_that_cannot_be_are_refused() {
    for (size, places, error, words) in [
        (
            K4,
            "kernel@0x50000000,initrd@0x50100000",
            EINVAL,
            "overlaps the kernel at 0x50000000..",
        ),
        (K64, "kernel@0x50000000,tree@0x4fff0000", 0, ""),
        (
            K16,
            "tree@0x50000000,initrd@0x50000000",
            EINVAL,
            "the tree at 0x50000000..",
        ),
        (
            K4,
            "kernel@0x3fe00000",
            EADDRNOTAVAIL,
            "the kernel is to be at 0x3fe00000..",
        ),
        (
            K64,
            "initrd@0x5fff0000",
            EADDRNOTAVAIL,
            "which is not all RAM",
        ),
        (
            K16,
            "tree@0xfffffffffffff000",
            EINVAL,
            "is not a multiple of this kernel's 16k page size",
        ),
        (K4, "tree@0xfffffffffffff000", EINVAL, "below 2^64"),
        (
            K4,
            "tree@0x50000800",
            EINVAL,
            "0x50000800 of the tree is not a multiple",
        ),
        // Handed over to the next kernel.
        (
            K4,
            "kernel@0x4ee00000",
            EINVAL,
            "0x4f000000..0x4f001000 is reserved",
        ),
    ] {
        let request = machine(size, 1).append(format!(
            "granule.persist=0x4f000000,0x1000 granule.test=kexec:{places}"
        ));
        let program = std::fs::read(built("granule-kexec", "cargo xtask user")).unwrap();
        let lines = "load /boot/Image --initrd /init\nstatus\n";
        let archive = tests()
            .program("/init", &program)
            .directory("/etc")
            .file("/etc/kexec", lines.as_bytes());
        let outcome = match error {
            0 => Outcome::Ok,
            _ => Outcome::GuestExit,
        };
        let ran = ends(&request, archive, outcome);
        refuses(&ran, words, usize::from(error != 0));
        ran.frames_came_back();
    }
}

#[test]
fn memory_may_run_out_at_every_allocation_of_loading() {
    for (size, cpus) in [(K4, 1), (K16, 2), (K64, 1)] {
        let request = machine(size, cpus).append("granule.test=alloc-failure");
        let ran = does(&request, tests(), "kexec-alloc-failure", "short");
        for what in [
            "command line",
            "list of segments",
            "device tree",
            "next kernel's pages",
            "list",
            "transitional tables",
        ] {
            let words = format!("out of memory for the {what}: ");
            assert!(refusals(&ran, &words) > 0, "{words}\n{}", ran.console);
        }
    }
}

/// Any bit of the list, in its header, in a record and in what ends it.
#[test]
fn a_list_that_changed_is_not_followed() {
    const HEADER: u64 = 8 * 8 * 16;
    for (index, bit) in [
        0,
        64 + 63,
        2 * 64,
        3 * 64 + 12,
        3 * 64 + 60,
        13 * 64,
        HEADER + 13,
        HEADER + 64 + 50,
        HEADER + 2 * 64 + 12,
        HEADER + 3 * 64,
        HEADER + 3 * 64 + 2,
    ]
    .into_iter()
    .enumerate()
    {
        let request = machine(PageSize::ALL[index % 3], 1 + index as u32 % 2)
            .append(format!("granule.test=kexec:flip@{bit}"));
        let ran = does(&request, tests(), "kexec-corrupted", "corrupted");
        refuses(&ran, "no next kernel is loaded", 1);
        refuses(&ran, "the list of what is to be relocated", 4);
    }
}

/// A device tree for a machine, in which firmware has reserved memory in each of the ways there are
/// to report it, and which names an initramfs from there on.
fn reserving(request: &Request, initrd: Range<u64>) -> Vec<u8> {
    let dtb = tree::dump(request).unwrap();
    let mut dtb = tree::model(&dtb).unwrap();
    dtb.memory_reservations
        .push(MemoryReservation::new(0x5010_0000, 0x1000));
    let mut reserved = node("reserved-memory");
    set(&mut reserved, "#address-cells", 2u32);
    set(&mut reserved, "#size-cells", 2u32);
    set(&mut reserved, "ranges", Vec::<u8>::new());
    for (start, bytes, no_map) in [
        (0x5200_0100_u64, 0x100_u64, false),
        (0x5400_0000, 0x1_0000, true),
    ] {
        let mut kept = node(&format!("kept@{start:x}"));
        let reg = [start.to_be_bytes(), bytes.to_be_bytes()].concat();
        set(&mut kept, "reg", reg);
        if no_map {
            set(&mut kept, "no-map", Vec::<u8>::new());
        }
        reserved.add_child(kept);
    }
    dtb.root.add_child(reserved);
    let chosen = dtb.find_node_mut("/chosen").unwrap();
    set(chosen, "bootargs", request.bootargs().as_str());
    set(chosen, "linux,initrd-start", initrd.start);
    set(chosen, "linux,initrd-end", initrd.end);
    dtb.to_dtb()
}

fn node(name: &str) -> DeviceTreeNode {
    DeviceTreeNode::new_unchecked(name)
}

fn set<T: ToPropertyValue>(node: &mut DeviceTreeNode, name: &str, value: T) {
    node.add_property(DeviceTreeProperty::new_unchecked(name, value));
}

#[test]
fn memory_that_firmware_has_reserved_is_not_overwritten() {
    let program = std::fs::read(built("granule-kexec", "cargo xtask user")).unwrap();
    let lines = "load /boot/Image --initrd /init\n";
    let archive = || {
        tests()
            .program("/init", &program)
            .directory("/etc")
            .file("/etc/kexec", lines.as_bytes())
    };
    let start = 0x4c00_0000;
    let initrd = start..start + archive().bytes().len() as u64;
    for (place, words) in [
        (
            "kernel@0x50000000",
            "where 0x50100000..0x50101000 is reserved",
        ),
        (
            "initrd@0x52000000",
            "where 0x52000100..0x52000200 is reserved",
        ),
        (
            "tree@0x54000000",
            "where 0x54000000..0x54010000 is reserved",
        ),
        // Where the tree is mapped, and it is not.
        (
            "tree@0x54100000",
            "of 0x54000000..0x54200000 not all is RAM that may be mapped",
        ),
        // Beside them.
        ("kernel@0x50200000,initrd@0x52001000,tree@0x53fe0000", ""),
    ] {
        let request = machine(K4, 1).append(format!("granule.test=kexec:{place}"));
        let files = tempfile::tempdir().unwrap();
        let dtb = files.path().join("dtb");
        std::fs::write(&dtb, reserving(&request, initrd.clone())).unwrap();
        let request = Request {
            dtb: Some(dtb),
            page_size: None,
            append: None,
            // The words are in the tree.
            image: Some(test_image()),
            ..request
        };
        let refused = !words.is_empty();
        let outcome = if refused {
            Outcome::GuestExit
        } else {
            Outcome::Ok
        };
        let ran = ends(&request, archive(), outcome);
        refuses(&ran, words, usize::from(refused));
    }
}

/// Free memory is in pieces of one page each: the list is long, storage grows, and memory may run out at
/// any of that, too.
#[test]
fn memory_in_pieces_is_enough_and_may_run_out() {
    for size in [K4, K16] {
        let request = machine(size, 1)
            .memory(128 << 20)
            .append("granule.test=alloc-failure");
        let ran = does(&request, tests(), "kexec-fragmented", "in pieces");
        assert!(
            refusals(&ran, "out of memory for the ") > 50,
            "{}",
            ran.console
        );
        let request = request.append("-- kexec-fragmented leave");
        // So much that the list takes more than one page: the program is the next kernel's initramfs.
        let ran = ends(&request, tests_behind(2 << 20, &test_image()), Outcome::Ok);
        assert_eq!(ran.boot.boots.len(), 2);
        // Every other page is where it is to be.
        let [all, copied] =
            ["bytes_total", "bytes_copied"].map(|name| ran.number(&format!("kexec.{name}")));
        assert!(copied > all / 4 && copied < all, "{copied} of {all}");
        for what in ["initrd", "tree"] {
            let arrived = ran.value(&format!("kexec.arrived.{what}.digest"));
            assert!(arrived.is_string(), "{}", ran.json);
            ran.has(&format!("kexec.segment.{what}.digest"), arrived.clone());
        }
        if size == K4 {
            // `list N` in the last line of what is loaded.
            let line = ran
                .console
                .lines()
                .find(|line| line.starts_with("entry 0x"));
            let pages = line.and_then(|line| line.rsplit(' ').next()).unwrap();
            assert!(pages.parse::<u64>().unwrap() > 1, "{line:?}");
        }
    }
}
