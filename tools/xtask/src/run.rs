//! `cargo xtask run`: one image, three page sizes, one table.

use std::time::Duration;

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::boot::{self, at, number, text};
use crate::image;
use granule_cli::sizes::show_size as size;
use xtask::drawn;

const PAGE_SIZES: [&str; 3] = ["4k", "16k", "64k"];

/// Builds, boots three times and prints. The arguments go to each boot.
pub(crate) fn run(extra: &[String]) -> Result<()> {
    let image = image::image(None)?;
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for page_size in PAGE_SIZES {
        let progress = progress(page_size);
        let mut arguments = vec![format!("--page-size={page_size}")];
        arguments.extend_from_slice(extra);
        let record = boot::boot(&image.path, &arguments);
        progress.finish_and_clear();
        let cells = record.and_then(|record| {
            same_image(&record, &image.sha256)?;
            row(&record)
        });
        match cells {
            Ok(cells) => rows.push(cells),
            Err(error) => failures.push(format!("{page_size}: {error:#}")),
        }
    }
    if let Some(first) = rows.first() {
        let mut table = drawn::table(2, &first.each_ref().map(|(head, _)| *head));
        table.add_rows(rows.iter().map(|row| row.each_ref().map(|(_, cell)| cell)));
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

/// The boot must report the hash of the file that was built, which proves three boots of one image.
fn same_image(record: &Value, sha256: &str) -> Result<()> {
    let booted = text(record, "image.sha256")?;
    ensure!(
        booted == sha256,
        "booted an image with SHA-256 {booted}, not the one just built"
    );
    Ok(())
}

/// The cells of a row, each with the head of its column.
fn row(record: &Value) -> Result<[(&'static str, String); 12]> {
    let count = |key: &str| Ok::<_, anyhow::Error>(number(record, key)?.to_string());
    let bytes = |key: &str| Ok::<_, anyhow::Error>(size(number(record, key)?));
    Ok([
        ("page size", bytes("page_size")?),
        ("chosen by", text(record, "page_size_source")?.to_owned()),
        ("VA bits", count("va_bits")?),
        ("levels", count("levels")?),
        ("RAM", bytes("linear_map.ram_bytes")?),
        ("leaves", leaves(record)?),
        ("tables", count("linear_map.tables")?),
        ("table memory", bytes("linear_map.table_bytes")?),
        ("TLBIs", count("linear_map.tlbi")?),
        ("DSBs", count("linear_map.dsb")?),
        ("ISBs", count("linear_map.isb")?),
        (
            "time",
            format!("{} µs", number(record, "linear_map.time_us")?),
        ),
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
        let cells = row(&record()).unwrap().map(|(_, cell)| cell);
        let leaves = "100 × 32M\n3 × 2M cont\n9 × 16K";
        let before = ["16K", "command-line", "48", "4", "4G"];
        assert_eq!(cells[..5], before);
        assert_eq!(cells[5..], [leaves, "7", "112K", "2", "3", "4", "512 µs"]);
    }

    #[test]
    fn a_missing_value_or_another_image_is_an_error() {
        let mut broken = record();
        broken["linear_map"]["tlbi"] = Value::Null;
        let error = row(&broken).unwrap_err().to_string();
        assert!(error.contains("linear_map.tlbi"), "{error}");
        broken["linear_map"]["leaves"] = json!([]);
        assert!(leaves(&broken).is_err());
        assert!(same_image(&record(), "aa").is_ok());
        assert!(same_image(&record(), "bb").is_err());
    }
}
