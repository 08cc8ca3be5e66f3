//! The commands themselves: what they print, keep and exit with.

use granule_testing::text::assert_contains;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

use granule::arch::bbm::BbmLevel;
use granule_cli::bench::progress::Bar;
use granule_cli::bench::series::{self, Benchmark};
use granule_cli::cost::Job;
use granule_cli::{PageSize, Request, Rodata};
use serde_json::Value;

use crate::bench::rows::{GIB, bench};
use crate::hooked;
use crate::image::image;

/// Runs the command with the image in place of `IMAGE`.
fn granule(words: &str) -> Output {
    let image = image();
    let image = image.to_str().unwrap();
    let words = words
        .split_whitespace()
        .map(|word| if word == "IMAGE" { image } else { word });
    hooked::granule().args(words).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn bench_prints_one_object_whose_rows_agree_with_plan() {
    let measured = granule(
        "bench linear-map --image IMAGE --memory 1G --page-size 16k --strategy base,direct --json",
    );
    assert!(measured.status.success(), "{measured:?}");
    let measured = json(&measured);
    let rows = measured["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    let planned = json(&granule(
        "plan --memory 1G --page-size 16k --strategy base,direct --machine altra --json",
    ));
    for (row, planned_row) in rows.iter().zip(planned["strategies"].as_array().unwrap()) {
        assert_eq!(row["strategy"], planned_row["strategy"]);
        assert_eq!(row["linear_map"]["tables"], planned["tables"]);
        assert_eq!(row["linear_map"]["leaves"], planned["leaves"]);
        // The plan takes the kernel's constants to be as long as they were once: how they are cut
        // out of RAM may differ by a few entries.
        for name in ["tlbi", "dsb", "isb", "descriptor_stores"] {
            let [measured, planned] =
                [&row["linear_map"][name], &planned_row[name]].map(|n| n.as_u64().unwrap());
            assert!(
                measured.abs_diff(planned) <= 2 + measured / 100,
                "{name}: {measured} {planned}"
            );
        }
        assert!(planned_row["predicted_ms_high"].as_f64().unwrap() > 0.0);
    }
    let ratio = rows[1]["ratio_to_base"]["instructions"].as_f64().unwrap();
    assert!(ratio > 0.0 && ratio < 0.2, "{ratio}");
}

#[test]
fn finished_rows_are_kept_when_a_benchmark_is_interrupted() {
    let interrupt = AtomicBool::new(false);
    let bench = bench(PageSize::K64, &[GIB]);
    let bar = &mut Bar::of(&bench);
    let done = series::run_by(&bench, (), bar, &interrupt, |request, console| {
        let boot = hooked::boot(request, console, &interrupt);
        interrupt.store(true, Ordering::Relaxed);
        boot
    })
    .unwrap();
    assert!(done.interrupted && !done.is_ok());
    assert_eq!(done.rows.len(), 1);
    let object = bench.json(&done);
    assert_eq!(object["interrupted"], true);
    assert_eq!(object["rows"][0]["outcome"], "ok");
    assert_eq!(object["rows"][0]["linear_map"]["strategy"], "base");
}

/// A CPU without the page size makes the kernel choose another: that is not a row of what was
/// requested for.
#[test]
fn a_page_size_the_cpu_lacks_is_not_a_result() {
    let output = granule(
        "bench linear-map --image IMAGE --memory 1G --page-size 16k --cpu cortex-a72 --strategy direct \
         --json",
    );
    assert_eq!(output.status.code(), Some(1));
    let object = json(&output);
    assert_eq!(object["rows"][0]["outcome"], "refused");
    let reason = object["rows"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("page_size: 16384"), "{reason}");
}

#[test]
fn an_impossible_measurement_is_bad_usage() {
    for words in [
        "--image IMAGE --va-bits 41",
        "--image /nonexistent/Image --va-bits 48",
    ] {
        let output = granule(&format!("bench linear-map --json {words}"));
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
    }
}

#[test]
fn an_impossible_plan_is_bad_usage() {
    let output = granule("plan --memory 512G --va-bits 39");
    assert_eq!(output.status.code(), Some(2));
    let line = String::from_utf8_lossy(&output.stderr);
    assert_contains(&line, "--va-bits");
    assert_eq!(line.lines().count(), 1);
    for words in [
        "",
        "--check-model --page-size 64k",
        "--check-model --strategy direct",
        "--check-model --va-bits 48",
        "--memory 4G --machine cray",
    ] {
        let output = granule(&format!("plan {words}"));
        assert_eq!(output.status.code(), Some(2), "{words}");
    }
}

/// Compares the assumptions of `granule plan` about the kernel with the kernel: its counts are
/// exact then.
#[test]
fn plan_has_the_pool_of_the_kernel() {
    for size in PageSize::ALL {
        let boot = hooked::run(
            &Request::default()
                .image(image())
                .page_size(size)
                .memory(GIB)
                .cpu("neoverse-n1"),
        );
        assert!(boot.is_ok(), "{}", boot.last_line());
        let job = Job::assumed(GIB, size.value(), 48, Rodata::Full, BbmLevel::Level0, false);
        let record = &boot.json()["linear_map"];
        assert_eq!(record["pool_pages"], job.unwrap().pool_pages, "{size:?}");
    }
}
