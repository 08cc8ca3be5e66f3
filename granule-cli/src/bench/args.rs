//! The command line of `granule bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::kexec::args::{self as kexec, KexecArgs};
use super::{Bench, Form, permissions, user};
use crate::request::{Barriers, LinearMap, PageSize, Rodata};
use crate::sizes::parse_size;

/// The options of `granule bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub what: What,
}

/// What there is to measure.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Make the linear map in every way and count what each takes
    #[command(long_about = LINEAR_MAP_LONG, after_long_help = LINEAR_MAP_EXAMPLES)]
    LinearMap(LinearMapArgs),
    /// Change permissions in the linear map and count what changes of each size take
    #[command(long_about = PERMISSIONS_LONG, after_long_help = PERMISSIONS_EXAMPLES)]
    Permissions(PermissionsArgs),
    /// Run a program at EL0 on every build and count what its memory takes
    #[command(long_about = USER_LONG, after_long_help = USER_EXAMPLES)]
    User(UserArgs),
    /// Leave for another kernel and count what each phase takes
    #[command(long_about = kexec::LONG, after_long_help = kexec::EXAMPLES)]
    Kexec(KexecArgs),
}

const USER_LONG: &str = "\
Boot the kernel for every page size and each kernel for one, with the same program as the first
process, and print what that counted: it maps memory in pages of the base size, writes to each
page, forks, writes again, changes permissions and back, and unmaps all. `over fixed` is what the
choice of the page size at boot costs: the kernel for all against the one for that size.

What is counted is instructions of program and kernel, from before a call until after it, by the
virtual counter under -icount, where an instruction is a nanosecond; in steps of 16. The fewest of
all rounds are told. In `fork` the child ends at once, in `fork-held` it sleeps until the parent
has taken the time. `touch` is the first write to each page, `copy` the one that copies it while
that child is there, `reuse` the one after the other child, `rewrite` the one after mprotect.

Images and program are built by `cargo xtask image`, `cargo xtask image --fixed 4k` (16k, 64k) and
`cargo xtask user`. Ctrl-C ends the boot that runs and prints what is done. The exit code is 0 only
if every boot was ok.";

const USER_EXAMPLES: &str = "\
Examples:
  1 GiB on every build (some five minutes):
    granule bench user

  Quickly, one page size, for a program:
    granule bench user --bytes 64M --memory 512M --page-size 16k --rounds 1 --json

docs/bench-json.md documents the JSON object, docs/performance.md has results, and Linux's.";

/// The options of `granule bench user`.
#[derive(Debug, Args)]
pub struct UserArgs {
    /// RAM of the machine
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4G")]
    memory: u64,

    /// Memory that the program maps
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    bytes: u64,

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

    /// Kernel for every page size, kernels for one, or both
    #[arg(
        long,
        value_name = "BUILD",
        value_delimiter = ',',
        value_enum,
        default_value = "boot,fixed"
    )]
    build: Vec<user::Build>,

    /// How often everything is done
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=15))]
    rounds: u32,

    /// CPU in QEMU's own words
    #[arg(long, value_name = "TEXT", default_value = "neoverse-n1")]
    cpu: String,

    /// QEMU to run
    #[arg(long, value_name = "PATH", default_value = "qemu-system-aarch64")]
    qemu: PathBuf,

    /// Folder with images and program; default: target/granule here or in a directory above
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,

    /// Seconds that one boot may take
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    timeout: u64,

    /// Print one JSON object to standard output, and the table to standard error
    #[arg(long)]
    pub json: bool,
}

impl UserArgs {
    /// The benchmark these options stand for.
    #[must_use]
    pub fn bench(&self) -> user::Bench {
        user::Bench {
            build: self.build.clone(),
            page_size: self.page_size.clone(),
            memory: self.memory,
            bytes: self.bytes,
            rounds: self.rounds,
            cpu: self.cpu.clone(),
            qemu: self.qemu.clone(),
            folder: self.folder.clone(),
            timeout: Duration::from_secs(self.timeout),
        }
    }
}

const PERMISSIONS_LONG: &str = "\
Boot the kernel once for each page size, make pages of its linear map read-only and writable again,
and print what that took: leaves split, tables, stores, TLBIs, barriers, instructions, takings of
the lock. A page, 64K, 2M and 1G at a time, once and in a great many random places; then all is
merged, which must give every table back. The counts are exact and do not depend on the host.

Ctrl-C ends the boot that runs and prints what is done. The exit code is 0 only if every boot was
ok.";

const PERMISSIONS_EXAMPLES: &str = "\
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

    /// QEMU to run
    #[arg(long, value_name = "PATH", default_value = "qemu-system-aarch64")]
    qemu: PathBuf,

    /// Kernel image; default: target/granule/Image here or in a directory above
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,

    /// Seconds that one boot may take
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    timeout: u64,

    /// Print one JSON object to standard output, and the table to standard error
    #[arg(long)]
    pub json: bool,
}

impl PermissionsArgs {
    /// The benchmark these options stand for.
    #[must_use]
    pub fn bench(&self) -> permissions::Bench {
        permissions::Bench {
            page_size: self.page_size.clone(),
            memory: self.memory,
            changes: self.changes,
            rodata: self.rodata,
            cpu: self.cpu.clone(),
            qemu: self.qemu.clone(),
            image: self.image.clone(),
            timeout: Duration::from_secs(self.timeout),
        }
    }
}

const LINEAR_MAP_LONG: &str = "\
Boot the kernel once for each combination of page size, memory, rodata and strategy, and print
what making the linear map took in each: TLBIs, barriers, stores, instructions, with the ratio of
each to `base`. The counts are exact and do not depend on the host.

Ctrl-C ends the boot that runs and prints what is done. The exit code is 0 only if every boot was
ok.";

const LINEAR_MAP_EXAMPLES: &str = "\
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

docs/bench-json.md documents the JSON object, docs/performance.md has results.";

/// The options of `granule bench linear-map`.
#[derive(Debug, Args)]
pub struct LinearMapArgs {
    /// RAM of the machine, one or more
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size,
          default_value = "4G,16G,64G,256G,512G")]
    memory: Vec<u64>,

    /// Page size, one or more
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        value_enum,
        ignore_case = true,
        default_value = "4k"
    )]
    page_size: Vec<PageSize>,

    /// What to protect, one or more; on and full make maps of pages on CPUs that cannot split live
    /// blocks, as the default CPU
    #[arg(
        long,
        value_name = "MODE",
        value_delimiter = ',',
        value_enum,
        default_value = "full"
    )]
    rodata: Vec<Rodata>,

    /// How to make the map, one or more; default: every way there is
    #[arg(long, value_name = "STRATEGY", value_delimiter = ',', value_enum)]
    strategy: Vec<LinearMap>,

    /// Barriers of the published ways, one or both; default: as each was last published
    #[arg(long, value_name = "WHEN", value_delimiter = ',', value_enum)]
    barriers: Vec<Barriers>,

    /// CPU in QEMU's own words
    #[arg(long, value_name = "TEXT", default_value = "neoverse-n1")]
    cpu: String,

    /// VA size to ask for: 36, 39, 42, 47, 48 or 52
    #[arg(long, value_name = "N")]
    va_bits: Option<u8>,

    /// QEMU to run
    #[arg(long, value_name = "PATH", default_value = "qemu-system-aarch64")]
    qemu: PathBuf,

    /// Kernel image; default: target/granule/Image here or in a directory above
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,

    /// Seconds that one boot may take
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    timeout: u64,

    /// Print one JSON object to standard output, and the table to standard error
    #[arg(long)]
    pub json: bool,
}

impl LinearMapArgs {
    /// The benchmark these options stand for.
    #[must_use]
    pub fn bench(&self) -> Bench {
        let strategies = match self.strategy.as_slice() {
            [] => &LinearMap::ALL[..],
            some => some,
        };
        let mut forms = Vec::new();
        for &strategy in strategies {
            match self.barriers.as_slice() {
                some @ [_, ..] if strategy != LinearMap::Direct => {
                    forms.extend(some.iter().map(|&barriers| Form {
                        strategy,
                        barriers: Some(barriers),
                    }));
                }
                _ => forms.push(Form {
                    strategy,
                    barriers: None,
                }),
            }
        }
        Bench {
            memory: self.memory.clone(),
            page_size: self.page_size.clone(),
            rodata: self.rodata.clone(),
            forms,
            cpu: self.cpu.clone(),
            va_bits: self.va_bits,
            qemu: self.qemu.clone(),
            image: self.image.clone(),
            timeout: Duration::from_secs(self.timeout),
        }
    }
}
