//! The command line of `granule bench permissions`.

use std::path::PathBuf;

use clap::Args;

use super::RunArgs;
use crate::bench::permissions;
use crate::request::{PageSize, Rodata};
use crate::sizes::parse_size;

pub(super) const LONG: &str = "\
Boot the kernel once for each page size, make pages of its linear map read-only and writable again,
and print what that took: leaves split, tables, stores, TLBIs, barriers, instructions, takings of
the lock. A page, 64K, 2M and 1G at a time, once and in a great many random places; then all is
merged, which must give every table back. The counts are exact and do not depend on the host.

Ctrl-C ends the boot that runs and prints what is done. The exit code is 0 only if every boot was
ok.";

pub(super) const EXAMPLES: &str = "\
Examples:
  Every page size in a map of 64 GiB, a million random changes of each size (some five minutes):
    granule bench permissions

  Only the single ones, for a program:
    granule bench permissions --page-size 4k --changes 1 --json

docs/bench-json.md documents the JSON object, docs/performance.md has results.";

/// The options of `granule bench permissions`.
#[derive(Debug, Args)]
pub struct PermissionsArgs {
    /// RAM of the machine
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64G")]
    memory: u64,

    /// Page size, one or more
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        value_enum,
        ignore_case = true,
        default_value = "4k,16k,64k"
    )]
    page_size: Vec<PageSize>,

    /// Random changes of each size
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    changes: u64,

    /// What to protect; the map must be in blocks
    #[arg(long, value_name = "MODE", value_enum, default_value = "noalias")]
    rodata: Rodata,

    /// CPU in QEMU's own words; it must be one that may split live blocks
    #[arg(long, value_name = "TEXT", default_value = "max")]
    cpu: String,

    /// Kernel image; default: target/granule/Image here or in a directory above
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,

    /// How each boot is run, and what is printed
    #[command(flatten)]
    pub run: RunArgs,
}

impl PermissionsArgs {
    /// The benchmark that these options describe.
    #[must_use]
    pub fn bench(&self) -> permissions::Bench {
        permissions::Bench {
            page_size: self.page_size.clone(),
            memory: self.memory,
            changes: self.changes,
            rodata: self.rodata,
            cpu: self.cpu.clone(),
            qemu: self.run.qemu.clone(),
            image: self.image.clone(),
            timeout: self.run.timeout(),
        }
    }
}
