//! Runs a benchmark and reads its rows: code that all rooms share.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use granule::arch::bbm::BbmLevel;
use granule_cli::bench::linear_map::{self, Bench, Form, Row};
use granule_cli::cost::Job;
use granule_cli::cost::job::leaves;
use granule_cli::{LinearMap, PageSize, Rodata};

use crate::hooked::qemu;
use crate::image::image;

pub(crate) const GIB: u64 = 1 << 30;

/// Every strategy with the barriers it goes by, on neoverse-n1: TLBIs by address only.
pub(crate) fn bench(page_size: PageSize, memory: &[u64]) -> Bench {
    Bench {
        memory: memory.to_vec(),
        page_size: vec![page_size],
        rodata: vec![Rodata::Full],
        forms: LinearMap::ALL
            .map(|strategy| Form {
                strategy,
                barriers: None,
            })
            .to_vec(),
        cpu: "neoverse-n1".into(),
        va_bits: None,
        qemu: qemu(),
        image: Some(image()),
        timeout: Duration::from_secs(300),
    }
}

/// The rows of a benchmark that must go well.
pub(crate) fn rows(bench: &Bench) -> Vec<Row> {
    let done = linear_map::run(bench, &mut (), &AtomicBool::new(false));
    assert!(done.is_ok(), "{}", linear_map::report::table(bench, &done));
    assert_eq!(done.rows.len(), bench.cells().len());
    done.rows
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
    assert_eq!(object["lpa2"], geometry.lpa2());
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
