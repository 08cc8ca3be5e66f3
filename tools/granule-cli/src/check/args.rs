//! The command line of `granule check`.

use std::path::PathBuf;

use clap::Args;
use granule_model::{Lacks, Policies};

use crate::findings::{parse_lacks, parse_policies, parse_range};

pub(crate) const LONG: &str = "\
Replay a trace through the model of the MMU and report what breaks the architecture's rules.

A violation is a line: the rule, the event's line in the file, the CPU, the address, what
a CPU could observe, and the earlier event that it conflicts with. Of a trace that has the
instruction of each event, as `granule watch` records it, violations are listed by rule and function.
The exit code is 0 when all was judged and nothing found that is not accepted, 1 when something was found,
2 for bad usage, for a file that cannot be read as a trace, with line and column, and for a trace in which no
MMU is turned on, and 3 when nothing was found but a part was not judged.";

pub(crate) const HINT: &str = "`granule check --help` has examples.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  Record a boot and check it:
    granule boot --page-size 16k --trace boot.trace
    granule check boot.trace

  As if the CPUs had no relaxations of break-before-make, and as severe as can be:
    granule check --bbm 0 --strict boot.trace

  From a pipe, as JSON:
    zcat boot.trace.gz | granule check --json - | jq '.violations[].rule'

docs/trace-format.md documents traces, `granule schema check` prints the keys of the JSON object.";

/// The options of `granule check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The trace; `-` for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Also report what is legal but leaves more cached than a careful kernel would
    #[arg(long)]
    pub strict: bool,

    /// Steps that the kernel leaves out on purpose: spurious-faults, lazy-unmap, both with a comma, or none;
    /// default: those in the first line of the trace
    #[arg(long, value_name = "LIST", value_parser = parse_policies)]
    pub allow: Option<Policies>,

    /// Addresses of the kernel for which lazy-unmap holds, instead of those in the first line; without both the second
    /// half of its addresses
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_range)]
    pub lazy: Option<(u64, u64)>,

    /// Features that the CPUs lack, instead of those in the first line: ttl, single-tlbi (an erratum: a TLBI takes another
    /// one after its DSB), lva, lpa2, ttst, hafdbs, xnx
    #[arg(long, value_name = "LIST", value_parser = parse_lacks)]
    pub lacks: Option<Lacks>,

    /// BBM level to check against, 0 to 3, instead of the one the trace gives for its CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub bbm: Option<u8>,

    /// System.map of the recorded system, or what nm prints of it, for a trace that names no functions
    #[arg(long, value_name = "FILE")]
    pub symbols: Option<PathBuf>,

    /// File of accepted findings: lines of rule, function and reason
    #[arg(long, value_name = "FILE")]
    pub accept: Option<PathBuf>,

    /// Write what was found to FILE too, as one page of HTML
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// Violations to list; more are only counted
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub most: usize,

    /// Print one JSON object to standard output
    #[arg(long)]
    pub json: bool,
}
