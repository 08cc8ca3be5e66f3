//! Traces of machines of several CPUs: how they come up, are parked, and change the linear map
//! together.

use std::time::Duration;

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::check::{self, CheckOptions, Checked};
use granule_cli::{Request, Rodata};
use test_case::test_case;

use crate::trace::traces::{Recorded, checked, find, record_ok, with_line};

const CPUS: u32 = 4;

pub(crate) fn several(words: &str, change: impl FnOnce(&mut Request)) -> Recorded {
    record_ok(|request| {
        request.smp = CPUS;
        request.append = Some(words.into());
        change(request);
    })
}

/// Every CPU turned its MMU on once, and all they did is in the one order.
pub(crate) fn is_clean(recorded: &Recorded, what: &str) {
    let text = recorded.text();
    let checked = checked(&text);
    assert!(checked.is_clean(), "{what}:\n{}", checked.text());
    assert!(checked.header.complete, "{what}");
    assert_eq!(checked.header.cpus, CPUS, "{what}");
    recorded.ran.has("cpus", CPUS);
    let level = recorded.ran.number("bbm_level.system");
    assert_eq!(u64::from(checked.header.bbm_level), level, "{what}");
    for cpu in 0..CPUS {
        let on = format!("msr cpu{cpu} sctlr_el1 ");
        let writes = text.lines().filter_map(|line| line.strip_prefix(&on));
        let value = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        let on = writes.filter(|text| value(text) & 1 != 0).count();
        assert_eq!(on, 1, "{what}: CPU {cpu} turned its MMU on");
    }
}

#[test]
fn four_cpus_come_up() {
    for size in PageSize::ALL {
        for el in [1, 2] {
            let recorded = several("", |request| {
                request.page_size = Some(size);
                request.el = el;
            });
            is_clean(&recorded, &format!("{size:?}, EL{el}"));
        }
    }
}

#[test]
fn other_cpus_and_interrupt_controllers() {
    type Change = fn(&mut Request);
    let changes: [(&str, Change); 3] = [
        ("GICv2", |request| request.gic = 2),
        // Without VHE, and with each TLBI twice because several CPUs run.
        ("cortex-a76", |request| request.cpu = "cortex-a76".into()),
        ("cortex-a53", |request| request.cpu = "cortex-a53".into()),
    ];
    for (what, change) in changes {
        is_clean(&several("", change), what);
    }
}

/// A CPU that is parked for ever with its MMU off leaves nothing in the trace but its number.
#[test]
fn a_cpu_that_does_not_fit_does_not_translate() {
    let recorded = record_ok(|request| {
        request.smp = CPUS;
        request.append = Some("arm64.fake_cpu=2:tgran4=15".into());
        request.page_size = Some(K4);
    });
    let text = recorded.text();
    let checked = checked(&text);
    assert!(checked.is_clean(), "{}", checked.text());
    assert_eq!(
        (checked.header.cpus, recorded.ran.number("cpus")),
        (CPUS, 3)
    );
    assert!(!text.contains(" cpu2 ") && text.contains(" cpu3 "));
}

#[test]
fn a_secondary_that_keeps_its_tlb_or_its_registers_is_found() {
    let text = several("", |_| ()).text();
    for cpu in 1..CPUS {
        let line = find(&text, 1, &format!("tlbi cpu{cpu} vmalle1"));
        assert_eq!(first_rule(&with_line(&text, line, None)), "unknown-tlb");
        // That between the TTBRs and SCTLR.
        let line = find(&text, line, &format!("msr cpu{cpu} ttbr1_el1"));
        let line = find(&text, line, &format!("isb cpu{cpu}"));
        assert_eq!(first_rule(&with_line(&text, line, None)), "missing-isb");
    }
}

fn first_rule(text: &str) -> String {
    let checked = checked(text);
    let first = checked.findings.first().expect("nothing was found");
    first.violation.rule.name().to_owned()
}

#[test]
fn parked_cpus_are_off_the_tables() {
    for el in [1, 2] {
        let recorded = several("granule.test=park", |request| request.el = el);
        is_clean(&recorded, &format!("EL{el}"));
    }
}

/// The page that changes while CPUs are parked meets what they held before, unless they left it.
#[test]
fn a_parked_cpu_that_keeps_its_tlb_or_the_tables_is_found() {
    let text = several("granule.test=park", |_| ()).text();
    let up = find(&text, 1, "msr cpu2 ttbr1_el1");
    let leaving = find(&text, up + 1, "msr cpu2 ttbr1_el1");
    let back = find(&text, leaving + 1, "msr cpu2 ttbr1_el1");
    // It never goes: the switches of TTBR1, there and back.
    let stayed = with_line(&with_line(&text, back, None), leaving, None);
    assert!(!checked(&stayed).is_clean(), "a CPU that stays");
    // It goes, and its TLB has all it had when it comes back. From the end, so that lines keep
    // their numbers.
    let mut kept = text.clone();
    let ttbr0 = find(&text, back, "msr cpu2 ttbr0_el1");
    for from in [ttbr0, back, leaving] {
        let line = find(&text, from, "tlbi cpu2 vmalle1");
        kept = with_line(&kept, line, None);
    }
    assert!(!checked(&kept).is_clean(), "a CPU that keeps its TLB");
    // The stores of the work are not waited for before the others walk again.
    let mut unseen = text.clone();
    let dsb = text
        .lines()
        .take(back)
        .enumerate()
        .filter(|(_, line)| *line == "dsb cpu0 ishst")
        .last();
    unseen = with_line(&unseen, dsb.unwrap().0 + 1, None);
    assert!(!checked(&unseen).is_clean(), "stores that are not seen");
}

/// The model's verdict for CPUs of level 2, which may raise a conflict abort where they split, and,
/// severely, for those of level 3, which raise none.
fn of_level(text: &str, level: u8, strict: bool) -> Checked {
    let options = CheckOptions {
        strict,
        bbm_level: Some(level),
        ..CheckOptions::STRICT
    };
    check::check(text.as_bytes(), &options, &mut |_| ()).unwrap_or_else(|e| panic!("{e}"))
}

/// A TLBI that comes later leaves what was there before in the TLB, whatever its size; nothing that is
/// done meanwhile may rely on its being gone, or meet it.
#[test]
fn work_before_a_deferred_tlbi_breaks_no_rule() {
    for (size, cpu) in [
        (K4, "max"),
        (K16, "max"),
        (K64, "max"),
        (K4, "cortex-a72"),
        (K64, "cortex-a72"),
    ] {
        let recorded = several("granule.merge=off granule.test=noflush", |request| {
            request.page_size = Some(size);
            request.cpu = cpu.into();
            request.rodata = Some(Rodata::Noalias);
            request.memory = 3 << 30;
        });
        let level = recorded.ran.number("bbm_level.system") as u8;
        let checked = of_level(&recorded.text(), level, false);
        assert!(checked.is_clean(), "{size:?} {cpu}:\n{}", checked.text());
        // Where leaves may not be split live the TLBI cannot come later.
        assert_eq!(recorded.ran.number("test.noflush.tlbi") > 0, level == 0);
        assert_eq!(
            recorded.ran.number("test.noflush.again.tlbi") > 0,
            level > 0
        );
    }
}

/// A CPU that allows no live splits comes up, and the map of blocks becomes one of pages with the
/// others off the tables. The CPU that does it may split: the model has one level for all.
#[test]
fn a_map_that_is_rewritten_to_pages() {
    for size in PageSize::ALL {
        let recorded = several("arm64.fake_cpu=2:bbm=0", |request| {
            request.page_size = Some(size);
            request.rodata = Some(Rodata::Full);
        });
        let map = &recorded.ran.boot.json()["linear_map"];
        assert_eq!(map["rewritten_to_pages"], true, "{size:?}");
        assert_eq!(map["leaves"][0]["size"], size.bytes(), "{size:?}");
        let checked = of_level(&recorded.text(), 2, false);
        assert!(checked.is_clean(), "{size:?}:\n{}", checked.text());
        assert!(checked.header.complete);
    }
}

/// On one thread of the host, whose order is the machine's.
#[test_case(K4)]
#[test_case(K16)]
#[test_case(K64)]
fn twenty_thousand_changes(size: PageSize) {
    let boot = |words| {
        several(words, |request| {
            request.page_size = Some(size);
            request.rodata = Some(Rodata::Noalias);
            request.memory = 3 << 30;
            request.icount = true;
            request.timeout = Duration::from_secs(300);
        })
    };
    let recorded = boot("granule.test=permissions-stress:20000:7");
    assert!(recorded.ran.number("test.stress.changes") >= 20_000);
    let text = recorded.text();
    let checked = of_level(&text, 2, false);
    assert!(checked.is_clean(), "{size:?}:\n{}", checked.text());
    assert!(checked.header.complete && checked.header.cpus == CPUS);
    assert_eq!(checked.header.bbm_level, 2);
    assert!(recorded.ran.number("test.stress.accesses") > 0);
    // Blocks were split, merged, and split again: more tables were freed than a boot alone frees.
    let alone = of_level(&boot("").text(), 2, false).tally.freed_bytes;
    let (obtained, freed) = (checked.tally.obtained_bytes, checked.tally.freed_bytes);
    assert!(
        freed > alone && obtained > freed,
        "{size:?}: {obtained} bytes obtained, {freed} freed, by a boot alone {alone}"
    );
    // On CPUs that may not split in place hardly any of it is allowed.
    let checked = of_level(&text, 0, false);
    assert!(checked.violations > 1000, "{}", checked.text());
}
