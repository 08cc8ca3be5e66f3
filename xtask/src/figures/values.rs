//! Single figures in sentences and headline tables. Each is computed from a run's JSON, so that none can
//! disagree with the run's own rows. Pure.

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;

use super::path::{count, grouped, number, select};
use super::runs::Said;
use super::tables::{per_leaf, spread};

/// One figure.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) name: &'static str,
    /// The name of its run.
    pub(super) run: &'static str,
    /// Whether the figure may differ a little, as instructions may.
    pub(super) near: bool,
    of: fn(&Json) -> Result<String>,
}

impl Value {
    /// The figure in the form that a document has.
    pub(super) fn render(&self, said: &[Said]) -> Result<String> {
        let first = said.first().context("the run has no command")?;
        (self.of)(&first.json).with_context(|| format!("figure {}", self.name))
    }
}

/// A count or similar figure, which must agree exactly.
const fn exact(name: &'static str, run: &'static str, of: fn(&Json) -> Result<String>) -> Value {
    Value {
        name,
        run,
        near: false,
        of,
    }
}

/// Instructions, and figures computed from them.
const fn near(name: &'static str, run: &'static str, of: fn(&Json) -> Result<String>) -> Value {
    Value {
        name,
        run,
        near: true,
        of,
    }
}

/// TLBIs of Linux 6.1.176 in its 4 GiB map of 4K pages (docs/performance.md says how it was counted).
const LINUX_6_1_TLBI: f64 = 67_549.0;

/// All figures.
pub(super) const VALUES: &[Value] = &[
    near("direct-4k", "linear-4g", |j| {
        linear(j, 4096, "direct", "instructions")
    }),
    exact("direct-4k-tlbi", "linear-4g", |j| {
        linear(j, 4096, "direct", "tlbi")
    }),
    exact("direct-4k-dsb", "linear-4g", |j| {
        linear(j, 4096, "direct", "dsb")
    }),
    near("base-4k-millions", "linear-4g", |j| {
        millions(j, 4096, "base")
    }),
    near("no-alloc-remap-4k-millions", "linear-4g", |j| {
        millions(j, 4096, "no-alloc-remap")
    }),
    exact("base-4k-tlbi", "linear-4g", |j| {
        linear(j, 4096, "base", "tlbi")
    }),
    exact("base-4k-tlbi-over-linux", "linear-4g", |j| {
        let here = number(j, &row(4096, "base", "tlbi"))?;
        Ok(format!("{:+.2} %", 100.0 * (here / LINUX_6_1_TLBI - 1.0)))
    }),
    exact("stores-4k", "linear-4g", |j| stores(j, 4096)),
    exact("stores-16k", "linear-4g", |j| stores(j, 16384)),
    exact("stores-64k", "linear-4g", |j| stores(j, 65536)),
    near("direct-16k-64g", "linear-16k", |j| {
        linear(j, 16384, "direct", "instructions")
    }),
    near("blocks-4k", "blocks", |j| {
        linear(j, 4096, "direct", "instructions")
    }),
    exact("blocks-4k-dsb", "blocks", |j| {
        linear(j, 4096, "direct", "dsb")
    }),
    exact("blocks-4k-tlbi", "blocks", |j| {
        linear(j, 4096, "direct", "tlbi")
    }),
    exact("blocks-4k-tables", "blocks", |j| {
        linear(j, 4096, "direct", "tables")
    }),
    near("blocks-16k", "blocks", |j| {
        linear(j, 16384, "direct", "instructions")
    }),
    exact("blocks-16k-dsb", "blocks", |j| {
        linear(j, 16384, "direct", "dsb")
    }),
    exact("blocks-16k-tlbi", "blocks", |j| {
        linear(j, 16384, "direct", "tlbi")
    }),
    near("blocks-16k-52", "blocks-52", |j| {
        linear(j, 16384, "direct", "instructions")
    }),
    near("growth-4k", "growth", |j| growth(j, 4096)),
    near("growth-16k", "growth", |j| growth(j, 16384)),
    near("growth-64k", "growth", |j| growth(j, 65536)),
    near("resident-base", "linear-4k", |j| resident(j, "base")),
    near("resident-direct", "linear-4k", |j| resident(j, "direct")),
    near("user-fork-over-fixed", "user", |j| over_fixed(j, "fork")),
    near("user-munmap-over-fixed", "user", |j| {
        over_fixed(j, "munmap")
    }),
    near("peers-touch-4k", "peers", |j| {
        per_page(j, "touch", 4096, true)
    }),
    near("peers-touch-4k-linux", "peers", |j| {
        per_page(j, "touch", 4096, false)
    }),
    near("peers-fork-4k", "peers", |j| {
        per_page(j, "fork", 4096, true)
    }),
    near("peers-fork-4k-linux", "peers", |j| {
        per_page(j, "fork", 4096, false)
    }),
    near("peers-munmap-4k", "peers", |j| {
        per_page(j, "munmap", 4096, true)
    }),
    near("peers-munmap-4k-linux", "peers", |j| {
        per_page(j, "munmap", 4096, false)
    }),
    near("peers-mprotect-4k", "peers", |j| {
        per_page(j, "mprotect-read", 4096, true)
    }),
    near("peers-mprotect-4k-linux", "peers", |j| {
        per_page(j, "mprotect-read", 4096, false)
    }),
    near("kexec-page", "kexec", |j| {
        let copied = kexec(84, "copied", "bytes_copied");
        let pages = number(j, &copied)? / 4096.0;
        let relocation = number(j, &kexec(84, "copied", "relocation_instructions"))?;
        Ok(format!("{:.0}", relocation / pages))
    }),
    exact("kexec-dsb", "kexec", |j| {
        counted(j, &kexec(84, "copied", "dsb"))
    }),
    near("kexec-in-place", "kexec", |j| {
        counted(j, &kexec(84, "in-place", "relocation_instructions"))
    }),
    near("kexec-console-in-place", "kexec-25m", |j| {
        to_console(j, "in-place")
    }),
    near("kexec-console-copied", "kexec-25m", |j| {
        to_console(j, "copied")
    }),
    near("kexec-of-bound-25m", "kexec-25m", |j| of_bound(j, 25)),
    near("kexec-of-bound-84m", "kexec", |j| of_bound(j, 84)),
    near("kexec-of-bound-380m", "kexec", |j| of_bound(j, 380)),
    near("yardstick", "kexec-25m", |j| {
        counted(j, &kexec(25, "copied", "yardstick_instructions"))
    }),
    near("image-over-4k", "size", |j| {
        let bytes = number(j, "over_fixed[page_size=4k].image.bytes")?;
        Ok(format!("{:+.0} KiB", bytes / 1024.0))
    }),
    near("image-over-4k-percent", "size", |j| {
        let percent = number(j, "over_fixed[page_size=4k].image.percent")?;
        Ok(format!("{percent:+.1} %"))
    }),
    near("code-over-4k", "size", |j| {
        let bytes = number(j, "over_fixed[page_size=4k].code.bytes")?;
        Ok(format!("{:+.0} KiB", bytes / 1024.0))
    }),
    near("text-over", "size", |j| over_all(j, "text")),
    near("data-over", "size", |j| over_all(j, "data")),
    near("per-page-size", "size", per_page_size),
    near("boot-stack", "size", |j| {
        let builds = select(j, "builds")?.as_array().context("no builds")?;
        let most = builds
            .iter()
            .filter_map(|b| b["stack_bytes"].as_u64())
            .max();
        Ok(format!("{} KiB", most.context("no stack")?.div_ceil(1024)))
    }),
    near("host-map", "host", |j| ours(j, "granule", 64, 4096, "map")),
    near("host-map-other", "host", |j| other(j, 64, 4096, "map")),
    near("host-map-1g", "host", |j| {
        ours(j, "granule", 1, 4096, "map")
    }),
    near("host-map-1g-other", "host", |j| other(j, 1, 4096, "map")),
    near("host-protect", "host", |j| {
        ours(j, "granule", 64, 4096, "protect")
    }),
    near("host-protect-other", "host", |j| {
        other(j, 64, 4096, "protect")
    }),
    near("host-protect-live", "host", |j| {
        ours(j, "granule, live", 64, 4096, "protect")
    }),
    near("host-protect-live-other", "host", |j| {
        other_live(j, 64, 4096, "protect")
    }),
    near("host-unmap", "host", |j| {
        ours(j, "granule", 64, 4096, "unmap")
    }),
    near("host-unmap-other", "host", |j| other(j, 64, 4096, "unmap")),
    near("host-unmap-blocks", "host", |j| {
        ours(j, "granule", 1, 2 << 20, "unmap")
    }),
    near("host-unmap-blocks-other", "host", |j| {
        other(j, 1, 2 << 20, "unmap")
    }),
    exact("one-page-map", "instructions", |j| {
        one_page_map(j, "granule")
    }),
    exact("cursor-map", "instructions", |j| {
        one_page_map(j, "granule, cursor")
    }),
    near("host-floor", "host", |j| {
        let path = format!(
            "floors[bytes={},leaf_bytes=4096].floor_over_memset",
            64_u64 << 30
        );
        spread(select(j, &path)?)
    }),
];

fn counted(json: &Json, path: &str) -> Result<String> {
    Ok(grouped(count(json, path)?))
}

/// The path to a figure of a row of `bench linear-map`.
fn row(page_size: u32, strategy: &str, figure: &str) -> String {
    format!("rows[page_size={page_size},strategy={strategy}].linear_map.{figure}")
}

fn linear(json: &Json, page_size: u32, strategy: &str, figure: &str) -> Result<String> {
    counted(json, &row(page_size, strategy, figure))
}

fn millions(json: &Json, page_size: u32, strategy: &str) -> Result<String> {
    let instructions = number(json, &row(page_size, strategy, "instructions"))?;
    Ok(format!("{:.1} M", instructions / 1e6))
}

/// Stores into table memory for each entry that the tables have.
fn stores(json: &Json, page_size: u32) -> Result<String> {
    let stores = number(json, &row(page_size, "direct", "descriptor_stores"))?;
    let tables = number(json, &row(page_size, "direct", "tables"))?;
    let entries = tables * f64::from(page_size / 8);
    Ok(format!("{:.4}", stores / entries))
}

/// Instructions for each additional page.
fn growth(json: &Json, page_size: u32) -> Result<String> {
    let at = |gib: u64| {
        let path = format!(
            "rows[page_size={page_size},memory={}].linear_map.instructions",
            gib << 30
        );
        number(json, &path)
    };
    let pages = ((512_u64 - 4) << 30) as f64 / f64::from(page_size);
    Ok(format!("{:.3}", (at(512)? - at(4)?) / pages))
}

fn resident(json: &Json, strategy: &str) -> Result<String> {
    let path = format!(
        "rows[memory={},strategy={strategy}].peak_resident_bytes",
        512_u64 << 30
    );
    Ok(format!("{} MiB", grouped(count(json, &path)? >> 20)))
}

/// The extra size of the image for every page size, compared with the image for each single one.
fn over_fixed(json: &Json, op: &str) -> Result<String> {
    let each = [4096, 16384, 65536].map(|size| {
        let path = format!("rows[build=boot,page_size={size},op={op}].over_fixed_percent");
        Ok(format!("{:+.3} %", number(json, &path)?))
    });
    let each: Result<Vec<String>> = each.into_iter().collect();
    Ok(each?.join(", "))
}

/// Instructions per page, here or on each Linux with that page size, in pages of that size alone.
fn per_page(json: &Json, op: &str, page_size: u64, ours: bool) -> Result<String> {
    let rows = select(json, "rows")?.as_array().context("no rows")?;
    let mut told = Vec::new();
    for row in rows {
        let here = row["kernel"] == "Granule";
        if row["op"] != op || row["page_size"] != page_size || row["large"] != false || here != ours
        {
            continue;
        }
        let figure = format!("{:.1}", number(row, "instructions_per_page")?);
        told.push(if here {
            figure
        } else {
            let name = select(row, "kernel")?.as_str().unwrap_or_default();
            format!("{figure} ({})", name.trim_start_matches("Linux "))
        });
    }
    ensure!(!told.is_empty(), "no kernel did {op}");
    Ok(told.join(", "))
}

/// The path to a figure of leaving with 4K pages and the MMU on.
fn kexec(mib: u64, place: &str, figure: &str) -> String {
    let payload = mib << 20;
    format!("rows[page_size=4096,payload={payload},place={place},mmu=on].{figure}")
}

/// From the call of `reboot` to the next kernel's first line on the console.
fn to_console(json: &Json, place: &str) -> Result<String> {
    let phases = [
        "shutdown_instructions",
        "relocation_instructions",
        "startup_console_instructions",
    ];
    let mut sum = 0.0;
    for phase in phases {
        sum += number(json, &kexec(25, place, phase))?;
    }
    Ok(format!("{:.2} M", sum / 1e6))
}

fn of_bound(json: &Json, mib: u64) -> Result<String> {
    Ok(format!(
        "{:.3}",
        number(json, &kexec(mib, "copied", "of_bound"))?
    ))
}

fn over_all(json: &Json, part: &str) -> Result<String> {
    let each = ["4k", "16k", "64k"].map(|size| {
        let bytes = number(json, &format!("over_fixed[page_size={size}].{part}.bytes"))?;
        Ok(format!("{:+.0}", bytes / 1024.0))
    });
    let each: Result<Vec<String>> = each.into_iter().collect();
    Ok(format!("{} KiB", each?.join(", ")))
}

/// Code that exists once for each page size.
fn per_page_size(json: &Json) -> Result<String> {
    let rows = select(json, "per_page_size")?
        .as_array()
        .context("no rows")?;
    let sums = ["4k", "16k", "64k"].map(|size| {
        let sum: u64 = rows.iter().filter_map(|row| row[size].as_u64()).sum();
        (sum >> 10).to_string()
    });
    Ok(format!("{} KiB", sums.join(", ")))
}

/// Instructions of a subject for mapping one page a call where the tables are there.
fn one_page_map(json: &Json, subject: &str) -> Result<String> {
    let rows = select(json, "rows")?.as_array().context("no rows")?;
    let row = rows
        .iter()
        .find(|row| row["calls"] == "page" && row["step"] == "map" && row["subject"] == subject);
    let row = row.with_context(|| format!("{subject} mapped no page"))?;
    Ok(format!("{:.0}", per_leaf(row)?))
}

fn host_row<'a>(
    json: &'a Json,
    gib: u64,
    leaf: u64,
    step: &str,
) -> Result<impl Iterator<Item = (&'a str, &'a Json)>> {
    let rows = select(json, "rows")?.as_array().context("no rows")?;
    let step = step.to_owned();
    Ok(rows.iter().filter_map(move |row| {
        let fits = row["bytes"] == gib << 30 && row["leaf_bytes"] == leaf && row["step"] == step;
        fits.then(|| Some((row["subject"].as_str()?, &row["ratio"])))?
    }))
}

/// A subject's time over the floor's, with quartiles.
fn ours(json: &Json, subject: &str, gib: u64, leaf: u64, step: &str) -> Result<String> {
    let found = host_row(json, gib, leaf, step)?.find(|(name, _)| *name == subject);
    spread(found.with_context(|| format!("{subject} did no {step}"))?.1)
}

/// The time of the best other crate on tables that no CPU walks.
fn other(json: &Json, gib: u64, leaf: u64, step: &str) -> Result<String> {
    best(host_row(json, gib, leaf, step)?.filter(|(name, _)| !name.starts_with("granule")))
}

/// The time of the best other crate on live tables.
fn other_live(json: &Json, gib: u64, leaf: u64, step: &str) -> Result<String> {
    let live = |name: &str| name.ends_with(", live") && !name.starts_with("granule");
    best(host_row(json, gib, leaf, step)?.filter(|(name, _)| live(name)))
}

fn best<'a>(subjects: impl Iterator<Item = (&'a str, &'a Json)>) -> Result<String> {
    let mut least: Option<(&str, f64)> = None;
    for (name, ratio) in subjects {
        let median = number(ratio, "median")?;
        if least.is_none_or(|(_, other)| median < other) {
            least = Some((name, median));
        }
    }
    let (name, median) = least.context("no other crate was measured")?;
    Ok(format!("{median:.2} ({name})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_unique() {
        for (at, value) in VALUES.iter().enumerate() {
            assert!(
                VALUES[..at].iter().all(|other| other.name != value.name),
                "{value:?}"
            );
        }
    }

    #[test]
    fn a_page_more_is_told_from_two_sizes() {
        let row = |gib: u64, instructions: u64| {
            json!({"page_size": 65536, "memory": gib << 30,
                "linear_map": {"instructions": instructions}})
        };
        let json = json!({"rows": [row(4, 1000), row(512, 1000 + 508 * 16384 * 3 / 2)]});
        assert_eq!(growth(&json, 65536).unwrap(), "1.500");
    }

    #[test]
    fn the_best_other_crate_is_named() {
        let row = |subject: &str, median: f64| {
            json!({"bytes": 1_u64 << 30, "leaf_bytes": 4096, "step": "map", "subject": subject,
                "ratio": {"median": median}})
        };
        let json = json!({"rows": [row("granule", 1.0), row("granule, live", 1.0),
            row("a", 7.0), row("b", 3.46), row("b, live", 9.0)]});
        assert_eq!(other(&json, 1, 4096, "map").unwrap(), "3.46 (b)");
        assert_eq!(other_live(&json, 1, 4096, "map").unwrap(), "9.00 (b, live)");
    }
}
