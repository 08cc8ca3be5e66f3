//! The command line of `granule bench linear-map`.

use clap::Args;

use crate::bench::args::ImageArgs;
use crate::request::{Barriers, LinearMap, PageSize, Rodata};
use crate::sizes::parse_size;

pub(crate) const LONG: &str = "\
Boot the kernel once for each combination of page size, memory, rodata and strategy, and print
what making the linear map took in each: TLBIs, barriers, stores, instructions, with the ratio of
each to `base`. The counts are exact and do not depend on the host.

Ctrl-C ends the boot that runs and prints what is done. The exit code is 0 only if every boot was
ok.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  Every strategy at five sizes of RAM, 4K pages (some ten minutes):
    granule bench linear-map

  One size, every page size, for a program:
    granule bench linear-map --memory 4G --page-size 4k,16k,64k --json

  Largest leaves instead of pages, and the largest there are:
    granule bench linear-map --memory 512G --rodata noalias --page-size 4k,16k
    granule bench linear-map --memory 512G --rodata noalias --page-size 16k --cpu max --va-bits 52

  The first posting's form of the published strategies, and the later one's:
    granule bench linear-map --memory 4G --barriers entry,table

`granule schema bench linear-map` prints the keys of the JSON object; docs/performance.md has results.";

/// The benchmark: the options of `granule bench linear-map`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Bench {
    /// RAM of the machine, one or more
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size,
          default_value = "4G,16G,64G,256G,512G")]
    pub memory: Vec<u64>,

    /// Page size, one or more
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        value_enum,
        ignore_case = true,
        default_value = "4k"
    )]
    pub page_size: Vec<PageSize>,

    /// Memory to protect, one or more; on and full make maps of pages on CPUs that cannot split live
    /// blocks, as the default CPU
    #[arg(
        long,
        value_name = "MODE",
        value_delimiter = ',',
        value_enum,
        default_value = "full"
    )]
    pub rodata: Vec<Rodata>,

    /// Strategies for making the map, one or more; default: all of them
    #[arg(long, value_name = "STRATEGY", value_delimiter = ',', value_enum)]
    pub strategy: Vec<LinearMap>,

    /// Barriers of the published ways, one or both; default: as each was last published
    #[arg(long, value_name = "WHEN", value_delimiter = ',', value_enum)]
    pub barriers: Vec<Barriers>,

    /// CPU in QEMU's own words
    #[arg(long, value_name = "TEXT", default_value = "neoverse-n1")]
    pub cpu: String,

    /// VA size to request: 36, 39, 42, 47, 48 or 52
    #[arg(long, value_name = "N")]
    pub va_bits: Option<u8>,

    /// The image, and the options of each boot
    #[command(flatten)]
    pub on: ImageArgs,
}
