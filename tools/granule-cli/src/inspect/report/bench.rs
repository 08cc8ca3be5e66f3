//! Results of benchmarks, and the phases of a boot, as `granule bench --json`, `granule-bench --json` and
//! `granule boot --json` print them: which columns of
//! a row name it, and which were measured. A file of `docs/results` contains
//! several under `results`. The page decides what is compared and shown.

use granule_inspect::fields::about;
use serde::Serialize;
use serde_json::Value;

use crate::page::visible;

/// A kind of results: a key that its object has and no other, the columns that name a row, those that
/// were measured (the most interesting first).
struct BenchKind {
    name: &'static str,
    known_by: &'static str,
    names: &'static [&'static str],
    measures: &'static [&'static str],
}

const KINDS: [BenchKind; 8] = [
    BenchKind {
        name: BOOT,
        known_by: "/phases",
        names: &["name"],
        measures: &["instructions", "microseconds"],
    },
    BenchKind {
        name: "granule bench linear-map",
        known_by: "/cells",
        names: &["page_size", "memory", "rodata", "strategy", "barriers"],
        measures: &[
            "linear_map.instructions",
            "linear_map.tlbi",
            "linear_map.dsb",
            "linear_map.isb",
            "linear_map.descriptor_stores",
            "linear_map.tables",
        ],
    },
    BenchKind {
        name: "granule bench permissions",
        known_by: "/changes",
        names: &["page_size", "bytes", "kind"],
        measures: &[
            "instructions",
            "tlbi",
            "dsb",
            "isb",
            "stores",
            "tables",
            "leaves_split",
            "locks",
        ],
    },
    BenchKind {
        name: "granule bench user",
        known_by: "/rounds",
        names: &["build", "page_size", "op", "pages"],
        measures: &["instructions_per_page", "instructions"],
    },
    BenchKind {
        name: "granule bench kexec",
        known_by: "/published",
        names: &["page_size", "payload", "place", "mmu"],
        measures: &[
            "relocation_instructions",
            "shutdown_instructions",
            "startup_up_instructions",
            "bytes_copied",
            "lines_cleaned",
            "tlbi",
            "dsb",
        ],
    },
    BenchKind {
        name: "granule-bench",
        known_by: "/floors",
        names: &["bytes", "leaf_bytes", "trees", "calls", "subject", "step"],
        measures: &["ratio.median", "ns_per_leaf.median", "tables"],
    },
    BenchKind {
        name: "cargo xtask bench --instructions",
        known_by: "/rows/0/leaves",
        names: &["lto", "bytes", "leaf_bytes", "calls", "subject", "step"],
        measures: &["instructions", "call_count", "leaves"],
    },
    BenchKind {
        name: "granule-peers",
        known_by: "/rows/0/kernel",
        names: &["kernel", "op", "page_size", "large"],
        measures: &["instructions_per_page", "tlbi"],
    },
];

/// The kind whose rows are the phases of one boot, parts of a whole.
const BOOT: &str = "granule boot";

/// Names of rows that are sizes.
const SIZES: [&str; 5] = ["page_size", "memory", "bytes", "leaf_bytes", "payload"];

/// The most rows of a file that the page shows.
const MOST_ROWS: usize = 2000;

pub(super) struct Bench {
    kind: &'static BenchKind,
    object: Value,
}

/// Reads a file of results. Of a file with several, those are left out that are not rows of a benchmark.
pub(super) fn read(text: &str) -> Result<Vec<Bench>, String> {
    let object: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if let Some(results) = object.pointer("/results").and_then(Value::as_array) {
        return Ok(results.iter().cloned().filter_map(Bench::of).collect());
    }
    let bench = Bench::of(object).ok_or(
        "expected one object of `granule bench ... --json`, `granule boot --json` or `granule-bench --json`, or a file of \
         docs/results",
    )?;
    Ok(vec![bench])
}

impl Bench {
    fn rows(object: &Value) -> Option<&Vec<Value>> {
        let rows = object.get("rows").or_else(|| object.get("phases"));
        rows.and_then(Value::as_array)
    }

    fn of(object: Value) -> Option<Self> {
        Self::rows(&object)?;
        let mut kinds = KINDS.iter();
        let kind = kinds.find(|kind| object.pointer(kind.known_by).is_some())?;
        Some(Self { kind, object })
    }

    /// The data for the page.
    pub(super) fn object(&self, file: &str) -> Shown<'_> {
        let rows = Self::rows(&self.object).map(Vec::as_slice);
        let rows = rows.unwrap_or_default();
        let shown = rows.iter().take(MOST_ROWS).map(|row| {
            let names = self.kind.names.iter().map(|name| word(name, at(row, name)));
            let values = self.kind.measures.iter();
            let values = values.map(|name| at(row, name).filter(|value| value.is_number()));
            Row {
                names: names.collect(),
                values: values.collect(),
            }
        });
        Shown {
            file: visible(file),
            kind: self.kind.name,
            names: self.kind.names,
            measures: self.kind.measures,
            rows: shown.collect(),
            is_whole: self.kind.name == BOOT,
            more_rows: rows.len().saturating_sub(MOST_ROWS),
        }
    }
}

/// A file of results on the page.
#[derive(Serialize)]
pub(super) struct Shown<'a> {
    file: String,
    kind: &'static str,
    names: &'static [&'static str],
    measures: &'static [&'static str],
    rows: Vec<Row<'a>>,
    /// Whether the rows are parts of a whole, so that their bars are compared.
    is_whole: bool,
    more_rows: usize,
}

#[derive(Serialize)]
struct Row<'a> {
    names: Vec<String>,
    /// Numbers, or null.
    values: Vec<Option<&'a Value>>,
}

/// The value at a name with dots.
fn at<'v>(row: &'v Value, name: &str) -> Option<&'v Value> {
    name.split('.').try_fold(row, |value, part| value.get(part))
}

/// A name of a row in words.
fn word(name: &str, value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => visible(text),
        Some(value) => match value.as_u64() {
            Some(bytes) if SIZES.contains(&name) => about(bytes),
            _ => visible(&value.to_string()),
        },
    }
}
