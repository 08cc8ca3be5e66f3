//! The command line of `granule plan`.

use clap::Args;

use super::Plan;
use crate::cost::CostModel;
use crate::request::{Barriers, LinearMap, PageSize, Rodata};
use crate::sizes::parse_size;

/// The text of `granule plan --help` above its options.
pub const LONG: &str = "\
Report the parts of a linear map and the cost of making it, for any RAM size, page size and
strategy, without booting anything: leaves, tables, memory, TLBIs, barriers, and the time on a
machine that times were published of.

RAM is taken to be one bank that begins at 1 GiB, as on QEMU's virt machine, with this
repository's kernel 2 MiB into it.";

/// The text of `granule plan --help` below its options.
pub const EXAMPLES: &str = "\
Examples:
  Every strategy on a machine of the published tables:
    granule plan --memory 256G --machine altra

  The same map with 64K pages, and with largest leaves:
    granule plan --memory 256G --page-size 64k
    granule plan --memory 256G --rodata noalias

  Full protection on CPUs that split live blocks, and on others:
    granule plan --memory 256G --rodata full --bbm 2
    granule plan --memory 256G --rodata full --bbm 0

  How far the model of the machines is off, cell by cell:
    granule plan --check-model

Machines: apple-m2, altra, altra-metal. `granule schema plan` prints the keys of the JSON object.";

/// The options of `granule plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// RAM of the machine: 512M, 4G, 512G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, required_unless_present = "check_model")]
    memory: Option<u64>,

    /// Machine whose time to predict: apple-m2, altra or altra-metal
    #[arg(long, value_name = "NAME", value_parser = CostModel::named)]
    machine: Option<CostModel>,

    /// Page size
    #[arg(
        long,
        value_name = "SIZE",
        value_enum,
        ignore_case = true,
        default_value = "4k"
    )]
    page_size: PageSize,

    /// Bits of virtual address; more than 48 take the 52-bit formats
    #[arg(long, value_name = "N", default_value_t = 48)]
    va_bits: u32,

    /// Memory to protect; on and full make maps of pages unless --bbm allows to split blocks
    #[arg(long, value_name = "MODE", value_enum, default_value = "full")]
    rodata: Rodata,

    /// Level of FEAT_BBM that the CPUs are trusted with, 0 to 3; from 2 on blocks are split live
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    bbm: u8,

    /// Strategies for making the map, one or more; default: every way there is
    #[arg(long, value_name = "STRATEGY", value_delimiter = ',', value_enum)]
    strategy: Vec<LinearMap>,

    /// Barriers of the published ways; default: as each was last published
    #[arg(long, value_name = "WHEN", value_enum)]
    barriers: Option<Barriers>,

    /// Print the model's times beside all published ones instead
    #[arg(long, exclusive = true)]
    pub check_model: bool,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl PlanArgs {
    /// The plan that these options describe, if they describe one.
    pub fn plan(&self) -> Option<Plan> {
        Some(Plan {
            memory: self.memory?,
            page_size: self.page_size,
            va_bits: self.va_bits,
            rodata: self.rodata,
            bbm: self.bbm,
            strategies: match self.strategy.as_slice() {
                [] => LinearMap::ALL.to_vec(),
                some => some.to_vec(),
            },
            barriers: self.barriers,
            machine: self.machine.clone(),
        })
    }
}
