//! The command line of `granule bench user`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args};

use super::Build;
use crate::bench::args::RunArgs;
use crate::request::PageSize;
use crate::sizes::parse_size;

pub(crate) const LONG: &str = "\
Boot the kernel for every page size and each kernel for one, with the same program as the first
process, and print what that counted: it maps memory, in large leaves or in pages of the base size
alone, writes to each page, forks, writes again, changes permissions and back, and unmaps all. Then
it switches to and from a program of each page size, begins programs that wait, and with --areas
changes one area among many. `over fixed` is
what the choice of the page size at boot costs: the kernel for all against the one for that size.

What is counted is instructions of program and kernel, from before a call until after it, by the
virtual counter under -icount, where an instruction is a nanosecond; in steps of 16. The fewest of
all rounds are printed, with the TLBIs and DSBs of that round, which a plugin of QEMU counts. In
`fork` the child ends at once, in `fork-held` it sleeps until the parent has taken the time. `touch`
is the first write to each page, `copy` the one that copies it while that child is there, `reuse`
the one after the other child, `rewrite` the one after mprotect.

With --together three programs, of 4K, 16K and 64K pages, take turns on memory of their own, then do
the same at once; `over alone` compares with boots in which one of them is alone.

Images and program are built by `cargo xtask image`, `cargo xtask image --fixed 4k` (16k, 64k) and
`cargo xtask user`. Ctrl-C ends the boot that runs and prints what is done. The exit code is 0 only
if every boot was ok.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  1 GiB on every build (some five minutes):
    granule bench user

  Quickly, one page size, for a program:
    granule bench user --bytes 64M --memory 512M --page-size 16k --rounds 1 --json

  What mprotect and mmap take with few areas and with the most:
    granule bench user --bytes 64M --rounds 1 --areas 256,2048,32768,65530

  Programs of all page sizes at once against each alone, on the kernel with 64K pages:
    granule bench user --together --page-size 64k --bytes 256M

`granule schema bench user` prints the keys of the JSON object, and the kinds of work;
docs/performance.md has results, and Linux's.";

/// The words for whether something is done.
fn on_or_off() -> impl TypedValueParser<Value = bool> {
    let words = [("on", "It is done"), ("off", "It is not")];
    let words = words.map(|(word, help)| PossibleValue::new(word).help(help));
    PossibleValuesParser::new(words).map(|word| word == "on")
}

/// The benchmark: the options of `granule bench user`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Bench {
    /// RAM of the machine
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4G")]
    pub memory: u64,

    /// Memory that the program maps
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    pub bytes: u64,

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

    /// Kernel for every page size, kernels for one, or both
    #[arg(
        long,
        value_name = "BUILD",
        value_delimiter = ',',
        value_enum,
        default_value = "boot,fixed"
    )]
    pub build: Vec<Build>,

    /// Whether the kernel maps the program's memory in blocks and contiguous groups, or page by page
    #[arg(long, value_name = "WORD", action = ArgAction::Set, value_parser = on_or_off(), default_value = "on")]
    pub large_leaves: bool,

    /// Number of rounds, each of all kinds of work
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=15))]
    pub rounds: u32,

    /// Number of programs of 4K pages that wait at once; 0 leaves that out
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub programs: u32,

    /// Numbers of areas with which to change one of them; none leaves that out
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(128..))]
    pub areas: Vec<u32>,

    /// Instead, have programs of all page sizes touch, fork and unmap such memory at once, and each alone
    #[arg(long, conflicts_with_all = ["build", "programs", "areas"])]
    pub together: bool,

    /// CPU in QEMU's own words
    #[arg(long, value_name = "TEXT", default_value = "neoverse-n1")]
    pub cpu: String,

    /// Folder with images and program; default: target/granule here or in a directory above
    #[arg(long, value_name = "FOLDER")]
    pub folder: Option<PathBuf>,

    /// The options of each boot, and of the output
    #[command(flatten)]
    pub run: RunArgs,
}
