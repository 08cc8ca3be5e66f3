//! Modules: one file, loaded under every page size, used as a disk, refused where a rule is broken, and unloaded
//! without a trace: no frame is lost, and the kernel's tables have the leaves that they had.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Initramfs, Outcome, Request};
use test_case::test_case;

use crate::booted::Booted;
use crate::hooked::ends_with;
use crate::image::built;
use crate::user::machine::{machine_at, program};

/// A file that `cargo xtask user` makes.
fn made(name: &str) -> Vec<u8> {
    std::fs::read(built(name, "cargo xtask user")).unwrap()
}

fn disk() -> Vec<u8> {
    made("ram-disk.o")
}

/// The archive that the program for tests looks for.
fn archive() -> Initramfs {
    Initramfs::new()
        .program("/init", &program())
        .file("/ram-disk.o", &disk())
        .directory("/dev")
        .block_device("/dev/ram0", (1, 0))
}

/// Boots the program for tests on the test image, where it counts leaves too, unless they come and go with each page.
#[track_caller]
fn well(request: &Request, archive: Initramfs, words: &str, line: &str) -> Booted {
    let append = request.append.clone().unwrap_or_default();
    let test = if append.contains("debug_pagealloc") {
        ""
    } else {
        "granule.test=alloc-failure"
    };
    let request = request
        .clone()
        .append(format!("{append} {test} -- {words}"));
    let ran = ends_with(&request, archive, Outcome::Ok);
    ran.prints_line(line);
    ran.frames_came_back();
    ran
}

/// Each page size at either level, on one CPU and on four.
#[track_caller]
fn everywhere(words: &str, line: &str) {
    for size in PageSize::ALL {
        for (cpus, el) in [(1, 1), (4, 2)] {
            well(&machine_at(size, cpus, el), archive(), words, line);
        }
    }
}

#[test]
fn a_module_is_loaded_used_and_unloaded() {
    everywhere("modules", "loaded");
}

#[test]
fn memory_may_run_out_at_every_allocation_of_a_load() {
    everywhere("modules-alloc-failure", "out of memory");
}

/// The levels of FEAT_BBM, with which the linear map's leaves are split and merged or are pages, maps without pages
/// of their own permissions, and a map whose free pages are invalid.
#[test]
fn both_mappings_change_on_every_kind_of_map() {
    for (cpu, size, words, test) in [
        ("max", K4, "rodata=full", "modules"),
        ("max", K16, "arm64.bbm=1", "modules"),
        ("max", K64, "arm64.bbm=0", "modules"),
        ("cortex-a72", K64, "rodata=off", "modules writable"),
        ("max", K16, "rodata=noalias", "modules writable"),
        ("neoverse-n1", K4, "debug_pagealloc=on", "modules"),
    ] {
        let request = machine_at(size, 2, 2).cpu(cpu).append(words);
        well(&request, archive(), test, "loaded");
    }
}

#[test_case(K4, 1)]
#[test_case(K16, 1)]
#[test_case(K64, 4)]
fn a_thousand_loads_lose_no_frame_and_no_leaf(size: PageSize, cpus: u32) {
    let line = "loaded and unloaded";
    well(
        &machine_at(size, cpus, 1),
        archive(),
        "modules-thousand 1000",
        line,
    );
}

/// Changes of the sound file, made where its section headers say.
struct Broken(Vec<u8>);

impl Broken {
    fn word(&self, at: usize) -> usize {
        usize::try_from(u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap())).unwrap()
    }

    /// The header of the first section with this type and these flags.
    fn section(&self, kind: u8, flags: u8) -> usize {
        let (start, count) = (self.word(40), usize::from(self.0[60]));
        let mut headers = (0..count).map(|number| start + 64 * number);
        headers
            .find(|at| self.0[at + 4] == kind && self.0[at + 8] == flags)
            .unwrap()
    }

    /// The place of a text, of which there must be one.
    fn text(&self, text: &[u8]) -> usize {
        let mut places = (0..self.0.len()).filter(|at| self.0[*at..].starts_with(text));
        let place = places.next().unwrap();
        assert_eq!(places.next(), None);
        place
    }

    /// The first relocation of this kind.
    fn relocation(&self, kind: u32) -> usize {
        let (start, count) = (self.word(40), usize::from(self.0[60]));
        let headers = (0..count).map(|number| start + 64 * number);
        let tables = headers.filter(|at| self.0[at + 4] == 4);
        let mut all = tables.flat_map(|at| {
            let (from, bytes) = (self.word(at + 24), self.word(at + 32));
            (from..from + bytes).step_by(24)
        });
        all.find(|at| self.0[at + 8..at + 12] == kind.to_le_bytes())
            .unwrap()
    }
}

/// A file that is refused: what is changed, the error's number, and the line on the console.
type Refused = (fn(&mut Broken), u32, &'static str);

const CALL26: u32 = 283;

const REFUSED: [Refused; 11] = [
    (
        |it| it.0.truncate(100),
        8,
        "it is not a 64-bit little-endian ELF file, or is cut off",
    ),
    (
        |it| it.0.truncate(it.0.len() - 1),
        8,
        "it is not a 64-bit little-endian ELF file, or is cut off",
    ),
    (|it| it.0[18] = 62, 8, "it is not for AArch64"),
    (|it| it.0[16] = 3, 8, "its type is 3, expected 1 (REL)"),
    (
        |it| {
            let at = it.text(b"granmod\0");
            it.0[at + 8] ^= 1;
        },
        8,
        "it is for another kernel's build",
    ),
    (
        |it| {
            let at = it.text(b"granule_vmalloc\0");
            it.0[at + 14] = b'k';
        },
        2,
        "this kernel exports no function granule_vmallok",
    ),
    (
        |it| {
            let at = it.section(8, 3);
            it.0[at + 8] = 7;
        },
        8,
        "is writable and executable",
    ),
    (
        |it| {
            let at = it.relocation(CALL26);
            it.0[at + 8..at + 12].copy_from_slice(&311_u32.to_le_bytes());
        },
        8,
        "relocation 311 in section",
    ),
    (
        |it| {
            let at = it.relocation(CALL26);
            it.0[at + 16..at + 24].copy_from_slice(&(-128_i64 << 20).to_le_bytes());
        },
        8,
        "relocation 283 cannot reach symbol granule_",
    ),
    (
        |it| {
            let at = it.relocation(CALL26);
            it.0[at + 7] = 0x7f;
        },
        8,
        "lies outside of section",
    ),
    (
        |it| {
            let at = it.text(b"module_exit\0");
            it.0[at] = b'M';
        },
        8,
        "it has no function module_exit in its code",
    ),
];

#[test]
fn each_file_that_breaks_a_rule_is_refused_with_a_line() {
    for (size, cpus) in PageSize::ALL.into_iter().zip([1, 4, 1]) {
        // Lines that come fast are limited in number.
        for part in REFUSED.chunks(4) {
            let (mut archive, mut words) = (archive(), "modules-refused".to_owned());
            for (number, (change, error, _)) in part.iter().enumerate() {
                let mut broken = Broken(disk());
                change(&mut broken);
                let path = format!("/broken{number}.o");
                words += &format!(" {path} {error}");
                archive = archive.file(&path, &broken.0);
            }
            let ran = well(&machine_at(size, cpus, 2), archive, &words, "all refused");
            for (_, _, line) in part {
                ran.mentions(line);
            }
            let lines = ran.console.lines();
            let refused = lines.filter(|line| line.contains("module refused: "));
            assert_eq!(refused.count(), part.len(), "{}", ran.console);
        }
    }
}

/// The program that loads and unloads, as the first process.
#[test]
fn the_loader_does_its_words_and_each_error_is_one_line() {
    let archive = || archive().program("/init", &made("granule-user-module"));
    for (size, words, line) in [
        (K4, "load /ram-disk.o unload ram_disk", ""),
        (K16, "load /ram-disk.o", ""),
        (
            K64,
            "load /ram-disk.o load /ram-disk.o",
            "load /ram-disk.o: EEXIST: it is loaded",
        ),
        (K4, "unload ram_disk", "unload ram_disk: ENOENT: "),
        (K16, "load /init", "load /init: ENOEXEC: "),
        (K64, "load", "load: nothing behind it"),
        (K4, "insert x", "insert: no such command"),
    ] {
        let outcome = if line.is_empty() {
            Outcome::Ok
        } else {
            Outcome::GuestExit
        };
        let request = machine_at(size, 1, 1).append(format!("-- {words}"));
        let ran = ends_with(&request, archive(), outcome);
        ran.frames_came_back();
        let lines = ran
            .console
            .lines()
            .filter(|it| it.starts_with("granule-user-module: "));
        let lines: Vec<_> = lines.collect();
        assert_eq!(
            lines.len(),
            usize::from(!line.is_empty()),
            "{words}: {lines:?}"
        );
        assert!(
            lines.iter().all(|it| it.contains(line)),
            "{words}: {lines:?}"
        );
    }
}

/// An archive whose first process loads this module.
fn loads(module: &str) -> Initramfs {
    Initramfs::new()
        .program("/init", &made("granule-user-module"))
        .file("/module.o", &made(module))
}

/// Machines on which the guard pool comes from early memory, in a map of blocks that cannot be split and in one of pages,
/// and one where it is any pages: the CPU, the page size and the words.
const GUARDED: [(&str, PageSize, &str); 5] = [
    ("max", K4, ""),
    ("max", K64, "arm64.bbm=1"),
    ("neoverse-n1", K16, "rodata=off"),
    ("cortex-a72", K64, "rodata=noalias"),
    ("neoverse-n1", K4, "rodata=off linear_map=base"),
];

#[test]
fn one_of_some_objects_of_modules_is_guarded() {
    for ((cpu, size, words), (pool, line)) in GUARDED.into_iter().zip([
        (
            "64",
            "10 of 1000 objects were sampled (one in 100), 0 of 31 places",
        ),
        (
            "4,1",
            "1000 of 1000 objects were sampled (one in 1), 0 of 1 places",
        ),
        (
            "256,7",
            "142 of 1000 objects were sampled (one in 7), 0 of 127 places",
        ),
        (
            "8,10",
            "100 of 1000 objects were sampled (one in 10), 0 of 3 places",
        ),
        (
            "16,1000",
            "1 of 1000 objects were sampled (one in 1000), 0 of 7 places",
        ),
    ]) {
        let request = machine_at(size, 2, 2).cpu(cpu);
        let words = format!("granule.guard={pool} {words} -- load /module.o unload guard_report");
        let ran = ends_with(
            &request.append(words.as_str()),
            loads("guard-report.o"),
            Outcome::Ok,
        );
        ran.prints(&format!("granule: guard: {line} are in use"));
        ran.frames_came_back();
    }
}

#[test]
fn without_a_pool_no_object_is_guarded() {
    for (words, line) in [
        ("", "guard: there is none"),
        (
            "granule.guard=5",
            "granule.guard=5: expected PAGES[,RATE]: a power of two",
        ),
    ] {
        let words = format!("{words} -- load /module.o");
        let request = machine_at(K16, 1, 1).append(words.as_str());
        let ran = ends_with(&request, loads("guard-report.o"), Outcome::Ok);
        ran.prints(line);
        ran.frames_came_back();
    }
}

#[test]
fn a_write_behind_an_object_is_trapped_and_names_who_had_it() {
    for (cpu, size, words) in GUARDED {
        let request = machine_at(size, 1, 1).cpu(cpu);
        let words = format!("granule.guard=64,1 {words} -- load /module.o");
        let ran = ends_with(
            &request.append(words.as_str()),
            loads("out-of-bounds.o"),
            Outcome::Panic,
        );
        // The reason is cut off behind a number of bytes; the line on the console is whole.
        ran.fails_with("that is a guard page, byte 24 of an object of 24 bytes");
        let mut lines = ran.console.lines();
        let line = lines
            .find(|line| line.starts_with("granule: panic: "))
            .unwrap();
        let (_, owners) = line.split_once(", allocated by out_of_bounds+0x").unwrap();
        assert!(owners.contains(", freed by out_of_bounds+0x"), "{line}");
    }
}
