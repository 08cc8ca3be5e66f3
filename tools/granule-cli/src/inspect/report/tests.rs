//! The parts of the page: its data cannot leave their place, and results of benchmarks are distinguished.

use serde_json::{Value, json};

use super::*;
use crate::page::{STYLE, visible};

/// A name that a dump can have.
const HOSTILE: &str = "</script><script>alert(1)</script><!--{{data}}\u{202e}\u{7}é\"'&";

#[test]
fn data_stay_in_their_element() {
    let page = fill(
        PAGE,
        &SCRIPTS,
        &json!({ "sources": [{ "name": visible(HOSTILE) }], "benches": [] }),
    );
    let begin = r#"<script type="application/json" id="data">"#;
    let (_, after) = page.split_once(begin).unwrap();
    let (data, after) = after.split_once("</script>").unwrap();
    let read: Value = serde_json::from_str(data).unwrap();
    assert_eq!(read["sources"][0]["name"], visible(HOSTILE));
    assert!(!data.contains('<'), "{data}");
    // The page's own script is the only other one, and nothing of it was taken for a place to fill.
    assert_eq!(page.matches("<script").count(), 2);
    assert!(after.contains(SCRIPTS[0]));
    assert!(!after.contains("alert(1)"));
}

#[test]
fn the_page_is_whole_and_needs_nothing_else() {
    let page = fill(PAGE, &SCRIPTS, &json!({}));
    assert_eq!(PAGE.matches("{{").count(), 3);
    for part in SCRIPTS.iter().chain([&STYLE]) {
        assert!(page.contains(part));
        assert!(!part.contains("</script") && !part.contains("</style"));
    }
    // The one address is the name of SVG.
    let addresses: Vec<_> = page
        .match_indices("://")
        .map(|(at, _)| &page[at - 4..at + 22])
        .collect();
    assert_eq!(addresses, ["http://www.w3.org/2000/svg"]);
    for word in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "@import",
        "url(",
    ] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn hidden_characters_are_shown() {
    assert_eq!(
        visible("a\u{202e}b\u{0}\u{1b}\n\u{feff}"),
        r"a\u{202e}b\u{0}\u{1b}\u{a}\u{feff}"
    );
    assert_eq!(visible("process 1 (café <b>)"), "process 1 (café <b>)");
}

#[test]
fn results_of_each_benchmark_are_distinguished() {
    let linear = r#"{"cells": 1, "rows": [{"page_size": 16384, "memory": 4294967296, "rodata": "on",
        "strategy": "base", "barriers": null, "linear_map": {"instructions": 7, "tlbi": null}}]}"#;
    let object = value(bench::read(linear).unwrap()[0].object("a.json"));
    assert_eq!(object["kind"], "granule bench linear-map");
    assert_eq!(
        object["rows"][0]["names"],
        json!(["16K", "4G", "on", "base", ""])
    );
    assert_eq!(
        object["rows"][0]["values"],
        json!([7, null, null, null, null, null])
    );
    let host = r#"{"floors": [], "rows": [{"bytes": 1073741824, "leaf_bytes": 4096, "trees": 1, "calls": "range",
        "subject": "granule", "step": "map", "ratio": {"median": 1.25}, "ns_per_leaf": {"median": 2}, "tables": 513}]}"#;
    let object = value(bench::read(host).unwrap()[0].object(HOSTILE));
    assert_eq!(object["rows"][0]["values"], json!([1.25, 2, 513]));
    assert_eq!(object["file"], visible(HOSTILE));
    let boot = r#"{"page_size": 4096, "phases": [{"name": "cpus", "microseconds": 3}]}"#;
    let object = value(bench::read(boot).unwrap()[0].object("x"));
    assert_eq!(
        object["rows"],
        json!([{"names": ["cpus"], "values": [null, 3]}])
    );
    assert_eq!(object["is_whole"], true);
    for (key, kind) in [
        ("changes", "permissions"),
        ("rounds", "user"),
        ("published", "kexec"),
    ] {
        let text = json!({ key: [], "rows": [] }).to_string();
        let object = value(bench::read(&text).unwrap()[0].object("x"));
        assert_eq!(object["kind"], format!("granule bench {kind}"));
    }
}

#[test]
fn other_files_are_not_results() {
    for text in [
        "",
        "[]",
        "7",
        r#"{"rows": []}"#,
        r#"{"cells": 1}"#,
        r#"{"cells": 1, "rows": 7}"#,
    ] {
        assert!(bench::read(text).is_err(), "{text}");
    }
    let odd = bench::read(r#"{"cells": 1, "rows": [7, {}, {"page_size": [1]}]}"#).unwrap();
    let object = value(odd[0].object("x"));
    let rows = &object["rows"];
    assert_eq!(rows[1]["names"], json!(["", "", "", "", ""]));
    assert_eq!(rows[2]["names"][0], "[1]");
}

#[test]
fn stored_results_are_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results");
    let mut kinds = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !is_results(&Source::File(path.clone())) {
            // The record of CI's runs.
            assert_eq!(path.file_name(), Some("ci.jsonl".as_ref()));
            continue;
        }
        let benches = bench::read(&std::fs::read_to_string(&path).unwrap());
        for bench in benches.unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
            let object = value(bench.object("x"));
            let rows = object["rows"].as_array().unwrap();
            let measured = |row: &Value| row["values"][0].is_number();
            assert!(
                rows.iter().any(measured),
                "{}: no measured row",
                path.display()
            );
            kinds.insert(object["kind"].to_string());
        }
    }
    for kind in ["linear-map", "permissions", "kexec"] {
        assert!(
            kinds.contains(&format!("\"granule bench {kind}\"")),
            "{kinds:?}"
        );
    }
    // Of other commands there is nothing to show.
    let plan = r#"{"commit": "a", "results": [{"tables": 3}, {"cells": 1, "rows": []}]}"#;
    assert_eq!(bench::read(plan).unwrap().len(), 1);
}
