//! Tests of the benchmark without QEMU: its boots, and the results that it accepts.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::bench::args::ImageArgs;
use crate::bench::progress::Bar;
use crate::boot;
use crate::result::Outcome;

pub(super) fn bench() -> Bench {
    Bench {
        memory: vec![1 << 30, 4 << 30],
        page_size: vec![PageSize::K4, PageSize::K64],
        rodata: vec![Rodata::Full],
        strategy: Vec::new(),
        barriers: Vec::new(),
        cpu: "neoverse-n1".into(),
        va_bits: None,
        on: ImageArgs::nowhere(),
    }
}

fn run(bench: &Bench, interrupt: &AtomicBool) -> Done {
    series::run(bench, (), &mut Bar::of(bench), interrupt).unwrap()
}

#[test]
fn every_combination_is_there_once_and_strategies_are_neighbours() {
    let cells = bench().cells();
    assert_eq!(cells.len(), 2 * 2 * 6);
    for cell in &cells {
        assert_eq!(cells.iter().filter(|other| *other == cell).count(), 1);
    }
    assert!(
        cells[..6]
            .iter()
            .all(|cell| (cell.memory, cell.page_size) == (1 << 30, PageSize::K4))
    );
}

#[test]
fn bad_usage_ends_it_and_is_kept() {
    let done = run(&bench(), &AtomicBool::new(false));
    assert_eq!(done.rows.len(), 1);
    assert!(!done.is_ok() && !done.interrupted);
    assert!(done.rows[0].boot.bad_usage);
}

#[test]
fn an_interrupted_boot_is_not_a_row() {
    let done = run(&bench(), &AtomicBool::new(true));
    assert!(done.interrupted && done.rows.is_empty() && !done.is_ok());
}

#[test]
fn a_boot_that_ended_well_before_the_interrupt_is_kept() {
    let interrupt = AtomicBool::new(false);
    let well = |request: &Request, _: &mut dyn Write| {
        let mut boot = boot::run(request);
        (boot.outcome, boot.reason) = (Outcome::Ok, None);
        interrupt.store(true, Ordering::Relaxed);
        boot
    };
    let done = series::run_by(&bench(), (), &mut Bar::of(&bench()), &interrupt, well).unwrap();
    assert_eq!((done.rows.len(), done.interrupted), (1, true));
    // With the last figure nothing is missing.
    let mut one = bench();
    (one.memory, one.page_size) = (vec![1 << 30], vec![PageSize::K4]);
    one.strategy = vec![LinearMap::Base];
    interrupt.store(false, Ordering::Relaxed);
    let done = series::run_by(&one, (), &mut Bar::of(&one), &interrupt, well).unwrap();
    assert_eq!((done.rows.len(), done.interrupted), (1, false));
}

#[test]
fn a_wrong_request_is_refused_before_the_first_boot() {
    let line = bench().check().unwrap_err();
    assert!(line.contains("/nonexistent/Image"), "{line}");
    let mut odd = bench();
    odd.va_bits = Some(41);
    assert!(odd.check().unwrap_err().contains("--va-bits 41"));
    let mut empty = bench();
    empty.memory.push(0);
    assert!(empty.check().unwrap_err().contains("--memory 0"));
}

#[test]
fn a_kernel_that_took_something_else_is_not_a_result() {
    let cell = bench().cells()[0];
    let mut boot = boot::run(&bench().request(&cell));
    for line in [
        "page_size=4096",
        "linear_map.strategy=base",
        "linear_map.barriers=entry",
        "linear_map.rodata=full",
    ] {
        boot.record.line(line);
    }
    let mut bench = bench();
    assert_eq!(bench.figures(&cell, &(), &boot), Ok(()));
    // A CPU with fewer address bits also makes the kernel fall back.
    bench.va_bits = Some(52);
    for (line, took) in [("levels=4", "nothing"), ("va_bits=48", "48")] {
        boot.record.line(line);
        let line = bench.figures(&cell, &(), &boot).unwrap_err();
        let expected = format!("va_bits: 52 was requested, the kernel took {took}");
        assert_eq!(line, expected);
    }
    boot.record.line("va_bits=52");
    assert_eq!(bench.figures(&cell, &(), &boot), Ok(()));
    boot.record.line("page_size=65536");
    let line = bench.figures(&cell, &(), &boot).unwrap_err();
    assert!(line.contains("4096") && line.contains("65536"), "{line}");
}
