//! Traces that cannot be recorded, or not to their end: one line gives the reason.

use granule_cli::boot::tree;
use granule_cli::{LinearMap, Outcome, PageSize, Request};
use granule_testing::text::assert_contains;

use crate::image::image;
use crate::trace::traces::{checked, record, record_ok};

#[test]
fn a_trace_that_does_not_fit_is_an_error_and_leaves_no_file() {
    let recorded = record(|request| {
        request.linear_map = Some(LinearMap::Base);
        request.page_size = Some(PageSize::K4);
        request.trace_buffer = Some(2 << 20);
        // A map of pages, which is what takes so many events.
        request.append = Some("arm64.bbm=0".into());
    });
    let boot = &recorded.ran.boot;
    assert_eq!((boot.outcome, boot.exit_code()), (Outcome::Refused, 1));
    let line = boot.last_line();
    assert_contains(&line, "65534 events");
    assert_contains(&line, "--trace-buffer");
    assert!(!recorded.path.exists() && boot.trace.is_none());
}

#[test]
fn a_kernel_that_panics_leaves_what_it_did_until_then() {
    let recorded = record(|request| request.append = Some("granule.test=panic".into()));
    let boot = &recorded.ran.boot;
    assert_eq!(boot.outcome, Outcome::Panic, "{}", boot.last_line());
    let trace = boot.trace.as_ref().unwrap();
    assert!(!trace.complete && trace.events > 0);
    let checked = checked(&recorded.text());
    assert!(checked.is_clean() && !checked.header.complete);
}

#[test]
fn areas_that_cannot_be_used_are_refused_by_the_kernel() {
    for (word, expected) in [
        ("granule.trace=1", "granule.trace= cannot be read"),
        ("granule.trace=0x48000001,0x10000", "whole 64K pages"),
        ("granule.trace=0x44000000,0x80000000", "at most 1G"),
        (
            "granule.trace=0x40200000,0x10000",
            "the image, the device tree or the initramfs",
        ),
    ] {
        let recorded = record(|request| {
            request.trace = None;
            request.append = Some(word.into());
        });
        let line = recorded.ran.boot.last_line();
        assert_eq!(recorded.ran.boot.outcome, Outcome::Refused, "{line}");
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn files_that_cannot_be_written_are_refused_before_the_boot() {
    for path in ["/nonexistent/dir/trace", "/"] {
        let recorded = record(|request| request.trace = Some(path.into()));
        let boot = &recorded.ran.boot;
        assert_eq!(boot.exit_code(), 2, "{}", boot.last_line());
        assert!(boot.last_line().contains(&format!("--trace {path}: ")));
        assert!(boot.console.is_empty());
    }
}

#[test]
fn an_exact_tree_must_request_the_trace_itself() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Request::default().image(image()).memory(128 << 20);
    let plain = dir.path().join("plain.dtb");
    std::fs::write(&plain, tree::dump(&machine).unwrap()).unwrap();
    let recorded = record(|request| request.dtb = Some(plain.clone()));
    let line = recorded.ran.boot.last_line();
    assert_eq!(recorded.ran.boot.exit_code(), 2, "{line}");
    let word = line
        .split_whitespace()
        .find(|word| word.starts_with("granule.trace=0x"));
    let word = word.unwrap_or_else(|| panic!("no word to write in {line:?}"));

    let asking = dir.path().join("asking.dtb");
    let bytes = std::fs::read(&plain).unwrap();
    let mut edited = tree::model(&bytes).unwrap();
    let property = dtoolkit::model::DeviceTreeProperty::new("bootargs", word).unwrap();
    edited
        .find_node_mut("/chosen")
        .unwrap()
        .add_property(property);
    std::fs::write(&asking, edited.to_dtb()).unwrap();
    let recorded = record_ok(|request| request.dtb = Some(asking));
    assert!(checked(&recorded.text()).is_clean());
}
