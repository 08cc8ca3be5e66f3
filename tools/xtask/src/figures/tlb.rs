//! The tables of modelled TLB misses. Pure.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::path;
use super::path::{count, grouped, number, page_size, rows, select, text};
use super::runs::{Said, command, one};

/// The maps in columns, from small leaves to large ones, and the guest's own.
const MAPS: [(&str, &str); 5] = [
    ("pages", "pages"),
    ("contiguous", "contiguous"),
    ("linear-blocks", "linear blocks"),
    ("blocks", "blocks"),
    ("guest", "guest"),
];

/// For each workload a table: a row for each CPU and page size, a column for each map.
pub(super) fn tables(said: &[Said]) -> Result<String> {
    let said = one(said)?;
    let mut parts = vec![command(said)];
    for replayed in rows(&said.json, "tlb")? {
        parts.push(table(replayed)?);
    }
    ensure!(parts.len() > 1, "nothing was replayed");
    Ok(parts.join("\n"))
}

fn table(replayed: &Value) -> Result<String> {
    let workload = text(replayed, "workload")?;
    let instructions = grouped(count(replayed, "instructions")?);
    let all = rows(replayed, "rows")?;
    let mut lines = Vec::new();
    for cpu in rows(replayed, "cpus")? {
        let name = text(cpu, "name")?;
        for size in [4096, 16384, 65536] {
            let row = |map: &str| {
                all.iter()
                    .find(|row| row["cpu"] == name && row["page_size"] == size && row["map"] == map)
            };
            if row("pages").is_none() {
                continue;
            }
            let mut line = vec![name.to_owned(), page_size(size)];
            for (map, _) in MAPS {
                let misses = row(map).map(|row| number(row, "misses_per_thousand"));
                let misses = misses.transpose()?;
                line.push(misses.map_or("–".to_owned(), |misses| format!("{misses:.3}")));
            }
            line.push(match select(cpu, "kernel_change_percent")?.as_f64() {
                Some(percent) if size == 4096 => format!("{percent:+.1} %"),
                _ => "–".to_owned(),
            });
            lines.push(line);
        }
    }
    let maps = MAPS.map(|(_, name)| name);
    let head = [&["CPU", "pages of"], &maps[..], &["kernel"]].concat();
    Ok(format!(
        "{workload}, {instructions} instructions: modelled misses of both levels for each thousand\n\n{}",
        path::table(2, &head, &lines)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_is_a_cpu_and_a_page_size_that_it_has() {
        let row = |page_size: u64, map: &str, misses: f64| json!({"cpu": "a", "page_size": page_size, "map": map, "misses_per_thousand": misses});
        let json = json!({"tlb": [{
            "workload": "w", "instructions": 1_234_567,
            "cpus": [{"name": "a", "kernel_change_percent": -12.34}],
            "rows": [row(4096, "pages", 2.0), row(4096, "guest", 0.12345), row(65536, "pages", 1.0)],
        }]});
        let said = Said {
            command: "c".into(),
            json,
            ..Said::default()
        };
        let text = tables(&[said]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "    c");
        assert!(lines[2].starts_with("w, 1,234,567 instructions"), "{text}");
        assert_eq!(lines[6], "| a | 4K | 2.000 | – | – | – | 0.123 | -12.3 % |");
        assert_eq!(lines[7], "| a | 64K | 1.000 | – | – | – | – | – |");
        assert_eq!(lines.len(), 8);
    }

    #[test]
    fn no_replay_is_no_table() {
        let said = Said {
            command: "c".into(),
            json: json!({"tlb": []}),
            ..Said::default()
        };
        assert!(tables(&[said]).is_err());
    }
}
