//! Boots of all kinds keep to the architecture's rules, at their severest.

use granule_cli::{Barriers, LinearMap, PageSize, Request, Rodata};

use crate::trace::traces::{Recorded, SIZES, checked, record_ok};

/// Clean, whole, and of the same boot as the console's record.
fn is_clean(recorded: &Recorded, what: &str) {
    let text = recorded.text();
    let checked = checked(&text);
    assert!(checked.is_clean(), "{what}:\n{}", checked.text());
    let (header, tally) = (checked.header, checked.tally);
    assert!(header.complete && header.cpus == 1, "{header}");
    assert_eq!(header.page_bytes, recorded.number("page_size"), "{what}");
    assert_eq!(u64::from(header.bbm_level), recorded.number("bbm_level.id"));
    assert_eq!(header.events, recorded.number("trace.events"));
    assert_eq!(header.events, text.lines().count() as u64 - 1);
    // The cost of the linear map is in it, and more: boot tables, self-check, giving back.
    for (key, traced) in [
        ("descriptor_stores", tally.descriptors),
        ("tlbi", tally.tlbi),
        ("dsb", tally.dsb),
        ("isb", tally.isb),
        ("table_bytes", tally.obtained_bytes),
    ] {
        let counted = recorded.number(&format!("linear_map.{key}"));
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
    let leaves = &recorded.boot.json()["linear_map"]["leaves"];
    let page = recorded.number("page_size");
    let leaves = leaves.as_array().into_iter().flatten();
    leaves.clone().count() > 0 && leaves.into_iter().all(|leaf| leaf["size"] == page)
}

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

#[test]
fn all_strategies_and_protections_with_4k_pages() {
    all_strategies_and_protections(PageSize::K4);
}

#[test]
fn all_strategies_and_protections_with_16k_pages() {
    all_strategies_and_protections(PageSize::K16);
}

#[test]
fn all_strategies_and_protections_with_64k_pages() {
    all_strategies_and_protections(PageSize::K64);
}

/// The steps between `base` and `direct`: which table a slot shows, when its TLBI is due, and what
/// is linked before it is filled differ in each.
#[test]
fn all_published_strategies() {
    let steps = LinearMap::ALL
        .into_iter()
        .filter(|step| !matches!(step, LinearMap::Base | LinearMap::Direct));
    for (place, strategy) in steps.enumerate() {
        for (turn, size) in SIZES.into_iter().enumerate() {
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
            assert_eq!(recorded.text_of("linear_map.strategy"), strategy.word());
            assert_eq!(recorded.text_of("linear_map.barriers"), barriers.word());
        }
    }
}

#[test]
fn other_cpus_and_address_sizes() {
    type Change = fn(&mut Request);
    let changes: [(&str, Change); 6] = [
        ("52 bits, 4K", |r| {
            r.va_bits = Some(52);
            r.page_size = Some(PageSize::K4);
        }),
        ("52 bits, 16K", |r| {
            r.va_bits = Some(52);
            r.page_size = Some(PageSize::K16);
        }),
        ("52 bits, 64K", |r| {
            r.va_bits = Some(52);
            r.page_size = Some(PageSize::K64);
        }),
        ("no range TLBIs, no VHE", |r| {
            r.cpu = "cortex-a53".into();
            r.va_bits = Some(36);
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
        assert!(traced.boot.trace.is_some() && plain.boot.trace.is_none());
        for key in [
            "mapped_bytes",
            "descriptor_stores",
            "tlbi",
            "dsb",
            "isb",
            "tables",
        ] {
            let key = format!("linear_map.{key}");
            assert_eq!(
                traced.number(&key),
                plain.number(&key),
                "{key} {strategy:?}"
            );
        }
    }
}
