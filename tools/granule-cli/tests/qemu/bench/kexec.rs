//! `granule bench kexec`: limits on the cost of leaving for another kernel. Counts of copied bytes,
//! cleaned lines and waits are exact, from the sizes of the given files; instructions are reported
//! in ticks.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::bench::kexec::{Bench, Done, Figures, Mmu, PayloadPlace, Row};
use granule_cli::bench::series::Benchmark;
use serde_json::Value;

use crate::bench::rows;
use crate::hooked::granule;
use crate::image::image;

const MIB: u64 = 1 << 20;
const LINE: u64 = 64;
/// Instructions of a tick of the counter: an interval has one more or less than it took.
const TICK: u64 = 16;

fn bench(page_size: PageSize, payload: &[u64], mmu: &[Mmu], place: &[PayloadPlace]) -> Bench {
    Bench {
        payload: payload.to_vec(),
        mmu: mmu.to_vec(),
        place: place.to_vec(),
        page_size: vec![page_size],
        memory: 512 * MIB,
        cpu: "neoverse-n1".into(),
        on: rows::on_image(),
    }
}

fn measure(bench: &Bench) -> Done {
    rows::measure("bench kexec", bench)
}

fn figures(row: &Row) -> &Figures {
    row.figures.as_ref().unwrap()
}

/// The sizes of the given files, as the next kernel reports them: image, initramfs, tree; and the
/// memory that the image requires.
struct Given {
    bytes: [u64; 3],
    memory: u64,
}

impl Given {
    fn of(row: &Row) -> Self {
        let bytes = ["kernel", "initrd", "tree"].map(|name| {
            let key = format!("kexec.segment.{name}.bytes");
            row.boot.record.get(&key).and_then(Value::as_u64).unwrap()
        });
        let file = std::fs::read(image()).unwrap();
        assert_eq!(bytes[0], file.len() as u64);
        assert!((row.cell.payload - 3..=row.cell.payload).contains(&(bytes[0] + bytes[1])));
        Self {
            bytes,
            memory: u64::from_le_bytes(*file[16..].first_chunk().unwrap()),
        }
    }

    /// Whole pages of image, initramfs and tree, and of the image's memory.
    fn pages(&self, page: PageSize) -> ([u64; 3], u64) {
        let whole = |bytes: u64| bytes.next_multiple_of(page.bytes());
        (self.bytes.map(whole), whole(self.memory))
    }
}

/// The totals of the list, from the sizes alone.
fn expected(row: &Row) -> (u64, u64) {
    let ([kernel, initrd, tree], memory) = Given::of(row).pages(row.cell.page_size);
    let copied = match row.cell.place {
        PayloadPlace::Copied => kernel + initrd + tree,
        PayloadPlace::InPlace => 0,
    };
    // The memory that the image zeroes itself is cleaned too.
    let behind = memory - kernel;
    let bytes = match (row.cell.mmu, row.cell.place) {
        // All was cleaned when it was loaded.
        (_, PayloadPlace::InPlace) => 0,
        // Sources and places out of the caches, and the places once more.
        (Mmu::Off, PayloadPlace::Copied) => 3 * copied + behind,
        // Not the initramfs, which is read with caches on.
        (Mmu::On, PayloadPlace::Copied) => kernel + tree + behind,
    };
    (copied, bytes / LINE)
}

fn counts_are_exact(row: &Row) {
    let (bytes_copied, lines_cleaned) = expected(row);
    let found = figures(row);
    let given = Given::of(row);
    assert_eq!(found.bytes_total, given.bytes.iter().sum::<u64>());
    assert_eq!(
        (found.bytes_copied, found.lines_cleaned),
        (bytes_copied, lines_cleaned),
        "{:?}",
        row.cell
    );
    // Each barrier is one for all of it.
    let dsb = match row.cell.mmu {
        Mmu::On => 5,
        Mmu::Off => 7,
    };
    assert_eq!((found.dsb, found.tlbi), (dsb, 3), "{:?}", row.cell);
    // The yardstick: nobody's loop takes fewer than load and store pairs do.
    let per_line = found.yardstick_per_line();
    assert!((8.0..=9.5).contains(&per_line), "{per_line}");
}

#[test]
fn each_way_does_what_its_sizes_require() {
    let ways = [Mmu::Off, Mmu::On];
    let places = [PayloadPlace::Copied, PayloadPlace::InPlace];
    let bench = bench(K4, &[6 * MIB], &ways, &places);
    let done = measure(&bench);
    done.rows.iter().for_each(counts_are_exact);
    let object = bench.json(&done);
    for (row, reported) in done.rows.iter().zip(object["rows"].as_array().unwrap()) {
        assert_eq!(reported["digest_ok"], true);
        accesses_are_those_executed(row, reported);
        let predicted = reported["predicted_ms"].as_object().unwrap();
        assert_eq!(
            predicted.is_empty(),
            row.cell.place == PayloadPlace::InPlace
        );
    }
}

/// Each load and store is an instruction; beside them there is one of the loop for sixteen, the
/// operations on lines, and at most 800 for what is done once and for each record. So the
/// measurement shows whether the reported accesses were made. The interpreted code shows to which
/// memory (`crates/granule-kexec/tests/kexec/count.rs`).
fn accesses_are_those_executed(row: &Row, reported: &Value) {
    let [cached, device] =
        ["accesses_cached", "accesses_device"].map(|key| reported[key].as_u64().unwrap());
    let [executed, idle] = match row.cell.mmu {
        Mmu::On => [cached, device],
        Mmu::Off => [device, cached],
    };
    assert_eq!(idle, 0, "{:?}", row.cell);
    let found = figures(row);
    let loops = executed + executed / 16;
    // With the MMU on one instruction an operation right behind its stores, two and a half in a loop of
    // its own; past the caches, where nothing is gained by less, four.
    let lines = found.lines_cleaned;
    let [least, most] = match row.cell.mmu {
        Mmu::On => [lines, lines * 5 / 2],
        Mmu::Off => [4 * lines, 4 * lines],
    }
    .map(|of_lines| loops + of_lines);
    let most = most + 800;
    assert!(
        (least..=most).contains(&found.relocation),
        "{} instructions for {executed} accesses, expected {least} to {most}: {:?}",
        found.relocation,
        row.cell
    );
}

#[test]
fn large_pages_are_counted_the_same() {
    for page_size in [K16, K64] {
        let places = [PayloadPlace::Copied, PayloadPlace::InPlace];
        let done = measure(&bench(page_size, &[6 * MIB], &[Mmu::On], &places));
        done.rows.iter().for_each(counts_are_exact);
        let copied = figures(&done.rows[0]);
        assert!(copied.relocation as f64 <= copied.bound(), "{copied:?}");
    }
}

/// The goal: at most 1.1 times a plain copy and an instruction for each line that is cleaned.
#[test]
fn copying_takes_little_more_than_a_plain_copy() {
    let payloads = [6 * MIB, 42 * MIB];
    let done = measure(&bench(K4, &payloads, &[Mmu::On], &[PayloadPlace::Copied]));
    done.rows.iter().for_each(counts_are_exact);
    let [small, large] = [0, 1].map(|index| figures(&done.rows[index]));
    for one in [small, large] {
        assert!(one.relocation as f64 <= one.bound(), "{one:?}");
    }
    // More of the initramfs is more of the loop, 8.5 instructions for 64 bytes, and a few more records
    // of the list. Each of four readings of the counter is off by up to a tick.
    let more = (large.bytes_copied - small.bytes_copied) / LINE;
    let took = large.relocation - small.relocation;
    assert!(
        took.abs_diff(more * 17 / 2) <= 8 * TICK,
        "{took} for {more} lines"
    );
    // Linux needs 28 million from `machine_kexec` to `paging_init`, for as many bytes.
    let all = large.shutdown + large.relocation + large.to_console;
    assert!(all < 28_000_000, "{large:?}");
}

#[test]
fn leaving_in_place_costs_the_same_for_any_payload() {
    let payloads = [6 * MIB, 42 * MIB];
    let done = measure(&bench(K4, &payloads, &[Mmu::On], &[PayloadPlace::InPlace]));
    done.rows.iter().for_each(counts_are_exact);
    let [small, large] = [0, 1].map(|index| figures(&done.rows[index]));
    assert!(large.relocation.abs_diff(small.relocation) <= 2 * TICK);
    // The switches of tables, and the MMU off: nothing is copied, and nothing cleaned.
    for one in [small, large] {
        assert!((100..500).contains(&one.relocation), "{one:?}");
    }
}

#[test]
fn an_impossible_measurement_is_bad_usage() {
    for (words, expected) in [
        (["--payload", "1M"], "take more"),
        (["--memory", "64M"], "--payload 25M needs 100M"),
    ] {
        let output = granule()
            .args(["bench", "kexec", "--json", "--image"])
            .arg(image())
            .args(words)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(
            printed.contains(expected) && printed.lines().count() == 1,
            "{printed}"
        );
    }
}
