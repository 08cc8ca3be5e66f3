//! The blocks of the documents: each is a table computed from one run's output. Pure.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::path::{count, grouped, number, page_size, rows, select, table, text};
use super::runs::{Said, command, one};
use super::tlb;

/// One block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) name: &'static str,
    /// The name of its run.
    pub(super) run: &'static str,
    pub(super) render: fn(&[Said]) -> Result<String>,
}

const fn block(
    name: &'static str,
    run: &'static str,
    render: fn(&[Said]) -> Result<String>,
) -> Block {
    Block { name, run, render }
}

/// All blocks.
pub(super) const BLOCKS: &[Block] = &[
    block("run", "run", |said| Ok(fenced(&one(said)?.stdout))),
    block("linear-4g", "linear-4g", commands_and_tables),
    block("linear-4k", "linear-4k", commands_and_tables),
    block("linear-16k", "linear-16k", commands_and_tables),
    block("linear-entry", "linear-entry", commands_and_tables),
    block("blocks", "blocks", commands_and_tables),
    block("blocks-52", "blocks-52", commands_and_tables),
    block("blocks-full", "blocks-full", commands_and_tables),
    block("permissions-single", "permissions-single", |said| {
        permissions(said, "single")
    }),
    block("permissions-random", "permissions", |said| {
        permissions(said, "random")
    }),
    block("plan-memory", "plan-memory", plan_memory),
    block("plan-time", "plan-time", |said| {
        let said = one(said)?;
        Ok(format!("{}\n{}", command(said), fenced(&said.stdout)))
    }),
    block("plan-model", "plan-model", |said| {
        let said = one(said)?;
        Ok(format!("{}\n{}\n", command(said), said.stdout.trim_end()))
    }),
    block("user", "user", commands_and_tables),
    block("kexec-25m", "kexec-25m", kexec),
    block("kexec", "kexec", kexec),
    block("kexec-sizes", "kexec-sizes", kexec),
    block("kexec-published", "kexec-25m", kexec_published),
    block("size", "size", sizes),
    block("peers", "peers", peers),
    block("tlb", "tlb", tlb::tables),
    block("linux-faults", "linux-faults", |said| {
        const COLUMNS: [(&str, &str); 4] = [
            ("fault", "what"),
            ("left out", "plant"),
            ("found", "found"),
            ("removals that matter", "matter"),
        ];
        told_rows(said, "faults", &COLUMNS)
    }),
    block("linux-sensitivity", "linux-sensitivity", |said| {
        const COLUMNS: [(&str, &str); 5] = [
            ("event left out", "kind"),
            ("removals", "removed"),
            ("mattered", "mattered"),
            ("noticed of these", "noticed"),
            ("noticed of the others", "harmless"),
        ];
        told_rows(said, "sensitivity", &COLUMNS)
    }),
    block("host-goals", "host", host_goals),
    block("host", "host", host),
    block("instructions", "instructions", instructions),
];

fn fenced(text: &str) -> String {
    format!("```text\n{}\n```\n", text.trim_end())
}

/// The tables that a benchmark printed for people: each is a run of lines with bars.
fn tables_of(said: &Said) -> Vec<String> {
    let mut tables: Vec<String> = Vec::new();
    let mut inside = false;
    for line in said.stderr.lines() {
        let bar = line.starts_with('|');
        if bar && !inside {
            tables.push(String::new());
        }
        if let (true, Some(table)) = (bar, tables.last_mut()) {
            table.push_str(line);
            table.push('\n');
        }
        inside = bar;
    }
    tables
}

/// Each command with the first table of its output.
fn commands_and_tables(said: &[Said]) -> Result<String> {
    let parts = said.iter().map(|said| {
        let table = tables_of(said).into_iter().next();
        let table = table.with_context(|| format!("`{}` printed no table", said.command))?;
        Ok(format!("{}\n{table}", command(said)))
    });
    Ok(parts.collect::<Result<Vec<_>>>()?.join("\n"))
}

/// The rows of one kind of change, with the rows of the merge that follows.
fn permissions(said: &[Said], kind: &str) -> Result<String> {
    let said = one(said)?;
    let table = tables_of(said).into_iter().next();
    let table = table.context("the benchmark printed no table")?;
    let other = if kind == "single" { "random" } else { "single" };
    let dropped = [format!("| {other} |"), format!("| {other}-merge |")];
    let kept = table
        .lines()
        .filter(|line| !dropped.iter().any(|kind| line.contains(kind.as_str())));
    let kept: Vec<&str> = kept.collect();
    ensure!(kept.len() > 2, "the benchmark has no rows of kind {kind}");
    Ok(format!("{}\n{}\n", command(said), kept.join("\n")))
}

/// Phases, then the copied bytes.
fn kexec(said: &[Said]) -> Result<String> {
    let said = one(said)?;
    let tables = tables_of(said);
    ensure!(tables.len() == 3, "the benchmark printed other tables");
    Ok(format!("{}\n{}\n{}", command(said), tables[0], tables[1]))
}

fn kexec_published(said: &[Said]) -> Result<String> {
    let table = tables_of(one(said)?).into_iter().nth(2);
    table.context("the benchmark printed no published figures")
}

/// A table of the cost of a map of pages and a map of blocks, from plans in pairs.
fn plan_memory(said: &[Said]) -> Result<String> {
    let kib = |bytes: u64| format!("{} KiB", grouped(bytes >> 10));
    let pairs = said.chunks(2).map(|pair| {
        let [pages, blocks] = pair else {
            anyhow::bail!("a plan of pages without one of blocks");
        };
        let of = |said: &Said, key| count(&said.json, key);
        let (many, few) = (of(pages, "table_bytes")?, of(blocks, "table_bytes")?);
        let saved = many.saturating_sub(few) as f64;
        let mib = saved / f64::from(1 << 20);
        Ok(vec![
            page_size(of(pages, "page_size")?),
            grouped(of(pages, "tables")?),
            kib(many),
            grouped(of(blocks, "tables")?),
            kib(few),
            format!("{mib:.1} MiB ({:.1} MB)", saved / 1e6),
        ])
    });
    let rows = pairs.collect::<Result<Vec<_>>>()?;
    let commands: String = said.iter().map(command).collect();
    let head = [
        "pages",
        "tables, of pages",
        "bytes",
        "tables, of blocks",
        "bytes",
        "saved",
    ];
    Ok(format!("{commands}\n{}", table(1, &head, &rows)))
}

/// A row for each page size: the image for every size, the one for that size, the difference.
fn sizes(said: &[Said]) -> Result<String> {
    const PARTS: [&str; 4] = ["image", "code", "text", "data"];
    let said = one(said)?;
    let mut all = Vec::new();
    for over in rows(&said.json, "over_fixed")? {
        let size = text(over, "page_size")?;
        let mut row = |name: String, cell: &dyn Fn(&str) -> Result<String>| {
            let cells = PARTS.map(cell).into_iter().collect::<Result<Vec<_>>>()?;
            all.push([vec![size.to_owned(), name], cells].concat());
            anyhow::Ok(())
        };
        let fixed = format!("fixed-{size}");
        for (build, name) in [
            ("boot", "one image for every size".to_owned()),
            (&fixed, format!("`{fixed}`")),
        ] {
            row(name, &|part| {
                let path = format!("builds[build={build},page_size={size}].{part}_bytes");
                Ok(format!("{:.1}", number(&said.json, &path)? / 1024.0))
            })?;
        }
        row("difference".to_owned(), &|part| {
            let kib = number(over, &format!("{part}.bytes"))? / 1024.0;
            let percent = number(over, &format!("{part}.percent"))?;
            Ok(format!("{kib:+.1} ({percent:+.1} %)"))
        })?;
    }
    let head = ["pages", "", "Image", "code", "text", "data"];
    Ok(format!("{}\n{}", command(said), table(2, &head, &all)))
}

/// The benchmark's names for kinds of work, in words for people.
const WORK: [(&str, &str); 9] = [
    ("touch", "first touch, zeroing included"),
    ("fork", "`fork`, the child exits at once"),
    ("fork-held", "`fork`, the child waits"),
    ("reuse", "next write after the child has exited"),
    ("copy", "next write while the child lives: copy"),
    ("mprotect-read", "`mprotect` to read-only"),
    ("mprotect-write", "`mprotect` to writable"),
    ("rewrite", "next write after that"),
    ("munmap", "`munmap`"),
];

/// The kinds of work whose invalidations are told.
const INVALIDATING: [&str; 5] = ["touch", "fork", "copy", "mprotect-read", "munmap"];

/// Instructions a page, and invalidations: a row for each kind of work, page size and whether larger pages were
/// used; a column for each kernel.
fn peers(said: &[Said]) -> Result<String> {
    let said = one(said)?;
    let all = rows(&said.json, "rows")?;
    let kernels = distinct(all, "kernel")?;
    ensure!(kernels.len() > 1, "there is no other kernel");
    let tables = |what, is_told: &dyn Fn(&str) -> bool, show: &dyn Fn(&Value) -> Result<String>| {
        let mut lines = Vec::new();
        for (op, name) in WORK.into_iter().filter(|(op, _)| is_told(op)) {
            for size in [4096, 16384, 65536] {
                for (large, word) in [(false, "off"), (true, "on")] {
                    let mut line = vec![name.to_owned(), page_size(size), word.to_owned()];
                    for kernel in &kernels {
                        let row = all.iter().find(|row| {
                            row["op"] == op
                                && row["page_size"] == size
                                && row["large"] == large
                                && row["kernel"] == **kernel
                        });
                        line.push(row.map_or(Ok("–".to_owned()), show)?);
                    }
                    lines.push(line);
                }
            }
        }
        let head = [&[what, "pages", "larger ones"], &kernels[..]].concat();
        anyhow::Ok(table(3, &head, &lines))
    };
    let instructions = tables("instructions a page", &|_| true, &|row| {
        Ok(format!("{:.1}", number(row, "instructions_per_page")?))
    })?;
    let invalidating = |op: &str| INVALIDATING.contains(&op);
    let tlbis = tables("TLBIs", &invalidating, &|row| {
        Ok(grouped(count(row, "tlbi")?))
    })?;
    Ok(format!("{}\n{instructions}\n{tlbis}", command(said)))
}

/// The texts under a key, each once, in order.
fn distinct<'a>(rows: impl IntoIterator<Item = &'a Value>, key: &str) -> Result<Vec<&'a str>> {
    let mut found = Vec::new();
    for row in rows {
        let text = text(row, key)?;
        if !found.contains(&text) {
            found.push(text);
        }
    }
    Ok(found)
}

/// The command with a table of a list of objects: columns and their keys.
fn told_rows(said: &[Said], list: &str, columns: &[(&str, &str)]) -> Result<String> {
    let said = one(said)?;
    let all = rows(&said.json, list)?;
    ensure!(!all.is_empty(), "there are no {list}");
    let row = |row: &Value| {
        let cells = columns.iter().map(|(_, key)| {
            let cell = select(row, key)?;
            Ok(cell
                .as_str()
                .map_or_else(|| cell.to_string(), str::to_owned))
        });
        cells.collect::<Result<Vec<_>>>()
    };
    let lines = all.iter().map(row).collect::<Result<Vec<_>>>()?;
    let head: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    Ok(format!(
        "{}\n{}",
        command(said),
        table(head.len(), &head, &lines)
    ))
}

/// A ratio with its quartiles.
pub(super) fn spread(ratio: &Value) -> Result<String> {
    Ok(format!(
        "{:.2} ({:.2} to {:.2})",
        number(ratio, "median")?,
        number(ratio, "lower_quartile")?,
        number(ratio, "upper_quartile")?
    ))
}

fn host_goals(said: &[Said]) -> Result<String> {
    let goals = rows(&one(said)?.json, "goals")?.iter().map(|goal| {
        let reached = match select(goal, "reached")?.as_bool() {
            Some(true) => "reached",
            Some(false) => "missed",
            None => "not decided",
        };
        Ok(vec![
            text(goal, "what")?.to_owned(),
            number(goal, "at_most")?.to_string(),
            spread(select(goal, "ratio")?)?,
            reached.to_owned(),
        ])
    });
    let goals = goals.collect::<Result<Vec<_>>>()?;
    let head = ["goal: time over the floor's", "at most", "measured", ""];
    Ok(table(1, &head, &goals))
}

/// Times over the floor's. Single calls have no floor: they stand beside the fastest other crate.
fn host(said: &[Said]) -> Result<String> {
    jobs(said, |job, row| {
        Ok(if text(row, "calls")? == "range" {
            spread(select(row, "ratio")?)?
        } else {
            format!("{:.2}", over_the_fastest(job, row)?)
        })
    })
}

/// The instructions a leaf of a row.
pub(super) fn per_leaf(row: &Value) -> Result<f64> {
    Ok(number(row, "instructions")? / number(row, "leaves")?)
}

fn instructions(said: &[Said]) -> Result<String> {
    jobs(said, |_, row| {
        let each = per_leaf(row)?;
        Ok(format!("{each:.*}", usize::from(each < 20.0)))
    })
}

/// A table for each job: subjects in rows, steps in columns. `cell` is told the rows of the job and one of them.
fn jobs(said: &[Said], cell: impl Fn(&[&Value], &Value) -> Result<String>) -> Result<String> {
    let said = one(said)?;
    let all = rows(&said.json, "rows")?;
    let mut parts = vec![command(said)];
    let same = |a: &Value, b: &Value| JOB.iter().all(|name| a[name] == b[name]);
    for job in all.chunk_by(same) {
        let first = job.first().context("a job has no row")?;
        let (bytes, leaf) = (count(first, "bytes")?, count(first, "leaf_bytes")?);
        let calls = text(first, "calls")?;
        let job: Vec<&Value> = job.iter().collect();
        let leaves = match leaf {
            0x1000 => "4K leaves",
            0x20_0000 => "2M blocks",
            _ => "1G blocks",
        };
        let what = match calls {
            "range" => format!("{} GiB in {leaves}", bytes >> 30),
            "page" => "one 4K page a call, tables there".to_owned(),
            _ => "one 4K page a call, tables made and emptied".to_owned(),
        };
        let mut lines = Vec::new();
        for subject in distinct(job.iter().copied(), "subject")? {
            let mut line = vec![subject.to_owned()];
            for step in ["map", "protect", "unmap"] {
                let row = job
                    .iter()
                    .find(|row| row["subject"] == subject && row["step"] == step);
                let row = row.with_context(|| format!("{subject} did no {step}"))?;
                line.push(cell(&job, row)?);
            }
            lines.push(line);
        }
        parts.push(table(1, &[&what, "map", "protect", "unmap"], &lines));
    }
    Ok(parts.join("\n"))
}

/// What the rows of one job have in common.
const JOB: [&str; 3] = ["bytes", "leaf_bytes", "calls"];

/// The time of a row over that of the fastest other crate at the same step, medians of the run.
fn over_the_fastest(job: &[&Value], row: &Value) -> Result<f64> {
    let median = |row: &Value| number(select(row, "ns_per_leaf")?, "median");
    let mut fastest: Option<f64> = None;
    for other in job {
        let is_other = !text(other, "subject")?.starts_with("granule");
        if is_other && other["step"] == row["step"] {
            let time = median(other)?;
            fastest = Some(fastest.map_or(time, |fastest| fastest.min(time)));
        }
    }
    Ok(median(row)? / fastest.context("no other crate was measured")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(stderr: &str, json: Value) -> Said {
        Said {
            command: "granule x".into(),
            stdout: "out\n".into(),
            stderr: stderr.into(),
            json,
        }
    }

    #[test]
    fn a_table_stands_under_its_command() {
        let both = [
            said("noise\n| a |\n| - |\n| 1 |\nx\n| c |\n", Value::Null),
            said("| b |\n", Value::Null),
        ];
        let text = commands_and_tables(&both).unwrap();
        assert_eq!(
            text,
            "    granule x\n\n| a |\n| - |\n| 1 |\n\n    granule x\n\n| b |\n"
        );
        assert!(commands_and_tables(&[said("none", Value::Null)]).is_err());
    }

    #[test]
    fn rows_of_one_kind_are_kept_with_their_merges() {
        let table = "| pages | kind |\n| --- | --- |\n| 4K | single |\n| 4K | single-merge |\n\
            | 4K | random |\n| 4K | random-merge |\n";
        let text = permissions(&[said(table, Value::Null)], "random").unwrap();
        assert!(text.ends_with("| --- | --- |\n| 4K | random |\n| 4K | random-merge |\n"));
        let none = said("| pages |\n| --- |\n", Value::Null);
        assert!(permissions(&[none], "single").is_err());
    }

    #[test]
    fn an_operation_that_was_not_measured_is_a_dash() {
        let row = |kernel: &str, size: u64| {
            json!({"op": "fork", "page_size": size, "kernel": kernel, "large": size == 65536,
                "instructions_per_page": 55.82, "tlbi": 1234})
        };
        let json = json!({"rows": [row("Granule", 4096), row("Granule", 65536), row("L", 4096)]});
        let text = peers(&[said("", json)]).unwrap();
        assert!(
            text.contains("| `fork`, the child exits at once | 64K | on | 55.8 | – |"),
            "{text}"
        );
        assert!(
            text.contains("| `fork`, the child exits at once | 4K | off | 1,234 | 1,234 |"),
            "{text}"
        );
    }

    #[test]
    fn rows_that_were_told_are_a_table_and_none_are_an_error() {
        let json = json!({"faults": [{"what": "no TLBI", "mattered": 3}]});
        let columns = [("fault", "what"), ("matters", "mattered")];
        let text = told_rows(&[said("", json.clone())], "faults", &columns).unwrap();
        assert!(
            text.ends_with("| fault | matters |\n| --- | --- |\n| no TLBI | 3 |\n"),
            "{text}"
        );
        assert!(told_rows(&[said("", json!({"faults": []}))], "faults", &columns).is_err());
        assert!(told_rows(&[said("", json)], "faults", &[("x", "none")]).is_err());
    }

    #[test]
    fn sizes_stand_beside_their_difference() {
        let build = |build: &str, bytes: u64| {
            json!({"build": build, "page_size": "4k", "image_bytes": bytes, "code_bytes": bytes,
                "text_bytes": bytes, "data_bytes": bytes})
        };
        let more = json!({"bytes": 512, "percent": 50.0});
        let json = json!({"builds": [build("boot", 1536), build("fixed-4k", 1024)],
            "over_fixed": [{"page_size": "4k", "image": more, "code": more, "text": more,
                "data": more}]});
        let text = sizes(&[said("", json)]).unwrap();
        let lines: Vec<&str> = text.lines().skip(4).collect();
        assert_eq!(
            lines,
            [
                "| 4k | one image for every size | 1.5 | 1.5 | 1.5 | 1.5 |",
                "| 4k | `fixed-4k` | 1.0 | 1.0 | 1.0 | 1.0 |",
                "| 4k | difference | +0.5 (+50.0 %) | +0.5 (+50.0 %) | +0.5 (+50.0 %) | +0.5 (+50.0 %) |",
            ]
        );
    }

    #[test]
    fn each_job_of_the_host_is_a_table() {
        let ratio = json!({"median": 1.0, "lower_quartile": 0.9, "upper_quartile": 1.1});
        let row = |bytes: u64, step: &str| {
            json!({"bytes": bytes, "leaf_bytes": 4096, "calls": "range", "subject": "granule",
                "step": step, "ratio": ratio, "instructions": 163, "leaves": 100})
        };
        let page = |subject: &str, step: &str, time: f64| {
            json!({"bytes": 1 << 26, "leaf_bytes": 4096, "calls": "page", "subject": subject,
                "step": step, "ns_per_leaf": {"median": time}, "instructions": 790, "leaves": 10})
        };
        let both = [1_u64 << 30, 64 << 30];
        let mut rows: Vec<Value> = both
            .iter()
            .flat_map(|bytes| ["map", "protect", "unmap"].map(|step| row(*bytes, step)))
            .collect();
        for step in ["map", "protect", "unmap"] {
            rows.extend([
                page("granule", step, 3.0),
                page("a", step, 2.0),
                page("b", step, 4.0),
            ]);
        }
        let goals = json!([{"what": "map", "at_most": 1.25, "ratio": ratio, "reached": false}]);
        let said = [said("", json!({"rows": rows, "goals": goals}))];
        let text = host(&said).unwrap();
        let cell = "1.00 (0.90 to 1.10)";
        assert!(
            text.contains("| 64 GiB in 4K leaves | map | protect | unmap |"),
            "{text}"
        );
        assert_eq!(
            text.matches(&format!("| granule | {cell} | {cell} | {cell} |"))
                .count(),
            2
        );
        assert!(text.contains("| granule | 1.50 | 1.50 | 1.50 |"), "{text}");
        let counts = instructions(&said).unwrap();
        for line in [
            "| 64 GiB in 4K leaves | map | protect | unmap |",
            "| granule | 1.6 | 1.6 | 1.6 |",
            "| granule | 79 | 79 | 79 |",
        ] {
            assert!(counts.contains(line), "{counts}");
        }
        let goals = host_goals(&said).unwrap();
        assert!(
            goals.ends_with(&format!("| map | 1.25 | {cell} | missed |\n")),
            "{goals}"
        );
    }
}
