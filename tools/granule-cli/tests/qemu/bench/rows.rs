//! Runs a benchmark and reads its rows: code that all rooms share.

use std::sync::atomic::AtomicBool;

use granule::arch::OutputFormat;
use granule::arch::bbm::BbmLevel;
use granule_cli::bench::args::{ImageArgs, RunArgs};
use granule_cli::bench::linear_map::{Bench, Row};
use granule_cli::bench::progress::Bar;
use granule_cli::bench::series::{self, Benchmark, DoneOf};
use granule_cli::cost::Job;
use granule_cli::cost::job::leaves;
use granule_cli::{LinearMap, PageSize, Rodata, schema};
use granule_testing::schema::assert_matches;

use crate::hooked::qemu;
use crate::image::image;

pub(crate) const GIB: u64 = 1 << 30;

/// Every strategy with the barriers it goes by, on neoverse-n1: TLBIs by address only.
pub(crate) fn bench(page_size: PageSize, memory: &[u64]) -> Bench {
    Bench {
        memory: memory.to_vec(),
        page_size: vec![page_size],
        rodata: vec![Rodata::Full],
        strategy: LinearMap::ALL.to_vec(),
        barriers: Vec::new(),
        cpu: "neoverse-n1".into(),
        va_bits: None,
        on: on_image(),
    }
}

/// The QEMU for the test that calls.
pub(crate) fn on_qemu() -> RunArgs {
    RunArgs {
        qemu: qemu(),
        timeout: 600,
        json: false,
    }
}

/// The image, and that QEMU.
pub(crate) fn on_image() -> ImageArgs {
    ImageArgs {
        image: Some(image()),
        run: on_qemu(),
    }
}

/// A whole benchmark that must go well, and whose JSON is as the schema of `command` describes it.
pub(crate) fn measure<B: Benchmark>(command: &str, bench: &B) -> DoneOf<B> {
    let files = bench.check().unwrap();
    let never = AtomicBool::new(false);
    let done = series::run(bench, files, &mut Bar::of(bench), &never).unwrap();
    assert!(done.is_ok(), "{}", series::table(bench, &done));
    assert_eq!(done.rows.len(), bench.cells().len());
    assert_matches(&schema::of(command).unwrap(), &bench.json(&done));
    for row in &done.rows {
        assert_matches(&schema::of("boot").unwrap(), &row.boot.json());
    }
    done
}

/// The rows of a benchmark that must go well.
pub(crate) fn rows(bench: &Bench) -> Vec<Row> {
    measure("bench linear-map", bench).rows
}

pub(crate) fn figure(row: &Row, name: &str) -> u64 {
    row.figure(name)
        .unwrap_or_else(|| panic!("linear_map.{name} is not a number in {}", row.boot.json()))
}

/// The job that the kernel recorded.
pub(crate) fn job(row: &Row) -> Job {
    let object = row.boot.json();
    let map = &object["linear_map"];
    let used = object["bbm_level"]["used"].as_u64().unwrap();
    let bbm = BbmLevel::from_number(used as u32);
    let assumed = Job::assumed(
        row.cell.memory,
        row.cell.page_size.value(),
        object["va_bits"].as_u64().unwrap() as u32,
        row.cell.rodata,
        bbm,
        map["tlbi_range"].as_bool().unwrap(),
    )
    .unwrap();
    let geometry = &assumed.geometry;
    assert_eq!(object["pa_bits"], geometry.pa_bits());
    assert_eq!(object["lpa2"], geometry.format() == OutputFormat::Lpa2);
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let ranges = map["pieces"].as_str().unwrap().split(',').map(|piece| {
        let (first, bytes) = piece.split_once('+').unwrap();
        (hexadecimal(first), hexadecimal(bytes))
    });
    Job::of(
        assumed.geometry,
        assumed.capabilities,
        ranges,
        map["distance"].as_u64().unwrap(),
        leaves(row.cell.rodata, bbm),
        map["pool_pages"].as_u64().unwrap(),
    )
}
