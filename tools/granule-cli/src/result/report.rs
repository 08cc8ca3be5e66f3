//! The summary of a boot in a few lines for people. The caller prints it.

use std::fmt::Write as _;

use serde_json::Value;

use super::console_record::RecordLines;
use super::{Boot, Figures};
use crate::sizes::show_size;

/// The summary; empty if the kernel printed nothing to summarise. With several kernels each has its
/// own summary, and the cost of leaving stands before the last.
pub fn summary(boot: &Boot) -> String {
    let (last, earlier) = match boot.boots.as_slice() {
        [earlier @ .., last] if !earlier.is_empty() => (last, earlier),
        _ => {
            let leaving = boot.kexec.as_ref().map_or_else(String::new, leaving);
            return kernel(&boot.record) + &leaving + &core(boot);
        }
    };
    let mut lines = String::new();
    for (index, record) in earlier.iter().enumerate() {
        lines += &format!("kernel {}\n{}", index + 1, kernel(record));
    }
    lines += &boot.kexec.as_ref().map_or_else(String::new, leaving);
    lines += &format!("kernel {}\n{}", boot.boots.len(), kernel(last));
    lines + &core(boot)
}

/// The core that a crash kernel saved; empty without one.
fn core(boot: &Boot) -> String {
    let core = boot
        .crash
        .as_ref()
        .and_then(|crashed| crashed.core.as_ref());
    core.map_or_else(String::new, |core| {
        format!(
            "  {:<12} {}: {} bytes, {} of RAM, {} pages, {} ranges\n",
            "core",
            core.output.display(),
            core.bytes,
            show_size(core.ram_bytes),
            show_size(core.page_size),
            core.ranges
        )
    })
}

/// The cost of leaving for another kernel; empty if it is unknown.
fn leaving(figures: &Figures) -> String {
    let count = |of: Option<u64>, what: &str| of.map(|of| format!("{of} {what}"));
    let digests = figures.digest_ok.map(|ok| match ok {
        true => "digests agree".to_owned(),
        false => "digests do not agree".to_owned(),
    });
    let words: Vec<String> = [
        count(figures.bytes_total, "bytes"),
        count(figures.bytes_copied, "copied"),
        count(figures.lines_cleaned, "lines cleaned"),
        count(figures.dsb, "DSB"),
        count(figures.instructions, "instructions"),
        digests,
    ]
    .into_iter()
    .flatten()
    .collect();
    if words.is_empty() {
        return String::new();
    }
    format!("  {:<12} {}\n", "kexec", words.join(", "))
}

/// The summary of one kernel in a few lines.
fn kernel(record: &RecordLines) -> String {
    let mut lines = String::new();
    let mut line = |name: &str, text: Option<String>| {
        if let Some(text) = text {
            // Writing into a String cannot fail.
            let _ = writeln!(lines, "  {name:<12} {text}");
        }
    };
    let number = |path: &str| record.get(path).and_then(Value::as_u64);
    let text = |path: &str| record.get(path).and_then(Value::as_str);

    line(
        "page size",
        number("page_size").map(|size| {
            let source = text("page_size_source").map_or_else(String::new, |s| format!(" ({s})"));
            format!("{}{source}", show_size(size))
        }),
    );
    line(
        "addresses",
        number("va_bits").map(|va| {
            let pa = number("pa_bits").map_or_else(String::new, |pa| format!(", {pa} PA bits"));
            let levels = number("levels").map_or_else(String::new, |n| format!(", {n} levels"));
            format!("{va} VA bits{pa}{levels}")
        }),
    );
    line(
        "CPUs",
        number("cpus_expected")
            .filter(|expected| *expected > 1)
            .map(|expected| {
                let up = number("cpus").map_or_else(|| "?".to_owned(), |up| up.to_string());
                format!("{up} of {expected}")
            }),
    );
    line(
        "linear map",
        number("linear_map.mapped_bytes").map(|mapped| {
            let ram = number("linear_map.ram_bytes")
                .map_or_else(String::new, |ram| format!(" of {} RAM", show_size(ram)));
            let how: Vec<&str> = ["linear_map.strategy", "linear_map.rodata"]
                .into_iter()
                .filter_map(text)
                .collect();
            format!("{}{ram}, {}", show_size(mapped), how.join(", rodata="))
        }),
    );
    line("leaves", leaves(record.get("linear_map.leaves")));
    line(
        "tables",
        number("linear_map.tables").map(|tables| {
            let bytes = number("linear_map.table_bytes")
                .map_or_else(String::new, |bytes| format!(", {}", show_size(bytes)));
            format!("{tables}{bytes}")
        }),
    );
    let counts: Vec<String> = [
        ("stores", "linear_map.descriptor_stores"),
        ("TLBI", "linear_map.tlbi"),
        ("DSB", "linear_map.dsb"),
        ("ISB", "linear_map.isb"),
        ("instructions", "linear_map.instructions"),
        ("us", "linear_map.time_us"),
    ]
    .into_iter()
    .filter_map(|(unit, path)| number(path).map(|n| format!("{n} {unit}")))
    .collect();
    line("cost", (!counts.is_empty()).then(|| counts.join(", ")));
    lines
}

/// The most characters of a phase's bar.
const BAR: u64 = 40;

/// The phases of the last kernel's boot, a line each with its share of the whole: in instructions if all were
/// counted, else in microseconds.
pub fn phases(record: &RecordLines) -> String {
    let list = record.get("phases").and_then(Value::as_array);
    let list = list.map(Vec::as_slice).unwrap_or_default();
    let of = |unit: &str| -> Option<Vec<_>> {
        list.iter()
            .map(|one| Some((one.get("name")?.as_str()?, one.get(unit)?.as_u64()?)))
            .collect()
    };
    let (unit, rows) = match (of("instructions"), of("microseconds")) {
        (Some(rows), _) => ("instructions", rows),
        (None, Some(rows)) => ("microseconds", rows),
        (None, None) => ("", Vec::new()),
    };
    if rows.is_empty() {
        return "  phases       the kernel printed none\n".to_owned();
    }
    let whole = rows
        .iter()
        .fold(0, |sum: u64, (_, one)| sum.saturating_add(*one));
    let mut lines = format!("  phases       {whole} {unit} to the first program\n");
    for (name, count) in rows {
        let share = u128::from(count) * u128::from(BAR) / u128::from(whole.max(1));
        let bar = "#".repeat(share as usize);
        let percent = count as f64 * 100.0 / whole.max(1) as f64;
        let line = format!("    {name:<14} {count:>13} {percent:5.1} % {bar}");
        let _ = writeln!(lines, "{}", line.trim_end());
    }
    lines
}

fn leaves(value: Option<&Value>) -> Option<String> {
    let list = value?.as_array().filter(|list| !list.is_empty())?;
    let words: Vec<String> = list
        .iter()
        .filter_map(|leaf| {
            let size = show_size(leaf.get("size")?.as_u64()?);
            let kind = if leaf.get("contiguous")?.as_bool()? {
                " contiguous"
            } else {
                ""
            };
            Some(format!("{} x {size}{kind}", leaf.get("count")?))
        })
        .collect();
    Some(words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Request, boot};

    #[test]
    fn prints_what_was_reported_and_nothing_else() {
        let mut boot = boot::run(&Request::default().image("/nonexistent"));
        assert_eq!(summary(&boot), "");
        for line in [
            "page_size=16384",
            "page_size_source=fallback",
            "va_bits=47",
            "levels=3",
            "cpus=3",
            "cpus_expected=4",
            "linear_map.strategy=direct",
            "linear_map.rodata=on",
            "linear_map.mapped_bytes=4294967296",
            "linear_map.leaf=16384,false,5",
            "linear_map.leaf=33554432,true,2",
            "linear_map.tables=9",
            "linear_map.tlbi=0",
        ] {
            boot.record.line(line);
        }
        assert_eq!(
            summary(&boot),
            "  page size    16K (fallback)\n  \
             addresses    47 VA bits, 3 levels\n  \
             CPUs         3 of 4\n  \
             linear map   4G, direct, rodata=on\n  \
             leaves       5 x 16K, 2 x 32M contiguous\n  \
             tables       9\n  \
             cost         0 TLBI\n"
        );
    }

    #[test]
    fn phases_have_their_shares_of_the_whole() {
        let mut record = RecordLines::default();
        assert!(phases(&record).contains("none"));
        record.line("phase=name=mmu-off instructions=30 microseconds=1");
        record.line("phase=name=linear-map instructions=10 microseconds=0");
        let bar = |count: usize| "#".repeat(count);
        assert_eq!(
            phases(&record),
            format!(
                "  phases       40 instructions to the first program\n    \
                 mmu-off                   30  75.0 % {}\n    \
                 linear-map                10  25.0 % {}\n",
                bar(30),
                bar(10)
            )
        );
        record.line("phase=name=cpus microseconds=3");
        assert!(phases(&record).starts_with("  phases       4 microseconds"));
    }

    #[test]
    fn each_kernel_has_its_summary_and_leaving_stands_between() {
        let mut boot = boot::run(&Request::default().image("/nonexistent"));
        let record = |line: &str| {
            let mut record = RecordLines::default();
            record.line(line);
            record
        };
        boot.boots = vec![record("page_size=4096"), record("page_size=65536")];
        boot.record = boot.boots[1].clone();
        boot.kexec = Some(Figures {
            bytes_total: Some(1000),
            bytes_copied: Some(0),
            lines_cleaned: Some(7),
            dsb: Some(2),
            digest_ok: Some(true),
            ..Figures::default()
        });
        assert_eq!(
            summary(&boot),
            "kernel 1\n  page size    4K\n  \
             kexec        1000 bytes, 0 copied, 7 lines cleaned, 2 DSB, digests agree\n\
             kernel 2\n  page size    64K\n"
        );
        // A next kernel that is not ours prints no record.
        boot.boots.pop();
        boot.record = boot.boots[0].clone();
        let alone = summary(&boot);
        assert!(alone.starts_with("  page size    4K\n  kexec "), "{alone}");
    }
}
