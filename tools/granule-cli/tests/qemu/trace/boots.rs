//! Boots of all kinds keep to the architecture's rules, at their severest.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Barriers, LinearMap, Request, Rodata};
use test_case::test_case;

use crate::trace::traces::{Recorded, checked, record_ok};

/// Clean, whole, and of the same boot as the console's record.
fn is_clean(recorded: &Recorded, what: &str) {
    let text = recorded.text();
    let checked = checked(&text);
    assert!(checked.is_clean(), "{what}:\n{}", checked.text());
    let (header, tally) = (checked.header, checked.tally);
    assert!(header.complete && header.cpus == 1, "{header}");
    assert_eq!(
        header.page_bytes,
        recorded.ran.number("page_size"),
        "{what}"
    );
    assert_eq!(
        u64::from(header.bbm_level),
        recorded.ran.number("bbm_level.id")
    );
    assert_eq!(header.events, recorded.ran.number("trace.events"));
    assert_eq!(header.events, text.lines().count() as u64 - 1);
    // The cost of the linear map is in it, and more: boot tables, self-check, giving back.
    for (key, traced) in [
        ("descriptor_stores", tally.descriptors),
        ("tlbi", tally.tlbi),
        ("dsb", tally.dsb),
        ("isb", tally.isb),
        ("table_bytes", tally.obtained_bytes),
    ] {
        let counted = recorded.ran.number(&format!("linear_map.{key}"));
        assert!(
            traced > counted,
            "{what}: {traced} {key}, the kernel counted {counted}"
        );
    }
    assert!(tally.freed_bytes > 0 && tally.cache > 0);
    // The word, and nothing else that has it.
    let lines = text.lines().filter(|line| line.contains("tlbi"));
    assert_eq!(lines.clone().count() as u64, tally.tlbi);
    assert!(lines.into_iter().all(|line| line.starts_with("tlbi ")));
    // From the first instruction that matters on: SCTLR comes first in the entry code.
    let first = text.lines().nth(1).unwrap();
    assert!(first.starts_with("msr cpu0 sctlr_el"), "{first}");
}

/// With full protection the map is in pages where live blocks cannot be split; QEMU's `max` reports
/// that it can.
const IN_PAGES: &str = "arm64.bbm=0";

/// Whether nothing larger than a page is in the linear map.
fn is_in_pages(recorded: &Recorded) -> bool {
    let leaves = &recorded.ran.boot.json()["linear_map"]["leaves"];
    let page = recorded.ran.number("page_size");
    let leaves = leaves.as_array().into_iter().flatten();
    leaves.clone().count() > 0 && leaves.into_iter().all(|leaf| leaf["size"] == page)
}

#[test_case(K4)]
#[test_case(K16)]
#[test_case(K64)]
fn all_strategies_and_protections(size: PageSize) {
    // Both levels with every size, without doubling the number of boots.
    let mut el = 1;
    for strategy in [LinearMap::Direct, LinearMap::Base] {
        for (rodata, pages) in [
            (Rodata::Off, false),
            (Rodata::Noalias, false),
            (Rodata::On, false),
            (Rodata::On, true),
        ] {
            el = 3 - el;
            let recorded = record_ok(|request| {
                request.page_size = Some(size);
                request.linear_map = Some(strategy);
                request.rodata = Some(rodata);
                request.el = el;
                request.append = pages.then(|| IN_PAGES.into());
            });
            let what = format!("{size:?} {strategy:?} {rodata:?} EL{el}, pages: {pages}");
            is_clean(&recorded, &what);
            assert_eq!(is_in_pages(&recorded), pages, "{what}");
        }
    }
}

/// The steps between `base` and `direct`: which table a slot shows, when its TLBI is due, and what
/// is linked before it is filled differ in each.
#[test]
fn all_published_strategies() {
    let steps = LinearMap::ALL
        .into_iter()
        .filter(|step| !matches!(step, LinearMap::Base | LinearMap::Direct));
    for (place, strategy) in steps.enumerate() {
        for (turn, size) in PageSize::ALL.into_iter().enumerate() {
            // Either form with every size and every step, without doubling the number of boots.
            let barriers = match (place + turn) % 2 {
                0 => Barriers::Table,
                _ => Barriers::Entry,
            };
            let recorded = record_ok(|request| {
                request.page_size = Some(size);
                request.linear_map = Some(strategy);
                request.linear_map_barriers = Some(barriers);
                // The events that the steps leave out are nearly all in last-level tables.
                request.append = Some(IN_PAGES.into());
            });
            is_clean(&recorded, &format!("{size:?} {strategy:?} {barriers:?}"));
            assert!(is_in_pages(&recorded));
            recorded.ran.has("linear_map.strategy", strategy.word());
            recorded.ran.has("linear_map.barriers", barriers.word());
        }
    }
}

#[test]
fn other_cpus_and_address_sizes() {
    type Change = fn(&mut Request);
    let changes: [(&str, Change); 6] = [
        ("52 bits, 4K", |r| {
            (r.va_bits, r.page_size) = (Some(52), Some(K4))
        }),
        ("52 bits, 16K", |r| {
            (r.va_bits, r.page_size) = (Some(52), Some(K16))
        }),
        ("52 bits, 64K", |r| {
            (r.va_bits, r.page_size) = (Some(52), Some(K64))
        }),
        ("no range TLBIs, no VHE", |r| {
            (r.cpu, r.va_bits) = ("cortex-a53".into(), Some(36))
        }),
        ("each TLBI twice", |r| {
            r.cpu = "cortex-a76".into();
            r.append = Some("arm64.errata=ARM64_ERRATUM_1286807".into());
        }),
        ("image and trace above 4 GiB", |r| {
            r.memory = 4 << 30;
            r.rodata = Some(Rodata::Noalias);
            r.load_address = Some(0x1_0000_0000);
        }),
    ];
    for (what, change) in changes {
        let recorded = record_ok(change);
        is_clean(&recorded, what);
    }
}

#[test]
fn tracing_changes_what_the_boot_does_in_nothing_but_its_own_mapping() {
    for strategy in [LinearMap::Direct, LinearMap::Base, LinearMap::LazyUnmap] {
        let traced = record_ok(|r| r.linear_map = Some(strategy));
        let plain = record_ok(|r| {
            r.linear_map = Some(strategy);
            r.trace = None;
        });
        assert!(traced.ran.boot.trace.is_some() && plain.ran.boot.trace.is_none());
        for key in "mapped_bytes descriptor_stores tlbi dsb isb tables".split(' ') {
            let key = format!("linear_map.{key}");
            traced.ran.has(&key, plain.ran.number(&key));
        }
    }
}
