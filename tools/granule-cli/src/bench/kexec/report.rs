//! The cost of leaving for another kernel as tables for people and as JSON (schema 1,
//! docs/bench-json.md).

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::published::{self, LINES};
use super::{Bench, Cell, Done, Figures, Mmu};
use crate::bench::text::{SCHEMA, grouped};
use crate::sizes::show_size;

fn rounded(number: f64, places: i32) -> f64 {
    let power = 10_f64.powi(places);
    (number * power).round() / power
}

/// No prediction where nothing is copied: the published times are for copying.
fn predicted(cell: &Cell, figures: &Figures) -> Vec<(&'static str, f64)> {
    if figures.bytes_copied == 0 {
        return Vec::new();
    }
    published::predicted(figures.bytes_copied, cell.mmu == Mmu::Off).collect()
}

fn figures_json(cell: &Cell, figures: &Figures) -> Value {
    let [cached, device] = match cell.mmu {
        Mmu::On => [figures.accesses(), 0],
        Mmu::Off => [0, figures.accesses()],
    };
    let predicted: Map<String, Value> = predicted(cell, figures)
        .into_iter()
        .map(|(machine, ms)| (machine.to_owned(), rounded(ms, 3).into()))
        .collect();
    json!({
        "bytes_total": figures.bytes_total,
        "bytes_copied": figures.bytes_copied,
        "lines_cleaned": figures.lines_cleaned,
        "dsb": figures.dsb,
        "tlbi": figures.tlbi,
        "accesses_cached": cached,
        "accesses_device": device,
        "shutdown_instructions": figures.shutdown,
        "relocation_instructions": figures.relocation,
        "startup_console_instructions": figures.to_console,
        "startup_up_instructions": figures.to_up,
        "yardstick_bytes": figures.yardstick.0,
        "yardstick_instructions": figures.yardstick.1,
        "yardstick_per_line": rounded(figures.yardstick_per_line(), 3),
        "bound_instructions": figures.bound().round(),
        "of_bound": figures.of_bound().map(|part| rounded(part, 4)),
        "predicted_ms": predicted,
    })
}

/// The JSON object.
#[must_use]
pub fn json(bench: &Bench, done: &Done) -> Value {
    let first = done.rows.first().map(|row| row.boot.json());
    let of_first = |key: &str| first.as_ref().map_or(Value::Null, |boot| boot[key].clone());
    let rows: Vec<Value> = done
        .rows
        .iter()
        .map(|row| {
            let mut object = json!({
                "page_size": row.cell.page_size.bytes(),
                "payload": row.cell.payload,
                "place": row.cell.place.word(),
                "mmu": row.cell.mmu.word(),
                "outcome": row.boot.outcome.word(),
                "reason": row.boot.reason,
                "digest_ok": row.boot.kexec.as_ref().and_then(|kexec| kexec.digest_ok),
                "peak_resident_bytes": row.boot.peak_resident_bytes,
            });
            if let (Some(figures), Some(object)) = (&row.figures, object.as_object_mut())
                && let Value::Object(figures) = figures_json(&row.cell, figures)
            {
                object.extend(figures);
            }
            object
        })
        .collect();
    let published: Vec<Value> = LINES
        .iter()
        .map(|line| {
            json!({
                "machine": line.machine,
                "payload_mib": line.payload_mib,
                "phase": line.phase,
                "mmu_off_s": line.off,
                "mmu_on_s": line.on,
            })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "image": of_first("image"),
        "qemu": {
            "version": of_first("qemu")["version"],
            "cpu": bench.cpu,
        },
        "memory": bench.memory,
        "interrupted": done.interrupted,
        "rows": rows,
        "published": published,
    })
}

/// The tables, in Markdown: phases, the relocation's work, the published times.
pub(super) fn table(done: &Done) -> String {
    let measured = || {
        done.rows
            .iter()
            .filter_map(|row| Some((&row.cell, row.figures.as_ref()?)))
    };
    let name = |cell: &Cell| {
        format!(
            "| {} | {} | {} | {} |",
            cell.page_size.word(),
            show_size(cell.payload),
            cell.place.word(),
            cell.mmu.word()
        )
    };
    let mut text = String::from(
        "instructions\n\n\
         | pages | payload | place | MMU | shutdown | relocation | startup to console | to up | of bound |\n\
         | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (cell, figures) in measured() {
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{} {} | {} | {} | {} | {} |",
            name(cell),
            grouped(figures.shutdown),
            grouped(figures.relocation),
            grouped(figures.to_console),
            grouped(figures.to_up),
            figures
                .of_bound()
                .map_or_else(|| "nothing to do".into(), |part| format!("{part:.3}"))
        );
    }
    text += "\n| pages | payload | place | MMU | bytes copied | lines | DSB | TLBI | accesses cached | device \
             | predicted ms |\n\
             | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n";
    for (cell, figures) in measured() {
        let [cached, device] = match cell.mmu {
            Mmu::On => [figures.accesses(), 0],
            Mmu::Off => [0, figures.accesses()],
        };
        let predicted: Vec<String> = predicted(cell, figures)
            .into_iter()
            .map(|(machine, ms)| format!("{ms:.1} {machine}"))
            .collect();
        let _ = writeln!(
            text,
            "{} {} | {} | {} | {} | {} | {} | {} |",
            name(cell),
            grouped(figures.bytes_copied),
            grouped(figures.lines_cleaned),
            figures.dsb,
            figures.tlbi,
            grouped(cached),
            grouped(device),
            predicted.join(", ")
        );
    }
    text += "\npublished of Linux, milliseconds\n\n\
             | machine | MiB | phase | MMU off | MMU on |\n\
             | --- | ---: | --- | ---: | ---: |\n";
    for line in &LINES {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.1} | {:.1} |",
            line.machine,
            line.payload_mib,
            line.phase,
            1000.0 * line.off,
            1000.0 * line.on
        );
    }
    text
}
