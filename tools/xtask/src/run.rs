//! `cargo xtask run`: one image, three page sizes, one table.

use std::time::Duration;

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::boot::{self, at, number, text};
use crate::{drawn, image};
use granule_cli::sizes::show_size as size;

const PAGE_SIZES: [&str; 3] = ["4k", "16k", "64k"];

/// Builds, boots three times and prints. The arguments go to each boot.
pub(crate) fn run(extra: &[String]) -> Result<()> {
    let image = image::image(None)?;
    let granule = boot::build_cli()?;
    let mut table = drawn::table(2, &HEADER);
    let mut failures = Vec::new();
    for page_size in PAGE_SIZES {
        let progress = progress(page_size);
        let mut arguments = vec![format!("--page-size={page_size}")];
        arguments.extend_from_slice(extra);
        let boot = boot::boot(&granule, &image.path, &arguments)?;
        progress.finish_and_clear();
        if let Some(failure) = boot.failure() {
            failures.push(format!("{page_size}: {failure}"));
            continue;
        }
        if let Ok(record) = &boot.record {
            match same_image(record, &image.sha256).and_then(|()| row(record)) {
                Ok(cells) => drop(table.add_row(cells)),
                Err(error) => failures.push(format!("{page_size}: {error:#}")),
            }
        }
    }
    if !table.is_empty() {
        println!("{table}");
        println!("one image for all: SHA-256 {}", image.sha256);
    }
    for failure in &failures {
        eprintln!("boot with {failure}");
    }
    ensure!(
        failures.is_empty(),
        "{} of {} boots failed; `cargo run -p granule-cli -- boot --page-size SIZE` shows the \
         console of one",
        failures.len(),
        PAGE_SIZES.len()
    );
    Ok(())
}

/// A spinner on standard error; indicatif shows none without a terminal.
fn progress(page_size: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(format!("booting with {page_size} pages"));
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

const HEADER: [&str; 12] = [
    "page size",
    "chosen by",
    "VA bits",
    "levels",
    "RAM",
    "leaves",
    "tables",
    "table memory",
    "TLBIs",
    "DSBs",
    "ISBs",
    "time",
];

/// The boot must report the hash of the file that was built, which proves three boots of one image.
fn same_image(record: &Value, sha256: &str) -> Result<()> {
    let booted = text(record, "image.sha256")?;
    ensure!(
        booted == sha256,
        "booted an image with SHA-256 {booted}, not the one just built"
    );
    Ok(())
}

fn row(record: &Value) -> Result<Vec<String>> {
    let count = |key: &str| Ok::<_, anyhow::Error>(number(record, key)?.to_string());
    Ok(vec![
        size(number(record, "page_size")?),
        text(record, "page_size_source")?.to_owned(),
        count("va_bits")?,
        count("levels")?,
        size(number(record, "linear_map.ram_bytes")?),
        leaves(record)?,
        count("linear_map.tables")?,
        size(number(record, "linear_map.table_bytes")?),
        count("linear_map.tlbi")?,
        count("linear_map.dsb")?,
        count("linear_map.isb")?,
        format!("{} µs", number(record, "linear_map.time_us")?),
    ])
}

/// Leaves by size, largest first, one a line. Contiguous groups are listed apart from blocks and pages of
/// the same size.
fn leaves(record: &Value) -> Result<String> {
    let list = at(record, "linear_map.leaves")?
        .as_array()
        .cloned()
        .unwrap_or_default();
    let mut kinds = Vec::new();
    for leaf in &list {
        let contiguous = at(leaf, "contiguous")?.as_bool().unwrap_or(false);
        kinds.push((number(leaf, "size")?, contiguous, number(leaf, "count")?));
    }
    ensure!(
        !kinds.is_empty(),
        "linear_map.leaves in the boot record is empty"
    );
    kinds.sort_by_key(|(size, contiguous, _)| (std::cmp::Reverse(*size), *contiguous));
    let lines = kinds.iter().map(|(bytes, contiguous, count)| {
        format!(
            "{count} × {}{}",
            size(*bytes),
            if *contiguous { " cont" } else { "" }
        )
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record() -> Value {
        json!({
            "page_size": 16384, "page_size_source": "command-line", "va_bits": 48, "levels": 4,
            "image": {"sha256": "aa"},
            "linear_map": {
                "ram_bytes": 4u64 << 30, "tables": 7, "table_bytes": 7 * 16384, "tlbi": 2,
                "dsb": 3, "isb": 4, "time_us": 512,
                "leaves": [
                    {"size": 16384, "contiguous": false, "count": 9},
                    {"size": 2 << 20, "contiguous": true, "count": 3},
                    {"size": 32 << 20, "contiguous": false, "count": 100},
                ],
            },
        })
    }

    #[test]
    fn a_row_has_the_values_of_the_record() {
        assert_eq!(
            row(&record()).unwrap(),
            [
                "16K",
                "command-line",
                "48",
                "4",
                "4G",
                "100 × 32M\n3 × 2M cont\n9 × 16K",
                "7",
                "112K",
                "2",
                "3",
                "4",
                "512 µs"
            ]
        );
        assert_eq!(row(&record()).unwrap().len(), HEADER.len());
    }

    #[test]
    fn a_missing_value_or_another_image_is_an_error() {
        let mut broken = record();
        broken["linear_map"]["tlbi"] = Value::Null;
        assert!(
            row(&broken)
                .unwrap_err()
                .to_string()
                .contains("linear_map.tlbi")
        );
        broken["linear_map"]["leaves"] = json!([]);
        assert!(leaves(&broken).is_err());
        assert!(same_image(&record(), "aa").is_ok());
        assert!(same_image(&record(), "bb").is_err());
    }
}
