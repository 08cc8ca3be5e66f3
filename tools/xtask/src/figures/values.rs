//! Single figures in sentences and headline tables. Each is computed from a run's JSON, so that none can
//! disagree with the run's own rows. Pure.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value as Json;

use super::path::{count, grouped, number, rows, select, text};
use super::runs::{Said, one};
use super::tables::{per_leaf, spread};

/// One figure.
#[derive(Debug, Deserialize)]
pub(super) struct Value {
    pub(super) name: String,
    /// The name of its run.
    pub(super) run: String,
    /// Whether the figure must agree to the last digit; else it may differ a little, as instructions may.
    #[serde(default)]
    pub(super) exact: bool,
    of: Of,
}

/// How a figure is computed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Of {
    /// Of a linear map: the page size, the strategy and the key.
    Linear(u32, String, String),
    /// Millions of instructions of a linear map.
    Millions(u32, String),
    /// TLBIs of the 4K linear map over those of Linux.
    TlbiOverLinux,
    /// Stores into table memory for each entry that the tables have.
    Stores(u32),
    /// Instructions for each additional page.
    Growth(u32),
    /// The resident memory of a strategy.
    Resident(String),
    /// The cost of the image for every page size, compared with the image for each single one.
    OverFixed(String),
    /// Instructions per 4K page, here or on each Linux.
    PerPage(String, bool),
    /// Of leaving with 4K pages and the MMU on: the MiB, the place and the key.
    Kexec(u64, String, String),
    /// Instructions of the relocation for each copied page.
    KexecPage,
    /// From the call of `reboot` to the next kernel's first line on the console.
    ToConsole(String),
    KexecOfBound(u64),
    OverKib(String),
    Percent(String),
    /// The KiB that a part of the image for every page size has over that of each single one.
    OverAll(String),
    /// Code that exists once for each page size.
    PerPageSize,
    BootStack,
    /// A subject's time over the floor's, with quartiles: the subject, the GiB, the leaf and the step.
    Ours(String, u64, u64, String),
    /// The time of the best other crate whose name has this end; the rest as for `Ours`.
    Other(String, u64, u64, String),
    /// Instructions of a subject for mapping one page a call where the tables are there.
    OnePageMap(String),
    Spread(String),
}

/// TLBIs of Linux 6.1.176 in its 4 GiB map of 4K pages (docs/performance.md says how it was counted).
const LINUX_6_1_TLBI: f64 = 67_549.0;

impl Value {
    /// The figure in the form that a document has.
    pub(super) fn render(&self, said: &[Said]) -> Result<String> {
        let figure = self.of.compute(&one(said)?.json);
        figure.with_context(|| format!("figure {}", self.name))
    }
}

impl Of {
    fn compute(&self, json: &Json) -> Result<String> {
        let of = |path: &str| number(json, path);
        Ok(match self {
            Self::Linear(size, strategy, key) => grouped(count(json, &row(*size, strategy, key))?),
            Self::Millions(size, strategy) => {
                format!("{:.1} M", of(&row(*size, strategy, "instructions"))? / 1e6)
            }
            Self::TlbiOverLinux => {
                let here = of(&row(4096, "base", "tlbi"))?;
                format!("{:+.2} %", 100.0 * (here / LINUX_6_1_TLBI - 1.0))
            }
            Self::Stores(size) => {
                let stores = of(&row(*size, "direct", "descriptor_stores"))?;
                let tables = of(&row(*size, "direct", "tables"))?;
                format!("{:.4}", stores / (tables * f64::from(size / 8)))
            }
            Self::Growth(size) => {
                let at = |gib: u64| {
                    let memory = gib << 30;
                    of(&format!(
                        "rows[page_size={size},memory={memory}].linear_map.instructions"
                    ))
                };
                let pages = ((512_u64 - 4) << 30) as f64 / f64::from(*size);
                format!("{:.3}", (at(512)? - at(4)?) / pages)
            }
            Self::Resident(strategy) => {
                let memory = 512_u64 << 30;
                let path = format!("rows[memory={memory},strategy={strategy}].peak_resident_bytes");
                format!("{} MiB", grouped(count(json, &path)? >> 20))
            }
            Self::OverFixed(op) => each([4096, 16384, 65536], |size| {
                let row = format!("rows[build=boot,page_size={size},op={op}]");
                Ok(format!(
                    "{:+.3} %",
                    of(&format!("{row}.over_fixed_percent"))?
                ))
            })?,
            Self::PerPage(op, ours) => per_page(json, op, *ours)?,
            Self::Kexec(mib, place, key) => grouped(count(json, &kexec(*mib, place, key))?),
            Self::KexecPage => {
                let pages = of(&kexec(84, "copied", "bytes_copied"))? / 4096.0;
                let relocation = of(&kexec(84, "copied", "relocation_instructions"))?;
                format!("{:.0}", relocation / pages)
            }
            Self::ToConsole(place) => {
                let mut sum = 0.0;
                for phase in ["shutdown", "relocation", "startup_console"] {
                    sum += of(&kexec(25, place, &format!("{phase}_instructions")))?;
                }
                format!("{:.2} M", sum / 1e6)
            }
            Self::KexecOfBound(mib) => format!("{:.3}", of(&kexec(*mib, "copied", "of_bound"))?),
            Self::OverKib(path) => format!("{:+.0} KiB", of(path)? / 1024.0),
            Self::Percent(path) => format!("{:+.1} %", of(path)?),
            Self::OverAll(part) => {
                let all = each(["4k", "16k", "64k"], |size| {
                    let bytes = of(&format!("over_fixed[page_size={size}].{part}.bytes"))?;
                    Ok(format!("{:+.0}", bytes / 1024.0))
                });
                format!("{} KiB", all?)
            }
            Self::PerPageSize => {
                let rows = rows(json, "per_page_size")?;
                let all = each(["4k", "16k", "64k"], |size| {
                    let sum: u64 = rows.iter().filter_map(|row| row[size].as_u64()).sum();
                    Ok((sum >> 10).to_string())
                });
                format!("{} KiB", all?)
            }
            Self::BootStack => {
                let stacks = rows(json, "builds")?.iter();
                let most = stacks.filter_map(|b| b["stack_bytes"].as_u64()).max();
                format!("{} KiB", most.context("no stack")?.div_ceil(1024))
            }
            Self::Ours(subject, gib, leaf, step) => {
                let found = host(json, *gib, *leaf, step)?.find(|(name, _)| name == subject);
                spread(found.with_context(|| format!("{subject} did no {step}"))?.1)?
            }
            Self::Other(end, gib, leaf, step) => best(
                host(json, *gib, *leaf, step)?
                    .filter(|(name, _)| !name.starts_with("granule") && name.ends_with(end)),
            )?,
            Self::OnePageMap(subject) => {
                let row = rows(json, "rows")?.iter().find(|row| {
                    row["calls"] == "page" && row["step"] == "map" && row["subject"] == *subject
                });
                let row = row.with_context(|| format!("{subject} mapped no page"))?;
                format!("{:.0}", per_leaf(row)?)
            }
            Self::Spread(path) => spread(select(json, path)?)?,
        })
    }
}

/// The path to a figure of a row of `bench linear-map`.
fn row(page_size: u32, strategy: &str, figure: &str) -> String {
    format!("rows[page_size={page_size},strategy={strategy}].linear_map.{figure}")
}

/// The path to a figure of leaving with 4K pages and the MMU on.
fn kexec(mib: u64, place: &str, figure: &str) -> String {
    let payload = mib << 20;
    format!("rows[page_size=4096,payload={payload},place={place},mmu=on].{figure}")
}

fn each<T>(sizes: [T; 3], of: impl Fn(T) -> Result<String>) -> Result<String> {
    Ok(sizes
        .into_iter()
        .map(of)
        .collect::<Result<Vec<_>>>()?
        .join(", "))
}

/// In pages of 4K alone.
fn per_page(json: &Json, op: &str, ours: bool) -> Result<String> {
    let mut figures = Vec::new();
    for row in rows(json, "rows")? {
        let kernel = text(row, "kernel")?;
        if row["op"] != op || row["page_size"] != 4096 || row["large"] != false {
            continue;
        }
        let figure = format!("{:.1}", number(row, "instructions_per_page")?);
        match (kernel == "Granule", ours) {
            (true, true) => figures.push(figure),
            (false, false) => {
                let name = kernel.trim_start_matches("Linux ");
                figures.push(format!("{figure} ({name})"));
            }
            _ => (),
        }
    }
    ensure!(!figures.is_empty(), "no kernel did {op}");
    Ok(figures.join(", "))
}

fn host<'a>(
    json: &'a Json,
    gib: u64,
    leaf: u64,
    step: &str,
) -> Result<impl Iterator<Item = (&'a str, &'a Json)>> {
    let rows = rows(json, "rows")?.iter();
    Ok(rows.filter_map(move |row| {
        let fits = row["bytes"] == gib << 30 && row["leaf_bytes"] == leaf && row["step"] == step;
        fits.then(|| Some((row["subject"].as_str()?, &row["ratio"])))?
    }))
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
    fn a_page_more_is_told_from_two_sizes() {
        let row = |gib: u64, instructions: u64| {
            json!({"page_size": 65536, "memory": gib << 30,
                "linear_map": {"instructions": instructions}})
        };
        let json = json!({"rows": [row(4, 1000), row(512, 1000 + 508 * 16384 * 3 / 2)]});
        assert_eq!(Of::Growth(65536).compute(&json).unwrap(), "1.500");
    }

    #[test]
    fn the_best_other_crate_is_named() {
        let row = |subject: &str, median: f64| {
            json!({"bytes": 1_u64 << 30, "leaf_bytes": 4096, "step": "map", "subject": subject,
                "ratio": {"median": median}})
        };
        let json = json!({"rows": [row("granule", 1.0), row("granule, live", 1.0),
            row("a", 7.0), row("b", 3.46), row("b, live", 9.0)]});
        let other = |end: &str| Of::Other(end.into(), 1, 4096, "map".into()).compute(&json);
        assert_eq!(other("").unwrap(), "3.46 (b)");
        assert_eq!(other(", live").unwrap(), "9.00 (b, live)");
    }
}
