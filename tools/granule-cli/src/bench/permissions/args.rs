//! The command line of `granule bench permissions`.

use clap::Args;

use crate::bench::args::ImageArgs;
use crate::request::{PageSize, Rodata};
use crate::sizes::parse_size;

pub(crate) const LONG: &str = "\
Boot the kernel once for each page size, make pages of its linear map read-only and writable again,
and print what that took: leaves split, tables, stores, TLBIs, barriers, instructions, takings of
the lock. A page, 64K, 2M and 1G at a time, once and in a great many random places; then all is
merged, which must give every table back. The counts are exact and do not depend on the host.

Ctrl-C ends the boot that runs and prints what is done. The exit code is 0 only if every boot was
ok.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  Every page size in a map of 64 GiB, a million random changes of each size (some five minutes):
    granule bench permissions

  Only the single ones, for a program:
    granule bench permissions --page-size 4k --changes 1 --json

`granule schema bench permissions` prints the keys of the JSON object; docs/performance.md has results.";

/// The benchmark: the options of `granule bench permissions`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Bench {
    /// RAM of the machine
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64G")]
    pub memory: u64,

    /// Page size, one or more
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        value_enum,
        ignore_case = true,
        default_value = "4k,16k,64k"
    )]
    pub page_size: Vec<PageSize>,

    /// Random changes of each size
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub changes: u64,

    /// Memory to protect; the map must be in blocks
    #[arg(long, value_name = "MODE", value_enum, default_value = "noalias")]
    pub rodata: Rodata,

    /// CPU in QEMU's own words; it must be one that may split live blocks
    #[arg(long, value_name = "TEXT", default_value = "max")]
    pub cpu: String,

    /// The image, and the options of each boot
    #[command(flatten)]
    pub on: ImageArgs,
}
