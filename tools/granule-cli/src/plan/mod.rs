//! `granule plan`: the leaves, tables and cost of a linear map for any RAM, without booting.
//!
//! Tables and leaves come from the library's leaf_stats, counts from [`cost`](crate::cost), times from
//! its model of a machine.

pub mod args;
pub(crate) mod json;

use std::fmt::Write as _;

use granule::arch::bbm::BbmLevel;
use granule::table::Leaves;

use crate::cost::machine::Predicted;
use crate::cost::{Cost, CostModel, Job, job};
use crate::request::{Barriers, LinearMap, PageSize, Rodata};
use crate::sizes::show_size;

/// The linear map to plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Bytes of RAM.
    pub memory: u64,
    pub page_size: PageSize,
    /// Bits of virtual address.
    pub va_bits: u32,
    /// The protection.
    pub rodata: Rodata,
    /// The level of FEAT_BBM that the CPUs are trusted with.
    pub bbm: u8,
    /// The strategies for building the map.
    pub strategies: Vec<LinearMap>,
    /// The barriers of the published strategies; `None` for each strategy's own.
    pub barriers: Option<Barriers>,
    /// The machine whose time to predict.
    pub machine: Option<CostModel>,
}

/// The cost of one strategy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Taken {
    pub strategy: LinearMap,
    /// The barriers of its page entries.
    pub barriers: &'static str,
    /// Its counts.
    pub cost: Cost,
    /// Its time on the machine, if one is named.
    pub predicted: Option<Predicted>,
}

/// The result of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    pub plan: Plan,
    /// The map.
    pub job: Job,
    /// The cost of each strategy.
    pub taken: Vec<Taken>,
}

impl Plan {
    /// Computes the map and the cost of each strategy.
    /// Fails with one line if RAM does not fit the addresses, or this address size does not exist.
    pub fn work_out(self) -> Result<Planned, String> {
        let range = self
            .machine
            .as_ref()
            .is_some_and(|machine| machine.tlbi_range);
        let job = Job::assumed(
            self.memory,
            self.page_size.value(),
            self.va_bits,
            self.rodata,
            BbmLevel::from_number(self.bbm.into()),
            range,
        )?;
        let taken = self
            .strategies
            .iter()
            .map(|&strategy| {
                let barriers = match self.barriers {
                    Some(barriers) if strategy != LinearMap::Direct => barriers,
                    _ => strategy.barriers(),
                };
                let cost = job.cost(strategy.strategy(), barriers.value())?;
                Ok(Taken {
                    strategy,
                    barriers: barriers.word(),
                    cost,
                    predicted: self.machine.as_ref().map(|machine| machine.predict(&cost)),
                })
            })
            .collect::<Result<_, String>>()?;
        Ok(Planned {
            plan: self,
            job,
            taken,
        })
    }
}

impl Planned {
    fn tables(&self) -> (u64, u64) {
        let tables = self.job.stats().tables;
        (tables, tables * self.plan.page_size.bytes())
    }

    /// The result for people.
    pub fn text(&self) -> String {
        let plan = &self.plan;
        let (tables, table_bytes) = self.tables();
        let mut text = String::new();
        let leaves: Vec<String> = self
            .job
            .stats()
            .leaves()
            .map(|(size, count)| {
                let kind = if size.contiguous { " contiguous" } else { "" };
                format!("{count} x {}{kind}", show_size(size.bytes))
            })
            .collect();
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{} of RAM, {} pages, {} VA bits, rodata={}, BBM level {}\nleaves   {}\ntables   {tables}, {}",
            show_size(plan.memory),
            plan.page_size.word(),
            plan.va_bits,
            plan.rodata.word(),
            plan.bbm,
            leaves.join(", "),
            show_size(table_bytes),
        );
        let _ = writeln!(
            text,
            "\n{:<15} {:<8} {:>12} {:>14} {:>14} {:>14}  {}",
            "strategy",
            "barriers",
            "TLBI",
            "DSB",
            "ISB",
            "stores",
            if plan.machine.is_some() {
                "predicted ms"
            } else {
                ""
            },
        );
        for taken in &self.taken {
            let counts = &taken.cost.counts;
            let time = taken.predicted.map_or_else(String::new, |predicted| {
                let (low, high) = (predicted.low_ms, predicted.high_ms);
                if high > low * 1.01 {
                    format!("{} to {}", milliseconds(low), milliseconds(high))
                } else {
                    milliseconds(low)
                }
            });
            let line = format!(
                "{:<15} {:<8} {:>12} {:>14} {:>14} {:>14}  {time}",
                taken.strategy.word(),
                taken.barriers,
                counts.tlbi,
                counts.dsb,
                counts.isb,
                counts.stores,
            );
            text += line.trim_end();
            text.push('\n');
        }
        text += "\nCounts are for one bank of RAM at 1 GiB with this repository's kernel 2 MiB into it; where RAM begins\n\
                 elsewhere, or in pieces, or the kernel has another size, the edges change them a little.\n";
        if let Some(machine) = &plan.machine {
            text += &caution(plan, machine);
        }
        text
    }
}

fn milliseconds(ms: f64) -> String {
    if ms >= 100.0 {
        format!("{ms:.0}")
    } else if ms >= 1.0 {
        format!("{ms:.1}")
    } else {
        format!("{ms:.4}")
    }
}

/// The limits of the predicted times.
fn caution(plan: &Plan, machine: &CostModel) -> String {
    let mut text = format!(
        "Times are predicted, not measured: counts times costs fitted to published times of {}\n\
         (4K pages, maps of pages; docs/performance.md has the errors).",
        machine.published_as
    );
    if !machine.has(plan.page_size.value()) {
        let _ = write!(
            text,
            "\nIts CPUs have no {} pages: such a map is not made there.",
            plan.page_size.word()
        );
    }
    let pages = job::leaves(plan.rodata, BbmLevel::from_number(plan.bbm.into())) == Leaves::PAGES;
    if plan.page_size != PageSize::K4 || !pages {
        text += "\nNothing was published of such a map: here the costs are carried over to it.";
    }
    if plan.strategies.contains(&LinearMap::Direct) {
        text += "\n`direct` does not zero, as all published ways do: what storing costs without it is not known, hence\n\
                 the range.";
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use granule_testing::text::assert_contains;

    fn plan(memory: u64) -> Plan {
        Plan {
            memory,
            page_size: PageSize::K4,
            va_bits: 48,
            rodata: Rodata::Full,
            bbm: 0,
            strategies: LinearMap::ALL.to_vec(),
            barriers: None,
            machine: Some(CostModel::named("altra").unwrap()),
        }
    }

    #[test]
    fn a_quarter_of_a_terabyte_in_pages() {
        let planned = plan(256 << 30).work_out().unwrap();
        let object = planned.json();
        crate::schema::assert_matches("plan", &object);
        // 131 072 tables of pages, 256 above them, 1 above those (one bank, 1 GiB into the space).
        assert_eq!(object["tables"], 131_072 + 256 + 1);
        assert_eq!(object["table_bytes"], (131_072_u64 + 256 + 1) << 12);
        assert_eq!(
            object["leaves"],
            json!([{ "size": 4096, "contiguous": false, "count": 64 << 20 }])
        );
        let strategies = object["strategies"].as_array().unwrap();
        assert_eq!(strategies.len(), 6);
        let direct = &strategies[5];
        assert_eq!(
            (&direct["strategy"], &direct["tlbi"]),
            (&json!("direct"), &json!(0))
        );
        assert!(direct["dsb"].as_u64().unwrap() <= 16);
        // Times fall from each step to the next.
        let times: Vec<f64> = strategies
            .iter()
            .map(|strategy| strategy["predicted_ms_high"].as_f64().unwrap())
            .collect();
        assert!(times.windows(2).all(|pair| pair[1] < pair[0]), "{times:?}");
    }

    #[test]
    fn level_2_keeps_blocks_where_pages_may_change() {
        let tables = |page_size, rodata, bbm| {
            let plan = Plan {
                page_size,
                rodata,
                bbm,
                ..plan(256 << 30)
            };
            let planned = plan.work_out().unwrap();
            planned.json()["tables"].as_u64().unwrap()
        };
        for page_size in [PageSize::K4, PageSize::K16, PageSize::K64] {
            let pages = tables(page_size, Rodata::Full, 0);
            let blocks = tables(page_size, Rodata::Noalias, 0);
            assert!(blocks < 10 && pages > 500, "{blocks} {pages}");
            for rodata in [Rodata::On, Rodata::Full] {
                let by_level = [0, 1, 2, 3].map(|bbm| tables(page_size, rodata, bbm));
                assert_eq!(by_level, [pages, pages, blocks, blocks]);
            }
        }
        let text = |bbm| {
            let plan = Plan {
                bbm,
                ..plan(4 << 30)
            };
            plan.work_out().unwrap().text()
        };
        assert!(text(2).contains("rodata=full, BBM level 2\n") && text(2).contains("x 1G"));
        assert!(text(2).contains("carried over") && !text(1).contains("carried over"));
    }

    #[test]
    fn barriers_are_the_published_ways_own_unless_chosen() {
        let barriers = |chosen| {
            let plan = Plan {
                barriers: chosen,
                ..plan(4 << 30)
            };
            let taken = plan.work_out().unwrap().taken;
            taken.iter().map(|taken| taken.barriers).collect::<Vec<_>>()
        };
        let own = ["entry", "entry", "table", "table", "table", "table"];
        assert_eq!(barriers(None), own);
        let entry = ["entry", "entry", "entry", "entry", "entry", "table"];
        assert_eq!(barriers(Some(Barriers::Entry)), entry);
        assert_eq!(barriers(Some(Barriers::Table)), ["table"; 6]);
    }

    #[test]
    fn text_marks_what_is_predicted() {
        let text = plan(4 << 30).work_out().unwrap().text();
        for part in [
            "tables   2053",
            "predicted",
            "not measured",
            "Ampere Altra",
            "does not zero",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let mut blocks = plan(4 << 30);
        blocks.rodata = Rodata::Noalias;
        let text = blocks.work_out().unwrap().text();
        assert!(text.contains("carried over"), "{text}");
        assert!(text.contains("one bank of RAM at 1 GiB"), "{text}");
        assert!(text.contains("x 1G"), "{text}");
    }

    #[test]
    fn a_page_size_that_the_machine_lacks_is_reported() {
        for (name, size, has) in [
            ("apple-m2", PageSize::K16, true),
            ("apple-m2", PageSize::K64, false),
            ("altra", PageSize::K64, true),
        ] {
            let mut plan = plan(4 << 30);
            plan.page_size = size;
            plan.machine = Some(CostModel::named(name).unwrap());
            let planned = plan.work_out().unwrap();
            assert_eq!(planned.json()["machine"]["has_page_size"], has, "{name}");
            let text = planned.text();
            assert_eq!(text.contains("have no"), !has, "{text}");
        }
    }

    #[test]
    fn memory_that_does_not_fit_is_refused_with_what_to_do() {
        let mut small = plan(512 << 30);
        small.va_bits = 39;
        let line = small.work_out().unwrap_err();
        assert_contains(&line, "--memory 512G");
        assert_contains(&line, "--va-bits");
        let mut odd = plan(4 << 30);
        odd.va_bits = 40;
        // The kernel never chooses 40 bits, but they are a valid address size.
        assert!(odd.clone().work_out().is_ok());
        odd.va_bits = 60;
        assert!(odd.work_out().unwrap_err().contains("--va-bits 60"));
        assert!(plan(1 << 20).work_out().unwrap_err().contains("16M"));
    }

    #[test]
    fn the_largest_leaves_come_with_52_bits() {
        let mut wide = plan(512 << 30);
        wide.page_size = PageSize::K16;
        wide.va_bits = 52;
        wide.rodata = Rodata::Noalias;
        let planned = wide.work_out().unwrap();
        let largest = planned.job.stats().leaves().next().unwrap();
        assert_eq!(largest.0.bytes, 64 << 30);
    }
}
