//! Modelled misses as a table for people and as JSON (schema 1, docs/bench-json.md).

use std::fmt::Write as _;

use granule::arch::PageSize;
use granule_tlb::cpus::{ASSUMED, CPUS, Tlb};
use granule_tlb::maps::Shape;
use serde_json::{Value, json};

use super::Ran;
use crate::bench::text::grouped;

/// The schema's number.
const SCHEMA: u32 = 1;
use crate::watch::Outcome;

/// The published change of the kernel's TLB misses for each thousand instructions, in percent, when its
/// linear map of 4K pages became one of blocks.
pub const PUBLISHED_PERCENT: f64 = -28.5;
/// What was measured, and where it was published.
pub const PUBLISHED: &str = "measured, memcached on AmpereOne: \"arm64: mm: support large block mapping when \
     rodata=full\", Yang Shi, 2025";

fn rounded(number: f64, places: i32) -> f64 {
    let power = 10_f64.powi(places);
    (number * power).round() / power
}

/// The table, in Markdown, with what it is above and what was published below.
#[must_use]
pub fn table(ran: &Ran) -> String {
    let counted = &ran.counted;
    let instructions = grouped(counted.instructions);
    // Writing into a String cannot fail.
    let mut text = String::new();
    let _ = writeln!(
        text,
        "Modelled TLB misses of both levels for each thousand of {instructions} instructions: {}\n",
        ran.workload
    );
    text += "| CPU | pages of | pages | contiguous | linear blocks | blocks | guest |\n\
             | --- | --- | ---: | ---: | ---: | ---: | ---: |\n";
    for cpu in CPUS {
        for page_size in PageSize::ALL {
            if counted.row(cpu, page_size, Shape::Pages).is_none() {
                continue;
            }
            let _ = write!(text, "| {} | {} |", cpu.name, page_size.name());
            for shape in Shape::RULES.into_iter().chain([Shape::Guest]) {
                let cell = counted.row(cpu, page_size, shape).map_or_else(
                    || "-".to_owned(),
                    |row| format!("{:.3}", counted.per_thousand(row.misses.all())),
                );
                let _ = write!(text, " {cell} |");
            }
            text.push('\n');
        }
    }
    let changes: Vec<String> = CPUS
        .iter()
        .filter_map(|cpu| {
            let percent = counted.linear_change(cpu, PageSize::K4)?;
            Some(format!("{} {percent:+.1} %", cpu.name))
        })
        .collect();
    if !changes.is_empty() {
        let _ = writeln!(
            text,
            "\nKernel misses, linear map of 4K pages in blocks, all else in pages (modelled): {}.\n\
             Published: {PUBLISHED_PERCENT:+.1} % ({PUBLISHED}).",
            changes.join(", ")
        );
    }
    if let Err(line) = counted.check_order() {
        let _ = writeln!(text, "granule: larger leaves missed more: {line}");
    }
    if counted.unseen {
        text +=
            "granule: CPY or SET ran, whose accesses are not seen: take a CPU without FEAT_MOPS\n";
    }
    let ended = match &ran.outcome {
        Outcome::Ended if ran.reached_most => Some("ended by --most".to_owned()),
        Outcome::Ended => None,
        Outcome::Died(how) => Some(format!("QEMU died ({how}): this is what it did before")),
        Outcome::TimedOut => Some("the time was over: this is what ran before".into()),
        Outcome::Interrupted => Some("interrupted: this is what ran before".into()),
    };
    if let Some(ended) = ended {
        let _ = writeln!(text, "granule: {ended}");
    }
    text
}

fn tlb(tlb: &Tlb) -> Value {
    let bytes = |bits: &&'static [u8]| bits.iter().map(|bits| 1_u64 << bits).collect::<Vec<_>>();
    json!({
        "entries": tlb.entries,
        "ways": tlb.ways,
        "entry_bytes": tlb.sizes.iter().map(bytes).collect::<Vec<_>>(),
    })
}

/// The JSON object.
#[must_use]
pub fn json(ran: &Ran) -> Value {
    let counted = &ran.counted;
    let cpus: Vec<Value> = CPUS
        .iter()
        .map(|cpu| {
            let change = counted.linear_change(cpu, PageSize::K4);
            json!({
                "name": cpu.name,
                "source": cpu.source,
                "assumed": cpu.assumed,
                "l1_fetch": tlb(&cpu.fetch),
                "l1_data": tlb(&cpu.data),
                "l2": tlb(&cpu.second),
                "kernel_change_percent": change.map(|percent| rounded(percent, 2)),
            })
        })
        .collect();
    let rows: Vec<Value> = counted
        .rows
        .iter()
        .map(|row| {
            let misses = row.misses;
            json!({
                "cpu": row.cpu.name,
                "page_size": row.map.page_size.bytes(),
                "map": row.map.shape.word(),
                "l1_fetch_misses": misses.fetch,
                "l1_data_misses": misses.data,
                "misses": misses.all(),
                "kernel_misses": misses.kernel,
                "misses_per_thousand": rounded(counted.per_thousand(misses.all()), 6),
            })
        })
        .collect();
    let (outcome, reason) = match &ran.outcome {
        Outcome::Died(how) => (ran.outcome.name(), Some(how)),
        outcome => (outcome.name(), None),
    };
    json!({
        "schema": SCHEMA,
        "modelled": true,
        "assumed": ASSUMED,
        "qemu": {"version": ran.qemu},
        "workload": ran.workload,
        "outcome": outcome,
        "reason": reason,
        "reached_most": ran.reached_most,
        "instructions": counted.instructions,
        "guest_page_size": counted.page_size.map(PageSize::bytes),
        "unseen_accesses": counted.unseen,
        "larger_missed_more": counted.check_order().err(),
        "published": {
            "kernel_change_percent": PUBLISHED_PERCENT,
            "source": PUBLISHED,
        },
        "cpus": cpus,
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_plugin::accesses::{Kind, Page, Record, Region, SAME, What};
    use granule_tlb::replay::Replay;

    /// One program that loads from two pages of the linear map, next to each other.
    fn ran(outcome: Outcome) -> Ran {
        let mut replay = Replay::default();
        let page = |address| Page {
            address,
            region: Region::Linear,
            leaf_bits: 21,
        };
        for (instructions, what) in [
            (0, What::Begin(12)),
            (500, What::Access(Kind::Data, page(0xffff_0000_0000_0000))),
            (500, What::Access(Kind::Data, page(0xffff_0000_0000_1000))),
            (0, What::End { unseen: true }),
        ] {
            replay.add(&Record {
                instructions,
                order: [SAME; 2],
                what,
            });
        }
        Ran {
            workload: "two loads".into(),
            qemu: "10.0.2".into(),
            outcome,
            reached_most: false,
            counted: replay.finish(),
        }
    }

    #[test]
    fn the_table_says_that_it_is_modelled_and_has_what_was_published() {
        let text = table(&ran(Outcome::Ended));
        for line in [
            "Modelled TLB misses of both levels for each thousand of 1,000 instructions: two loads",
            "| cortex-a53 | 4k | 2.000 | 1.000 | 1.000 | 1.000 | 1.000 |",
            "| cortex-a53 | 64k | 1.000 | 1.000 | 1.000 | 1.000 | - |",
            "| cortex-a76 | 16k | 1.000 | 1.000 | 1.000 | 1.000 | - |",
            "Published: -28.5 % (measured, memcached on AmpereOne: \"arm64: mm: support large block \
             mapping when rodata=full\", Yang Shi, 2025).",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(text.contains("in pages (modelled): cortex-a53 -50.0 %, cortex-a55 -50.0 %"));
        assert!(!text.contains("| cortex-a53 | 16k |"));
        assert!(text.ends_with("FEAT_MOPS\n"), "{text}");
        let died = table(&ran(Outcome::Died("signal: 9".into())));
        assert!(died.ends_with("granule: QEMU died (signal: 9): this is what it did before\n"));
    }

    #[test]
    fn the_object_has_every_row_and_the_sources() {
        let json = json(&ran(Outcome::TimedOut));
        assert_eq!(
            (&json["schema"], &json["modelled"]),
            (&1.into(), &true.into())
        );
        assert_eq!(json["outcome"], "timeout");
        assert_eq!(json["guest_page_size"], 4096);
        assert_eq!(json["published"]["kernel_change_percent"], -28.5);
        let cpus = json["cpus"].as_array().unwrap();
        assert_eq!(cpus.len(), CPUS.len());
        let source = cpus[0]["source"].as_str().unwrap();
        assert!(source.contains("DDI 0500"));
        assert_eq!(cpus[0]["l2"]["entries"], 512);
        assert_eq!(
            cpus[4]["l1_data"]["entry_bytes"][2],
            json!([65536, 2 << 20, 512 << 20])
        );
        assert_eq!(cpus[0]["kernel_change_percent"], -50.0);
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 3 * 9 + 2 * 13);
        let guest = rows.iter().filter(|row| row["map"] == "guest");
        assert_eq!(guest.count(), CPUS.len());
        assert_eq!(rows[0]["misses_per_thousand"], 2.0);
        assert_eq!(rows[0]["l1_data_misses"], 2);
        assert_eq!(rows[0]["kernel_misses"], 2);
    }

    /// docs/bench-json.md has every key.
    #[test]
    fn the_document_has_every_key() {
        let document = include_str!("../../../../docs/bench-json.md");
        let at = document.find("## `granule bench tlb`").unwrap();
        let section = document.get(at + 3..).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let json = json(&ran(Outcome::Ended));
        let mut keys: Vec<String> = Vec::new();
        for (key, value) in json.as_object().unwrap() {
            match value {
                Value::Array(all) => {
                    let first = all[0].as_object().unwrap();
                    keys.extend(first.keys().map(|inner| format!("`{key}[].{inner}`")));
                }
                Value::Object(inner) => {
                    keys.extend(inner.keys().map(|inner| format!("`{key}.{inner}`")))
                }
                _ => keys.push(format!("`{key}`")),
            }
        }
        assert!(keys.len() > 20);
        for key in keys {
            assert!(section.contains(&key), "{key}");
        }
    }
}
