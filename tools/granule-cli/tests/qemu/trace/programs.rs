//! Traces of boots with programs: the tables of processes, TTBR0 with its ASIDs, invalidations by
//! ASID and updates of entries by hardware are recorded like the kernel's own.

use std::collections::BTreeSet;

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::check::{self, CheckOptions};
use granule_cli::{Initramfs, Request};
use tempfile::NamedTempFile;
use test_case::test_case;

use crate::image::built;
use crate::trace::traces::{Recorded, checked, record_ok, with_line};

/// Boots with the program for tests, which does what `words` name, and records.
pub(crate) fn runs(words: &str, change: impl FnOnce(&mut Request)) -> Recorded {
    let file = NamedTempFile::new().unwrap();
    let program = |name| std::fs::read(built(name, "cargo xtask user")).unwrap();
    let archive = Initramfs::new()
        .program("/init", &program("granule-user"))
        .program("/bench", &program("granule-user-bench"))
        .file("/ram-disk.o", &program("ram-disk.o"))
        .directory("/dev")
        .block_device("/dev/ram0", (1, 0));
    archive.write(file.path()).unwrap();
    record_ok(|request| {
        request.memory = 256 << 20;
        request.trace_buffer = Some(64 << 20);
        request.initrd = Some(file.path().to_owned());
        change(request);
        let append = request.append.take().unwrap_or_default();
        request.append = Some(format!("{append} -- {words}"));
    })
}

/// Whether `granule check` finds nothing, as it is called without options.
fn is_clean(text: &str) -> bool {
    check(text).is_clean()
}

pub(crate) fn check(text: &str) -> check::Checked {
    let checked = check::check(text.as_bytes(), &CheckOptions::default(), &mut |_| ());
    checked.unwrap_or_else(|error| panic!("{error}"))
}

/// The ASID of a TLBI by ASID, or by address and ASID.
fn asid_of(line: &str) -> Option<u64> {
    let mut words = line.strip_prefix("tlbi ")?.split(' ').skip(1);
    let name = words.next()?;
    let by_asid = ["aside1", "vae1", "vale1", "rvae1", "rvale1"];
    let operand = words.next()?.strip_prefix("0x")?;
    let operand = u64::from_str_radix(operand, 16).ok()?;
    let named = by_asid
        .iter()
        .any(|one| name.trim_end_matches("is") == *one);
    named.then_some(operand >> 48)
}

#[test]
fn a_boot_with_invalid_free_pages_and_a_program_ends() {
    for size in [K4, K16] {
        for cpus in [1, 2] {
            let recorded = runs("hello", |request| {
                request.page_size = Some(size);
                request.smp = cpus;
                request.append = Some("debug_pagealloc=on".into());
            });
            let checked = check(&recorded.text());
            assert!(checked.header.complete, "{size:?} {cpus}");
            assert!(checked.is_clean(), "{size:?} {cpus}:\n{}", checked.text());
        }
    }
}

/// Both mappings of a module change, and their leaves are merged again, where blocks are split live and in a map of pages.
#[test]
fn a_module_is_loaded_and_unloaded() {
    for (size, cpu, cpus) in [(K4, "max", 2), (K16, "max", 1), (K64, "neoverse-n1", 2)] {
        let recorded = runs("modules", |request| {
            request.page_size = Some(size);
            request.cpu = cpu.into();
            request.smp = cpus;
        });
        let checked = check(&recorded.text());
        assert!(checked.header.complete, "{size:?} {cpu}");
        assert!(checked.is_clean(), "{size:?} {cpu}:\n{}", checked.text());
    }
}

/// Each pair of page sizes: what every CPU did on its way from a program to one of another size, with and without
/// TLBIs by range and with hardware that sets flags.
// The second has memory tests, a hostile program, the benchmark and programs that fork and end each other too, of all
// page sizes at once.
#[test_case(K4, "neoverse-n1", "sizes")]
#[test_case(
    K16,
    "max",
    "beside copies memory groups areas vfork preempt sizes instructions /bench,1048576,1"
)]
#[test_case(K64, "max", "sizes")]
fn programs_of_every_size_keep_the_rules(size: PageSize, cpu: &str, words: &str) {
    let recorded = runs(words, |request| {
        request.cpu = cpu.into();
        request.page_size = Some(size);
        request.smp = 4;
    });
    let checked = check(&recorded.text());
    assert!(checked.header.complete, "{size:?}");
    assert!(checked.is_clean(), "{size:?}:\n{}", checked.text());
    assert_eq!(checked.header.page_bytes, size.bytes());
    // Not every CPU has 16K pages.
    assert!(checked.text().contains("4K, "), "{size:?}");
    assert!(checked.text().contains("64K pages"), "{size:?}");
}

/// EPD0 in a line that writes TCR.
fn disables_walks(line: &str) -> bool {
    let tcr = line.starts_with("msr ") && line.contains(" tcr_el1 ");
    let value = line.rsplit("0x").next().filter(|_| tcr);
    value.is_some_and(|value| u64::from_str_radix(value, 16).unwrap() & 1 << 7 != 0)
}

#[test]
fn each_step_between_programs_of_two_page_sizes_left_out_is_noticed() {
    let text = runs("sizes", |request| request.page_size = Some(K4)).text();
    assert!(is_clean(&text));
    let lines: Vec<&str> = text.lines().collect();
    // From EPD0 set to EPD0 cleared: where TTBR0 and TCR are written with an ISB before and after both.
    let is_switch = |at: &usize| {
        disables_walks(lines[*at])
            && lines[at + 2].contains(" ttbr0_el1 ")
            && disables_walks(lines[at + 3])
    };
    let switches: Vec<usize> = (0..lines.len() - 10).filter(is_switch).collect();
    assert!(switches.len() > 10, "{}", switches.len());
    for at in [switches[2], switches[switches.len() / 2]] {
        // TTBR0 is that of an empty root before, walks need not begin, and a return to EL0 is what an ISB is: all
        // other lines are needed, and these in this order.
        let needed = ["isb", "msr", "isb", "tlbi", "dsb", "isb"];
        for (step, what) in [1, 3, 4, 5, 6, 7].into_iter().zip(needed) {
            let line = lines[at + step];
            assert!(line.starts_with(what), "{line}");
            let without = with_line(&text, at + step + 1, None);
            assert!(!is_clean(&without), "line {}: {line}", at + step + 1);
        }
    }
}

/// The program's own lines: the kernel's depend on time.
fn output(boot: &granule_cli::Boot) -> Vec<String> {
    let console = boot.console_text();
    let lines = console.lines().map(str::trim_end);
    let own = lines.filter(|line| {
        !line.is_empty() && !line.contains("granule") && !line.starts_with("map_mem: ")
    });
    own.map(str::to_owned).collect()
}

#[test]
fn traced_boots_of_programs_end_as_untraced_ones() {
    for (size, words, cpus) in [
        (K4, "hello", 1),
        (K4, "fork", 3),
        (K16, "copies", 1),
        (K16, "areas", 3),
        (K64, "frames", 1),
        (K64, "storm", 3),
    ] {
        let machine = |request: &mut Request| {
            request.page_size = Some(size);
            request.smp = cpus;
        };
        let what = format!("{words}, {size:?}, {cpus} CPUs");
        let traced = runs(words, machine);
        let plain = runs(words, |request| {
            machine(request);
            request.trace = None;
            request.trace_buffer = None;
        });
        assert!(plain.ran.boot.trace.is_none(), "{what}");
        assert_eq!(output(&traced.ran.boot), output(&plain.ran.boot), "{what}");
        for key in ["exit_code", "signal", "processes"] {
            let key = format!("user.{key}");
            traced.ran.has(&key, plain.ran.number(&key));
        }
        let (before, after) = ("user.frames_before", "user.frames_after");
        traced.ran.has(before, traced.ran.number(after));
    }
}

#[test]
fn changes_of_program_tables_are_recorded_and_break_no_rule() {
    for size in PageSize::ALL {
        // Without updates by hardware; with them; and with every entry of a group stored by itself.
        for (cpu, cpus, words) in [
            ("max", 1, "copies"),
            ("max", 3, "storm"),
            ("cortex-a72", 2, "copies"),
            ("cortex-a72", 1, "areas"),
        ] {
            if size == K16 && cpu == "cortex-a72" {
                continue; // It has no 16K pages.
            }
            let recorded = runs(words, |request| {
                request.page_size = Some(size);
                request.smp = cpus;
                request.cpu = cpu.into();
            });
            let text = recorded.text();
            let checked = check(&text);
            let what = format!("{words}, {size:?}, {cpu}, {cpus} CPUs");
            assert!(checked.header.complete, "{what}");
            assert!(checked.is_clean(), "{what}:\n{}", checked.text());
            assert!(checked.unchecked.is_empty(), "{what}");
            let asids: BTreeSet<u64> = text.lines().filter_map(asid_of).collect();
            assert!(asids.len() > 1, "{what}: TLBIs of ASIDs {asids:?}");
            // Every process is entered under its own.
            let entered = |asid: u64| {
                let value = format!(" ttbr0_el1 {asid:#x}");
                text.lines().any(|line| line.contains(&value))
            };
            assert!(asids.into_iter().all(entered), "{what}");
            let relied =
                |line: &str| line.starts_with("assume-visible ") && line.split(' ').count() == 5;
            assert!(text.lines().any(relied), "{what}");
            // Both kinds of CPU have entries that are found: only those of `max` were changed by it.
            let found = text.lines().filter(|line| line.starts_with("found "));
            assert!(found.count() > 0, "{what}");
        }
    }
}

/// A store that is missing shows where the kernel finds the entry.
#[test]
fn an_entry_that_was_never_stored_is_found() {
    let text = runs("copies", |request| request.page_size = Some(K4)).text();
    let lines: Vec<&str> = text.lines().collect();
    let address = |line: &'static str| move |at: &&str| at.starts_with(line);
    let found = lines.iter().rposition(address("found ")).unwrap();
    let at = lines[found].split(' ').nth(2).unwrap();
    let stores = |line: &&str| line.starts_with("store ") && line.split(' ').nth(2) == Some(at);
    let stored = lines[..found].iter().rposition(stores).unwrap();
    let checked = check(&with_line(&text, stored + 1, None));
    let rules = checked.findings.iter().map(|one| one.violation.rule.name());
    assert!(
        rules.clone().any(|rule| rule == "not-recorded"),
        "{}",
        checked.text()
    );
}

/// The TLBIs after which a page belongs to somebody else, or may be written no more.
#[test]
fn a_tlbi_of_a_program_left_out_is_noticed() {
    let text = runs("copies", |request| {
        request.page_size = Some(K4);
        request.smp = 2;
        // In the machine's own order: on a busy host, other groups would be made.
        request.icount = true;
    })
    .text();
    let lines = text.lines().enumerate();
    let tlbis: Vec<usize> = lines
        .filter(|(_, line)| asid_of(line).is_some())
        .map(|(index, _)| index + 1)
        .collect();
    // Every third: some two dozen.
    let some: Vec<usize> = tlbis.iter().copied().step_by(3).collect();
    let noticed = |line: &&usize| !is_clean(&with_line(&text, **line, None));
    let count = some.iter().filter(noticed).count();
    // One that makes a group of pages larger leaves what translates alike.
    assert!(
        some.len() > 20 && count * 10 >= some.len() * 9,
        "{count} of {}",
        some.len()
    );
}

/// An access to a guard page must fault: its TLBI is relied on. The strict mode also notices those of pages that
/// are made invalid only to become valid again with another size, on which nothing relies in between.
#[test]
fn each_tlbi_of_a_guard_page_left_out_is_noticed() {
    let recorded = record_ok(|request| {
        request.page_size = Some(K4);
        request.append = Some("granule.test=guard".into());
    });
    let text = recorded.text();
    assert!(is_clean(&text));
    let lines: Vec<&str> = text.lines().collect();
    // The self-check of the boot makes one page invalid thousands of times; guards are elsewhere.
    let of_boot = |line: &str| lines.iter().filter(|one| **one == line).count() > 100;
    let (mut relied, mut others) = (0, 0);
    for (index, line) in lines.iter().enumerate() {
        if !line.starts_with("tlbi ") || !line.contains(" vaale1is ") || of_boot(line) {
            continue;
        }
        // The odd page of a range, as of the memory that the boot gives back, has other lines after it.
        if !lines[index + 1].starts_with("dsb ") {
            continue;
        }
        let without = with_line(&text, index + 1, None);
        let is_relied = lines[index + 3].starts_with("assume-visible ");
        let noticed = if is_relied {
            relied += 1;
            !is_clean(&without)
        } else {
            others += 1;
            !checked(&without).is_clean()
        };
        assert!(noticed, "line {}: {line}", index + 1);
    }
    // Each of the 32 pages, and one of them again.
    assert_eq!((relied, others), (33, 32));
}
