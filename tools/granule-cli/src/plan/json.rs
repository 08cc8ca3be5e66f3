//! A plan as JSON.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{Planned, Taken};
use crate::cost::CostModel;
use crate::json::{Version, value};
use crate::result::json::Leaf;

/// Result of `granule plan --json`: a linear map and what making it takes. Sizes are in bytes. For a plan that
/// cannot be carried out (RAM that does not fit the addresses) there is no object, but a line on standard error,
/// and the exit code is 2.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "granule plan --json")]
pub(crate) struct Object {
    schema: Version,
    /// RAM, one bank that begins at 1 GiB.
    memory: u64,
    /// Page size.
    page_size: u64,
    /// Bits of virtual address.
    va_bits: u32,
    /// Protection: `off`, `noalias`, `on`, `full`.
    rodata: &'static str,
    /// Level that the CPUs are trusted with; from 2 on there are blocks with `on` and `full` too.
    bbm_level: u8,
    /// RAM that is mapped.
    mapped_bytes: u64,
    /// The map, one object for each kind of leaf.
    leaves: Vec<Leaf>,
    /// Tables the map takes.
    tables: u64,
    /// Their memory.
    table_bytes: u64,
    /// Machine whose time is predicted; null without `--machine`.
    machine: Option<MachineObject>,
    /// One object for each strategy.
    strategies: Vec<StrategyObject>,
}

/// A machine with its published costs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Machine")]
struct MachineObject {
    /// Its name on the command line.
    name: &'static str,
    /// Its name where its times were published.
    published_as: &'static str,
    /// Whether its CPUs have TLB invalidation by range.
    tlbi_range: bool,
    /// Nanoseconds of a TLBI.
    tlbi_ns: f64,
    /// Nanoseconds of waiting for a TLBI to complete.
    wait_ns: f64,
    /// Nanoseconds of a DSB and an ISB.
    dsb_isb_ns: f64,
    /// Nanoseconds of a store to a descriptor.
    store_ns: f64,
    /// Nanoseconds of zeroing a descriptor: always as `store_ns`, because no published time has them apart.
    zero_ns: f64,
    /// Whether its CPUs have the page size.
    has_page_size: bool,
}

/// A strategy for making the map.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Strategy")]
struct StrategyObject {
    /// `base`, `no-cont-remap`, `batch-barriers`, `no-alloc-remap`, `lazy-unmap`, `direct`.
    strategy: &'static str,
    /// Whether barriers are issued for each page `entry` or each `table`.
    barriers: &'static str,
    /// TLBIs.
    tlbi: u64,
    /// DSBs.
    dsb: u64,
    /// ISBs.
    isb: u64,
    /// Descriptors written, zeroing included.
    descriptor_stores: u64,
    /// Time in milliseconds that the model gives, at least; null without `--machine`.
    predicted_ms_low: Option<f64>,
    /// Time at most: the same for the published ways, more for `direct`, which does not zero
    /// (docs/performance.md).
    predicted_ms_high: Option<f64>,
}

impl Planned {
    /// The JSON object.
    pub fn json(&self) -> Value {
        let plan = &self.plan;
        let (tables, table_bytes) = self.tables();
        let stats = self.job.stats();
        let leaves = stats.leaves().map(|(size, count)| Leaf {
            size: size.bytes,
            contiguous: size.contiguous,
            count,
        });
        let machine = |machine: &CostModel| MachineObject {
            name: machine.name,
            published_as: machine.published_as,
            tlbi_range: machine.tlbi_range,
            tlbi_ns: machine.tlbi_ns,
            wait_ns: machine.wait_ns,
            dsb_isb_ns: machine.dsb_isb_ns,
            store_ns: machine.store_ns,
            zero_ns: machine.store_ns,
            has_page_size: machine.has(plan.page_size.value()),
        };
        let strategy = |taken: &Taken| StrategyObject {
            strategy: taken.strategy.word(),
            barriers: taken.barriers,
            tlbi: taken.cost.counts.tlbi,
            dsb: taken.cost.counts.dsb,
            isb: taken.cost.counts.isb,
            descriptor_stores: taken.cost.counts.stores,
            predicted_ms_low: taken.predicted.map(|predicted| predicted.low_ms),
            predicted_ms_high: taken.predicted.map(|predicted| predicted.high_ms),
        };
        value(Object {
            schema: Version,
            memory: plan.memory,
            page_size: plan.page_size.bytes(),
            va_bits: plan.va_bits,
            rodata: plan.rodata.word(),
            bbm_level: plan.bbm,
            mapped_bytes: stats.bytes,
            leaves: leaves.collect(),
            tables,
            table_bytes,
            machine: plan.machine.as_ref().map(machine),
            strategies: self.taken.iter().map(strategy).collect(),
        })
    }
}
