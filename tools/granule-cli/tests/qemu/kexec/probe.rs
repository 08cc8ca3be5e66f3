//! The probe as the next kernel: an independent witness, with the MMU off, of registers, level, CPUs that
//! are off, interrupts that are not pending, and the bytes of everything, which are held against the files.

use std::path::Path;

use granule_cli::{Kexec, Outcome, PageSize, Request};
use granule_kexec::Digest;
use tempfile::NamedTempFile;

use test_case::test_case;

use crate::booted::Booted;
use crate::image::built;
use crate::kexec::machine::{boots, machine};

/// CPU and level at which this kernel is entered; on the last it runs at EL1 all the same.
const LEVELS: [(&str, u8); 3] = [("neoverse-n1", 1), ("neoverse-n1", 2), ("cortex-a35", 2)];

/// The way of the bytes to their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    copy: bool,
    uncached: bool,
}

const WAYS: [Way; 4] = [
    way(true, false),
    way(false, false),
    way(true, true),
    way(false, true),
];

const fn way(copy: bool, uncached: bool) -> Way {
    Way { copy, uncached }
}

/// The probe with so many bytes behind it, asking for so much memory.
fn image(behind: usize, memory: u64) -> Vec<u8> {
    let mut bytes = std::fs::read(built("Image-probe", "cargo xtask probe")).unwrap();
    bytes.extend(noise(behind, 3));
    // Its stack is at the end of its memory, behind all that is compared.
    let least = (bytes.len() as u64).next_multiple_of(64 << 10) + (64 << 10);
    bytes[16..24].copy_from_slice(&memory.max(least).to_le_bytes());
    bytes
}

/// Bytes of which no page is like another.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut word = seed;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    };
    let words = (0..bytes.div_ceil(8)).flat_map(|_| next());
    words.take(bytes).collect()
}

fn digest(bytes: &[u8]) -> String {
    let mut digest = Digest::new();
    digest.bytes(bytes);
    format!("{:#x}", digest.value())
}

fn file(bytes: &[u8]) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

const APPEND: &str = "some words for the probe";

/// That machine leaving for the probe.
fn leaving(request: Request, kernel: &Path, initrd: Option<&Path>, way: Way) -> Request {
    Request {
        kexec: Some(Kexec {
            image: Some(kernel.to_owned()),
            initrd: initrd.map(Path::to_owned),
            append: Some(APPEND.into()),
            copy: way.copy,
            uncached: way.uncached,
            ..Kexec::default()
        }),
        ..request
    }
}

/// Leaves for the probe, which must find all as it must be, and holds what it saw against the files.
#[track_caller]
fn witnessed(request: Request, kernel: &[u8], initrd: Option<&[u8]>, way: Way) -> Booted {
    let (kernel_file, initrd_file) = (file(kernel), initrd.map(file));
    let initrd_path = initrd_file.as_ref().map(NamedTempFile::path);
    let request = leaving(request, kernel_file.path(), initrd_path, way);
    let ran = boots(&request, Outcome::Ok);
    assert_eq!(ran.boot.boots.len(), 2);
    // It prints `ok` only if the note, the tree and memory agree and all of its checks pass.
    ran.has("boots.1.outcome", "ok");
    ran.has("boots.1.ended", true);
    let probe = |key: &str| ran.value(&format!("boots.1.probe.{key}"));
    assert_eq!(*probe("el"), request.el);
    for (key, expected) in [
        ("x1", "0x0"),
        ("x2", "0x0"),
        ("x3", "0x0"),
        ("daif", "0x3c0"),
        ("pending", "0x0"),
        // A kernel that had programs takes back what it let them use.
        ("cpacr", "0x0"),
        ("cntkctl", "0x0"),
    ] {
        assert_eq!(probe(key), expected, "{key}");
    }
    assert_eq!((*probe("cpus.all")).as_u64(), Some(request.smp.into()));
    assert_eq!((*probe("cpus.on")).as_u64(), Some(1));
    assert_eq!(probe("bootargs"), APPEND);
    // MMU and caches: SCTLR's M, C and I.
    let sctlr = hexadecimal(probe("sctlr").as_str().unwrap());
    assert_eq!(sctlr & (1 << 0 | 1 << 2), 0, "{sctlr:#x}");
    let size = request.page_size.unwrap().bytes();
    assert_eq!(*probe("from_page_size"), size);
    // Compared with the host's files, not with the kernels' records of each other.
    assert_eq!(probe("kernel.bytes").as_u64(), Some(kernel.len() as u64));
    assert_eq!(probe("kernel.digest"), &*digest(kernel));
    match initrd {
        Some(initrd) => {
            assert_eq!(probe("initrd.bytes").as_u64(), Some(initrd.len() as u64));
            assert_eq!(probe("initrd.digest"), &*digest(initrd));
        }
        None => assert!(probe("initrd").is_null(), "{}", probe("initrd")),
    }
    let copied = ran.number("kexec.bytes_copied");
    let given = kernel.len() + initrd.map_or(0, <[u8]>::len);
    if way.copy {
        let most = given as u64 + 4 * size.max(64 << 10);
        assert!(
            (given as u64..most).contains(&copied),
            "{copied} of {given}"
        );
    } else {
        assert_eq!(copied, 0, "there is plenty of room");
    }
    ran
}

fn hexadecimal(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

/// With a page size: every way, every level with one CPU and with four. With all page sizes every way has
/// met every level and both numbers of CPUs.
#[test_case(0)]
#[test_case(1)]
#[test_case(2)]
fn every_way_out_hands_over_the_bytes_and_nothing_else(place: usize) {
    let (kernel, initrd) = (image(1_234_567, 0), noise(3 << 20, 7));
    for index in 0..6 {
        let (cpu, el) = LEVELS[index % 3];
        let request = machine(PageSize::ALL[place], [1, 4][index / 3])
            .cpu(cpu)
            .el(el);
        let way = WAYS[(index + place) % 4];
        witnessed(request, &kernel, Some(&initrd), way);
    }
}

/// Bytes that fill no word, no line and no page, and as many as end just so.
#[test]
fn odd_sizes_are_whole() {
    let probe = image(0, 0).len();
    for (index, (behind, initrd)) in [(1, 1), (4095, 65_537), (65_536 - probe % 65_536, 131_072)]
        .into_iter()
        .enumerate()
    {
        let initrd = noise(initrd, 5);
        let way = WAYS[2 * (index % 2)];
        witnessed(
            machine(PageSize::ALL[index], 1),
            &image(behind, 0),
            Some(&initrd),
            way,
        );
    }
}

#[test]
fn an_image_that_needs_much_more_memory_than_it_has_bytes_gets_it() {
    for (size, way) in PageSize::ALL.into_iter().zip(WAYS) {
        let kernel = image(100_000, 96 << 20);
        let ran = witnessed(machine(size, 4), &kernel, None, way);
        // The memory that it zeroes itself may be in no cache; bytes in place were cleaned when
        // they were loaded.
        let cleaned = ran.number("kexec.lines_cleaned");
        if way.copy {
            assert!(cleaned >= (95 << 20) / 64, "{cleaned}");
        } else {
            assert_eq!(cleaned, 0);
        }
    }
}

#[test]
fn without_an_initramfs_none_is_reported() {
    for (size, way) in PageSize::ALL.into_iter().zip(WAYS.into_iter().rev()) {
        witnessed(machine(size, 1), &image(0, 0), None, way);
    }
}

#[test]
fn a_large_initramfs_arrives_whole() {
    let initrd = noise((100 << 20) + 13, 11);
    for (size, way) in PageSize::ALL.into_iter().zip(WAYS) {
        let request = machine(size, 4).memory(1 << 30);
        witnessed(request, &image(0, 0), Some(&initrd), way);
    }
}

/// The probe looks: a single bit of any segment that changes on the way is seen, and by it alone, since
/// all that this kernel could look at was well.
#[test]
fn a_byte_that_is_not_the_one_that_was_loaded_is_seen() {
    let (kernel, initrd) = (image(1_234_567, 0), noise((3 << 20) + 1, 7));
    let (kernel_file, initrd_file) = (file(&kernel), file(&initrd));
    for (index, size) in PageSize::ALL.into_iter().enumerate() {
        let page = size.bytes();
        // As they are copied: image, initramfs, tree, each in whole pages.
        let pages = |bytes: &[u8]| (bytes.len() as u64).next_multiple_of(page);
        let (first, second) = (pages(&kernel), pages(&kernel) + pages(&initrd));
        for (byte, what) in [
            (100, "the image"),
            (kernel.len() as u64 - 1, "the image"),
            (first, "the initramfs"),
            (first + initrd.len() as u64 - 1, "the initramfs"),
            // Among what the tree has at its end, which are names of properties.
            (second + 2000, "the device tree"),
        ] {
            let request = machine(size, 1).append(format!("granule.test=kexec:decay@{byte}"));
            let way = way(true, index == 1);
            let paths = (kernel_file.path(), Some(initrd_file.path()));
            let request = leaving(request, paths.0, paths.1, way);
            let ran = boots(&request, Outcome::SelfCheckFailed);
            let reason = format!("{what} is not what was loaded");
            ran.has("boots.1.reason", reason);
        }
    }
}
