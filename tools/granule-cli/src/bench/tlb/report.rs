//! Modelled misses as a table for people and as JSON.

use std::fmt::Write as _;

use granule::arch::PageSize;
use granule_tlb::cpus::{ASSUMED, CPUS, Cpu, Tlb};
use granule_tlb::maps::Shape;
use granule_tlb::replay::Row;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::Ran;
use crate::bench::text::grouped;
use crate::json::{Version, rounded, value};
use crate::watch::Outcome;

/// The published change of the kernel's TLB misses for each thousand instructions, in percent, when its
/// linear map of 4K pages became one of blocks.
pub const PUBLISHED_PERCENT: f64 = -28.5;
/// Measurement, and its publication.
pub const PUBLISHED: &str = "measured, memcached on AmpereOne: \"arm64: mm: support large block mapping when \
     rodata=full\", Yang Shi, 2025";

/// Result of `granule bench tlb --json`. The table for people goes to standard error. The exit code is 0 if the
/// machine or the limit of `--most` ended the run, 1 if something else did, and 2, without an object, if nothing
/// could be counted. All misses are modelled. Sizes are in bytes.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "granule bench tlb --json")]
pub(crate) struct Object {
    schema: Version,
    /// True: no figure was measured on hardware.
    modelled: bool,
    /// Assumptions for every CPU.
    assumed: &'static str,
    qemu: Qemu,
    /// Program and its arguments, the initramfs, or the command.
    workload: String,
    /// `ended`, `died` (QEMU), `timeout`, `interrupted`.
    outcome: &'static str,
    /// Status or signal by which QEMU ended; else null.
    reason: Option<String>,
    /// Whether the limit of `--most` ended the run.
    reached_most: bool,
    /// Instructions from the first one at EL0 on.
    instructions: u64,
    /// The guest's own page size; null if it was not known.
    guest_page_size: Option<u64>,
    /// Whether CPY or SET ran, whose accesses are not seen.
    unseen_accesses: bool,
    /// First map with more misses than one of smaller leaves on the same CPU; null if there is none, as for every
    /// workload whose accesses are near each other.
    larger_missed_more: Option<String>,
    published: Published,
    /// The modelled CPUs.
    cpus: Vec<CpuObject>,
    /// One object for each CPU, page size and map.
    rows: Vec<RowObject>,
}

/// The emulator.
#[derive(Serialize, JsonSchema)]
struct Qemu {
    /// QEMU's own version.
    version: String,
}

/// The published figure to compare with.
#[derive(Serialize, JsonSchema)]
struct Published {
    /// Change of a kernel's TLB misses with its linear map in blocks, in percent.
    kernel_change_percent: f64,
    /// Measurement, and its publication.
    source: &'static str,
}

/// A CPU.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Cpu")]
struct CpuObject {
    /// Its name, in QEMU's words.
    name: &'static str,
    /// Manual that the figures are from.
    source: &'static str,
    /// Assumptions where the manual leaves something open; empty if nowhere.
    assumed: &'static str,
    /// First level for fetches.
    l1_fetch: TlbObject,
    /// First level for loads and stores.
    l1_data: TlbObject,
    /// Second level.
    l2: TlbObject,
    /// Change of `kernel_misses` from `pages` to `linear-blocks` with 4K pages, in percent; null without any.
    kernel_change_percent: Option<f64>,
}

/// A level of a TLB.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Tlb")]
struct TlbObject {
    /// Entries.
    entries: usize,
    /// Ways: all entries for a fully associative level.
    ways: usize,
    /// Sizes that an entry can have, three lists: with 4K, 16K, 64K pages; an empty one if the CPU has no such
    /// pages.
    entry_bytes: Vec<Vec<u64>>,
}

/// Misses of a CPU with a map.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Row")]
struct RowObject {
    /// CPU.
    cpu: &'static str,
    /// Page size of the map, which need not be the guest's.
    page_size: u64,
    /// `pages`, `contiguous` (groups of pages), `linear-blocks` (the kernel's linear map in last-level blocks, all
    /// else in pages), `blocks`, `guest` (as the guest's own tables have it).
    map: &'static str,
    /// Misses of the first level, of fetches.
    l1_fetch_misses: u64,
    /// Misses of the first level, of loads and stores.
    l1_data_misses: u64,
    /// Misses of both levels.
    misses: u64,
    /// Misses of both levels of addresses in the upper half.
    kernel_misses: u64,
    /// `misses` for each thousand instructions, to six places.
    misses_per_thousand: f64,
}

/// The table, in Markdown, with what it is above and what was published below.
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
        Outcome::Died(how) => Some(format!("QEMU crashed ({how}); results so far")),
        Outcome::TimedOut => Some("time limit reached; results so far".into()),
        Outcome::Interrupted => Some("interrupted; results so far".into()),
    };
    if let Some(ended) = ended {
        let _ = writeln!(text, "granule: {ended}");
    }
    text
}

fn tlb(tlb: &Tlb) -> TlbObject {
    let bytes = |bits: &&'static [u8]| bits.iter().map(|bits| 1_u64 << bits).collect::<Vec<_>>();
    TlbObject {
        entries: tlb.entries,
        ways: tlb.ways,
        entry_bytes: tlb.sizes.iter().map(bytes).collect(),
    }
}

/// The JSON object.
pub fn json(ran: &Ran) -> Value {
    let counted = &ran.counted;
    let cpu = |cpu: &'static Cpu| {
        let change = counted.linear_change(cpu, PageSize::K4);
        CpuObject {
            name: cpu.name,
            source: cpu.source,
            assumed: cpu.assumed,
            l1_fetch: tlb(&cpu.fetch),
            l1_data: tlb(&cpu.data),
            l2: tlb(&cpu.second),
            kernel_change_percent: change.map(|percent| rounded(percent, 2)),
        }
    };
    let row = |row: &Row| RowObject {
        cpu: row.cpu.name,
        page_size: row.map.page_size.bytes(),
        map: row.map.shape.word(),
        l1_fetch_misses: row.misses.fetch,
        l1_data_misses: row.misses.data,
        misses: row.misses.all(),
        kernel_misses: row.misses.kernel,
        misses_per_thousand: rounded(counted.per_thousand(row.misses.all()), 6),
    };
    value(Object {
        schema: Version,
        modelled: true,
        assumed: ASSUMED,
        qemu: Qemu {
            version: ran.qemu.clone(),
        },
        workload: ran.workload.clone(),
        outcome: ran.outcome.name(),
        reason: match &ran.outcome {
            Outcome::Died(how) => Some(how.clone()),
            _ => None,
        },
        reached_most: ran.reached_most,
        instructions: counted.instructions,
        guest_page_size: counted.page_size.map(PageSize::bytes),
        unseen_accesses: counted.unseen,
        larger_missed_more: counted.check_order().err(),
        published: Published {
            kernel_change_percent: PUBLISHED_PERCENT,
            source: PUBLISHED,
        },
        cpus: CPUS.iter().map(cpu).collect(),
        rows: counted.rows.iter().map(row).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_plugin::accesses::{AccessKind, AccessRecord, Page, Region, SAME, What};
    use granule_tlb::replay::Replay;
    use serde_json::json;

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
            (
                500,
                What::Access(AccessKind::Data, page(0xffff_0000_0000_0000)),
            ),
            (
                500,
                What::Access(AccessKind::Data, page(0xffff_0000_0000_1000)),
            ),
            (0, What::End { unseen: true }),
        ] {
            replay.add(&AccessRecord {
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
    fn the_table_is_marked_as_modelled_and_has_what_was_published() {
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
        assert!(died.ends_with("granule: QEMU crashed (signal: 9); results so far\n"));
    }

    #[test]
    fn the_object_has_every_row_and_the_sources() {
        let json = json(&ran(Outcome::TimedOut));
        crate::schema::assert_matches("bench tlb", &json);
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
}
