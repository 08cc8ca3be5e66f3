//! `granule dump` of this kernel beside the kernel's own record of its linear map: each leaf lies
//! in one of the record's pieces and has the output of the record, and the numbers of leaves and
//! tables agree.

use std::collections::BTreeMap;

use granule_cli::PageSize;
use granule_inspect::source::Source;
use serde_json::Value;

use super::{console, kept};
use crate::hooked::granule;
use crate::kernel::machine::Leaves;
use crate::kernel::reference::{entry_bytes, sizes};

/// Bootargs after the page size: the largest leaves with their own attributes for the kernel's text,
/// the largest leaves alike, and pages only.
const WORDS: [&str; 3] = ["rodata=full", "rodata=noalias", "rodata=full arm64.bbm=0"];

/// The lines of the kernel's record: the values of each key, in order.
fn record(console: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut record: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let lines = console
        .lines()
        .filter_map(|line| line.strip_prefix("@granule "));
    for (key, value) in lines.filter_map(|line| line.trim_end().split_once('=')) {
        record.entry(key).or_default().push(value);
    }
    record
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or_else(|_| panic!("{text:?}"))
}

fn address(range: &Value, key: &str) -> u64 {
    hex(range[key].as_str().unwrap())
}

/// The output of `granule dump --json`, with these arguments after the source.
fn dumped(source: &Source, arguments: &[&str]) -> Value {
    let Source::File(path) = source else {
        panic!("{source:?}");
    };
    let output = granule()
        .arg("dump")
        .arg(path)
        .arg("--json")
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The guest's record and the dump of it, leaf by leaf.
fn agrees(size: PageSize, words: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let bootargs = format!("arm64.pagesize={} {words}", size.word());
    let mut guest = kept(folder, &bootargs);
    let elf = guest.dump(folder, "elf");
    let console_text = std::fs::read(console(folder)).unwrap();
    let console_text = String::from_utf8_lossy(&console_text);
    let record = record(&console_text);
    let one = |key: &str| *record[key].last().unwrap();
    let number = |key: &str| one(key).parse::<u64>().unwrap();
    assert_eq!(number("page_size"), size.bytes(), "{bootargs}");
    let distance = number("linear_map.distance");
    assert_eq!(number("linear_map.pieces_left_out"), 0);
    let pieces: Vec<(u64, u64)> = one("linear_map.pieces")
        .split(',')
        .map(|piece| piece.split_once('+').unwrap())
        .map(|(first, bytes)| (hex(first), hex(bytes)))
        .collect();
    let mapped: u64 = pieces.iter().map(|piece| piece.1).sum();
    assert_eq!(mapped, number("linear_map.mapped_bytes"));

    // The mappings between the first and the last address of the linear map.
    let ((first, _), (last, bytes)) = (pieces[0], pieces[pieces.len() - 1]);
    let edges = [first, last + bytes - 1].map(|at| format!("{:#x}", at.wrapping_add(distance)));
    let dump = dumped(&elf, &["--from", &edges[0], "--to", &edges[1]]);
    assert_eq!(dump["page_size"], size.bytes());
    assert_eq!(dump["va_bits"], number("va_bits"));
    let mut leaves: BTreeMap<(u64, bool), u64> = BTreeMap::new();
    // For each piece its bytes so far and its attributes.
    let mut met = vec![(0, &Value::Null); pieces.len()];
    for range in dump["ranges"].as_array().unwrap() {
        let (start, output) = (address(range, "start"), address(range, "output"));
        let bytes = range["bytes"].as_u64().unwrap();
        let leaf = range["leaf_bytes"].as_u64().unwrap();
        assert_eq!(output.wrapping_add(distance), start, "{range}");
        // A range of leaves may go over pieces only where their attributes are the same.
        for leaf_output in (output..output + bytes).step_by(leaf as usize) {
            let within = |piece: &(u64, u64)| {
                piece.0 <= leaf_output && leaf_output + leaf <= piece.0 + piece.1
            };
            let at = pieces.iter().position(within);
            let at = at.unwrap_or_else(|| panic!("{bootargs}: {leaf_output:#x} in {range}"));
            let (so_far, attributes) = &mut met[at];
            assert_eq!(leaf_output, pieces[at].0 + *so_far, "{bootargs}: {range}");
            assert!(
                attributes.is_null() || **attributes == range["attributes"],
                "{range}"
            );
            *so_far += leaf;
            *attributes = &range["attributes"];
        }
        let contiguous = range["contiguous"].as_bool().unwrap();
        *leaves.entry((leaf, contiguous)).or_default() += bytes / leaf;
    }
    for (piece, (bytes, _)) in pieces.iter().zip(&met) {
        assert_eq!(piece.1, *bytes, "{bootargs}: the piece from {:#x}", piece.0);
    }

    // The record counts groups, the dump their entries.
    let wide = one("lpa2") == "true" || size == PageSize::K64;
    let mut recorded: Leaves = record["linear_map.leaf"]
        .iter()
        .map(|leaf| {
            let words: Vec<&str> = leaf.split(',').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            (number(0), words[1] == "true", number(2))
        })
        .collect();
    let groups = |&(bytes, contiguous): &(u64, bool)| {
        sizes(size, wide)
            .into_iter()
            .filter(|of| of.1 == contiguous)
            .find(|of| match contiguous {
                true => entry_bytes(size, of.2) == bytes,
                false => of.0 == bytes,
            })
            .unwrap()
            .0
    };
    let mut found: Leaves = leaves
        .iter()
        .map(|(kind, count)| {
            let whole = groups(kind);
            (whole, kind.1, count * kind.0 / whole)
        })
        .collect();
    found.sort_unstable();
    recorded.sort_unstable();
    assert_eq!(found, recorded, "{bootargs}");
    assert_eq!(
        dump["totals"]["tables"].as_u64().unwrap() - 1,
        number("linear_map.tables"),
        "{bootargs}: tables below the root"
    );

    // The kernel counted what its own walker may not write.
    let read_only: u64 = dump["ranges"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|range| {
            range["attributes"]
                .as_array()
                .unwrap()
                .contains(&"ro".into())
        })
        .map(|range| range["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(
        read_only,
        number("self_check.read_only_bytes"),
        "{bootargs}"
    );
}

#[test]
fn a_dump_agrees_with_the_kernels_record_leaf_by_leaf() {
    for size in PageSize::ALL {
        for words in WORDS {
            agrees(size, words);
        }
    }
}
