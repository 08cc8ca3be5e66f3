//! The programs in `examples`: their format and lints, and their boots with each page size. Each boot must
//! print exactly the lines that are expected of it.
//!
//! The expectations are arithmetic: how many tables the maps take, how many entries change, and which status
//! a fault has. Nothing here measures time, except to end a guest that hangs.

use std::fmt::Write as _;

use anyhow::Result;

use crate::{boots, guest};
use xtask::workspace::{KERNEL_TARGET, cargo, root, run, target_dir};

/// The page sizes: name, bytes, and the word that selects it.
const SIZES: [(&str, u64, &str); 3] = [
    ("4k", 4 << 10, "page=4k"),
    ("16k", 16 << 10, "page=16k"),
    ("64k", 64 << 10, "page=64k"),
];

/// One boot of one program.
struct Boot {
    program: &'static str,
    /// The options of QEMU.
    options: Vec<&'static str>,
    /// The console's lines.
    expected: String,
}

/// Formats, lints, builds and boots the examples.
pub(crate) fn check() -> Result<()> {
    let target = target_dir().join("examples");
    let in_examples = |before: &[&str], is_built: bool, after: &[&str]| {
        let mut command = cargo(before);
        command.arg("--manifest-path");
        command.arg(root().join("examples/Cargo.toml"));
        if is_built {
            command.args(["--release", "--workspace", "--target", KERNEL_TARGET]);
            command.arg("--target-dir").arg(&target);
        }
        command.args(after);
        run(command)
    };
    in_examples(&["fmt", "--all", "--check"], false, &[])?;
    in_examples(&["clippy"], true, &["--", "-D", "warnings"])?;
    in_examples(&["build"], true, &[])?;
    let boots: Vec<Boot> = bare_metal()
        .chain(firmware())
        .chain(hypervisor())
        .chain(hw_checks())
        .chain([with_aarch64_paging()])
        .collect();
    boots::all(
        "examples",
        &boots,
        |boot| format!("{} ({})", boot.program, boot.options.join(" ")),
        |boot| {
            let program = target.join(KERNEL_TARGET).join("release");
            let program = program.join(boot.program);
            match guest::console(&program, &boot.options, guest::LIMIT) {
                Ok(console) if console == boot.expected => None,
                Ok(console) => Some(format!(
                    "the console is\n{console}expected\n{}",
                    boot.expected
                )),
                Err(error) => Some(format!("{error:#}")),
            }
        },
    )
}

/// The line with the counts.
fn counts(what: &str, stores: u64, tables: u64, [tlbi, dsb, isb]: [u64; 3]) -> String {
    format!(
        "{what}: Counts {{ stores: {stores}, tables: {tables}, tlbi: {tlbi}, dsb: {dsb}, isb: {isb} }}\n"
    )
}

/// The kernel: with a CPU that splits live blocks, and one that must not.
fn bare_metal() -> impl Iterator<Item = Boot> {
    let boots = [
        ("max", "page=4k", "4k"),
        ("max", "page=16k", "16k"),
        ("max", "page=64k", "64k"),
        // A word that is not a page size: the smallest.
        ("max", "page=8k", "4k"),
        ("cortex-a72", "page=4k", "4k"),
        ("cortex-a72", "page=64k", "64k"),
        // It has no 16K pages.
        ("cortex-a72", "page=16k", "4k"),
    ];
    boots.into_iter().map(|(cpu, append, size)| Boot {
        program: "bare-metal",
        options: vec!["-M", "virt", "-cpu", cpu, "-append", append],
        expected: bare_metal_console(cpu == "max", size),
    })
}

/// The console of the kernel, if the CPU `splits` live blocks or not.
fn bare_metal_console(splits: bool, size: &str) -> String {
    let page = SIZES.iter().find(|(name, ..)| *name == size);
    let page = page.map_or(0, |(_, bytes, _)| *bytes);
    let entries = page / 8;
    // The second half of RAM, 512 MiB, in the largest leaves that the page size has below 1 GiB.
    let half = 512 << 20;
    let block = entries * page;
    // The tables of UART and image are one chain of each down to the pages; they share the root, and with
    // 16K pages (64 GiB to a level 2 table) level 2, with 64K pages level 2 is the root. The root's entries are
    // stored one by one: links of tables, and with 64K pages the block behind the image.
    let (tables, later) = match size {
        "4k" => (5, 2),
        "16k" => (4, 1),
        _ => (3, 3),
    };
    let (leaves, tables, later) = if splits {
        (half / block, tables, later)
    } else {
        // In pages: a table for each block, linked one by one where the blocks were stored one by one,
        // and otherwise as part of a table that is filled.
        (half / page, tables + half / block, later)
    };
    let mut stores = tables * entries + later;
    let mut text = match splits {
        true => format!("{size} pages, BBM level 2: TLB conflict aborts are handled\n"),
        false => format!("{size} pages, BBM level 0: the CPU changes no leaf's size in place\n"),
    };
    text += &counts("MMU on", stores, tables, [0, 1, 1]);
    text += "write: no fault\n";
    stores += leaves;
    text += &counts("read-only", stores, tables, [1, 3, 2]);
    // A permission fault at the level of the leaf.
    let level = if splits { 2 } else { 3 };
    let _ = writeln!(text, "write: fault status {:#04x}", 0x0c + level);
    let mut all = tables;
    if splits {
        // A table is filled and linked. With 4K pages 16 blocks have the contiguous hint, which goes first.
        let group = if size == "4k" { 16 } else { 0 };
        stores += entries + 1 + group;
        all += 1;
    }
    stores += 1;
    text += &counts("split", stores, all, [2, 5, 3]);
    text += "write: no fault\nwrite beside: fault status 0x0f\n";
    text += &counts("unmapped", stores + 1, all, [3, 7, 4]);
    text + "read: fault status 0x07\nread beside: no fault\ndone\n"
}

/// The firmware at EL3 and at EL2.
fn firmware() -> impl Iterator<Item = Boot> {
    let levels = [("El3", "virt,secure=on"), ("El2", "virt,virtualization=on")];
    levels.into_iter().flat_map(move |(regime, machine)| {
        SIZES.into_iter().map(move |(size, page, append)| Boot {
            program: "firmware",
            options: vec!["-M", machine, "-cpu", "max", "-append", append],
            expected: firmware_console(regime, size, page),
        })
    })
}

fn firmware_console(regime: &str, size: &str, page: u64) -> String {
    // RES1 31 and 23, walks inner shareable and write-back, T0SZ 28, PS 52 bits with FEAT_LPA2 and TG0:
    // 48 bits for 64K pages, whose 52 bits need no DS. DS is bit 32.
    let tcr: u64 = 1 << 31 | 1 << 23 | 3 << 12 | 5 << 8 | 28;
    let (granule, pa, ds) = match size {
        "4k" => (0, 6, 1),
        "16k" => (2, 6, 1),
        _ => (1, 6, 0),
    };
    let tcr = tcr | pa << 16 | granule << 14 | ds << 32;
    // Tables, stores into existing tables, and the level at which nothing is mapped behind RAM.
    let (tables, later, nothing) = match size {
        "4k" => (6, 2, 0x05),
        "16k" => (4, 18, 0x06),
        _ => (4, 3, 0x06),
    };
    let mut text = String::from("twice: 0x3f000000 is already mapped\n");
    let _ = writeln!(text, "{regime}, {size} pages, TCR {tcr:#x}");
    text += &counts("MMU on", tables * (page / 8) + later, tables, [0, 1, 1]);
    text += "write to data: no fault\nwrite to constants: fault status 0x0f\n";
    let _ = writeln!(text, "write to nothing: fault status {nothing:#04x}");
    text + "done\n"
}

/// The hypervisor, whose guest gets a page, cannot write it any more, and loses it.
fn hypervisor() -> impl Iterator<Item = Boot> {
    let machine = "virt,virtualization=on";
    SIZES.into_iter().map(move |(size, page, append)| Boot {
        program: "hypervisor",
        options: vec!["-M", machine, "-cpu", "max", "-append", append],
        expected: hypervisor_console(size, page),
    })
}

fn hypervisor_console(size: &str, page: u64) -> String {
    let entries = page / 8;
    // 36 bits: with 4K pages a walk starts at level 1 with one table, and each GiB has two tables below.
    // With 16K and 64K pages it starts at level 2. The page is in another GiB (32 MiB, 512 MiB) than the
    // guest's memory.
    let (levels, start) = if size == "4k" { (3, 1) } else { (2, 2) };
    let below = levels - 1;
    let mut text = format!("{size} pages");
    // The root is cleared, each other table filled once, and the first of them linked.
    let mut stores = levels * entries + 1;
    text += &counts("", stores, levels, [0, 1, 1]);
    text += "call 1: 7\n";
    let fault = |status: u64| format!("fault at 0x200000000: status {status:#04x}\n");
    // A translation fault at the level of the root.
    text += &fault(0x04 + start);
    stores += below * entries + 1;
    text += &counts("changed", stores, levels + below, [0, 2, 2]);
    text += "call 2: 42\n";
    // A TLBI by intermediate physical address, then one for the entries of both stages, each with a DSB.
    stores += 1;
    text += &counts("changed", stores, levels + below, [2, 5, 3]);
    text += &fault(0x0f);
    text += "call 3: 42\n";
    // The page, and for each table that became empty its link and its last entry.
    stores += 1 + 2 * below;
    text += &counts("changed", stores, levels, [4, 8, 4]);
    text += &fault(0x04 + start);
    text + "call 4: 42\ndone\n"
}

/// The checks of `granule::hw`, at each exception level of a Cortex-A72, whose ID registers its Technical
/// Reference Manual and QEMU agree in.
fn hw_checks() -> impl Iterator<Item = Boot> {
    let levels = [
        (1, "virt"),
        (2, "virt,virtualization=on"),
        (3, "virt,secure=on"),
    ];
    levels.into_iter().map(|(level, machine)| {
        let mut expected = format!("EL{level}\n");
        // EL0 shares the regime of EL1, so aborts from there count too. 0x20 and 0x24 are the classes of
        // instruction and data aborts from a lower level, 0x21 and 0x25 those from the same level.
        let own: &[u64] = if level == 1 {
            &[0x20, 0x21, 0x24, 0x25]
        } else {
            &[0x21, 0x25]
        };
        let mut handlers = vec![("vector", own), ("function", own)];
        if level == 2 {
            let of_guests: &[u64] = &[0x20, 0x24];
            let names = ["vector for guests", "function for guests"];
            handlers.extend(names.map(|name| (name, of_guests)));
        }
        for (what, classes) in handlers {
            let _ = writeln!(expected, "{what}:");
            for class in classes {
                let _ = writeln!(expected, "class {class:#x}, status 0x30");
            }
            let count = 2 * classes.len();
            let _ = writeln!(expected, "{count} of 8192 syndromes, 0 changed a register");
        }
        expected += "a vector fits: true\n\
                     midr 0x410fd083, mmfr0 0x1124, isar0 0x11120\nmmfr1 0x0, mmfr2 0x0\n\
                     kept: true, lines of 64 bytes\n";
        Boot {
            program: "hw-checks",
            options: vec!["-M", machine, "-cpu", "cortex-a72"],
            expected,
        }
    })
}

/// The same kernel on another crate, which counts nothing and has 4K pages only.
fn with_aarch64_paging() -> Boot {
    let console = "4k pages\nMMU on\nwrite: no fault\nread-only\nwrite: fault status 0x0f\nwritable\n\
                   write: no fault\nwrite beside: fault status 0x0f\nunmapped\nread: fault status 0x07\n\
                   read beside: no fault\ndone\n";
    Boot {
        program: "with-aarch64-paging",
        options: vec!["-M", "virt", "-cpu", "max"],
        expected: console.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn source(program: &str) -> String {
        let path = root().join("examples").join(program).join("src");
        let files = std::fs::read_dir(&path).unwrap().count();
        assert_eq!(files, 1, "{program} has one file of code");
        std::fs::read_to_string(path.join("main.rs")).unwrap()
    }

    fn page() -> String {
        std::fs::read_to_string(root().join("docs/kernel-in-an-hour.md")).unwrap()
    }

    /// The code of a source, without its comments.
    fn code(source: &str) -> String {
        let lines = source
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default());
        lines.collect::<Vec<_>>().join("\n")
    }

    fn words(code: &str) -> BTreeSet<&str> {
        code.split(|c: char| !c.is_alphanumeric() && c != '_')
            .collect()
    }

    /// The types, traits and macros that `granule` exports, and the module that the example imports.
    fn exports() -> BTreeSet<String> {
        let items = std::fs::read_to_string(root().join("crates/granule/api.txt")).unwrap();
        let kinds = ["struct ", "enum ", "trait ", "macro "];
        let named = items.lines().filter_map(|line| {
            let rest = kinds
                .iter()
                .find_map(|kind| Some(line.split_once(kind)?.1))?;
            let path = rest
                .split(['<', '(', '!', ' '])
                .next()?
                .trim_end_matches(':');
            Some(path.rsplit_once("::")?.1.to_owned())
        });
        named.chain(["hw".to_owned()]).collect()
    }

    fn unsafe_blocks(code: &str) -> usize {
        code.matches("unsafe {").count() + code.matches("unsafe impl").count()
    }

    /// The first thing that a stranger reads is short.
    #[test]
    fn each_example_has_at_most_two_hundred_lines() {
        for program in [
            "bare-metal",
            "firmware",
            "hypervisor",
            "with-aarch64-paging",
        ] {
            let lines = source(program).lines().count();
            assert!((100..=200).contains(&lines), "{program} has {lines} lines");
        }
    }

    #[test]
    fn the_page_on_a_kernel_in_an_hour_shows_the_code_of_the_example() {
        let (page, source) = (page(), source("bare-metal"));
        let lines: BTreeSet<&str> = source.lines().map(str::trim).collect();
        let mut shown = 0;
        for block in page.split("```rust\n").skip(1) {
            for line in block.split("```").next().unwrap().lines().map(str::trim) {
                assert!(lines.contains(line), "not in the example: {line}");
                shown += 1;
            }
        }
        assert!(shown > 20, "{shown}");
    }

    #[test]
    fn the_page_compares_both_crates_by_their_programs() {
        let (ours, theirs) = (source("bare-metal"), source("with-aarch64-paging"));
        let row = |what: &str, ours: usize, theirs: usize| {
            let row = format!("| {what} | {ours} | {theirs} |");
            assert!(
                page().contains(&row),
                "docs/kernel-in-an-hour.md must have {row}"
            );
        };
        row("lines", ours.lines().count(), theirs.lines().count());
        let exported = exports();
        let (ours, theirs) = (code(&ours), code(&theirs));
        let used = words(&ours)
            .into_iter()
            .filter(|word| exported.contains(*word))
            .count();
        let imported = theirs
            .lines()
            .filter_map(|line| line.strip_prefix("use aarch64_paging::"));
        let imported: usize = imported
            .map(|rest| {
                words(rest)
                    .into_iter()
                    .filter(|word| word.starts_with(char::is_uppercase))
                    .count()
            })
            .sum();
        row("names of the crate", used, imported);
        let [ours, theirs] = [ours, theirs].map(|code| unsafe_blocks(&code));
        row("unsafe blocks", ours, theirs);
    }
}
