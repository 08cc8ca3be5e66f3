//! The options of `granule watch`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use granule_model::{Lacks, Policies};

use super::plant::Fault;
use crate::findings::{parse_lacks, parse_policies, parse_range};

/// The long help.
pub const LONG: &str = "\
Run a QEMU command and judge what its guest does to its page tables, beside the guest.

The guest is any arm64 system, unchanged. A plugin for QEMU records each store to a table, each
TLBI and barrier, and each write of a translation register; the model of `granule check`
judges them. The options that are added to the command are printed. QEMU 10.0 to 11.1.

Findings name the guest's functions: those of --symbols, or those that a Linux lists in its own
memory, with its modules. --accept FILE has lines `RULE FUNCTION REASON`; findings that they name
are printed and do not fail the run.

A run takes up to about twice the CPU time that it takes without the plugin; a Linux with one CPU boots in about ten seconds.
It ends with the guest. Ctrl-C ends the guest, and what was found until then is reported.

The exit code is 1 when a rule was broken that is not accepted. Otherwise it is 2 for bad usage, for a guest that never
turned its MMU on and for a --plant that planted nothing, 3 for a run of which a part was not judged, as the last lines
name it, or that was not watched to its end, and else 0.";

/// The examples.
pub const EXAMPLES: &str = "\
Examples:
  A command of your own:
    granule watch -- qemu-system-aarch64 -machine virt -cpu neoverse-n1 -smp 4 -m 1G \\
      -nographic -kernel vmlinuz -initrd initrd.img -append console=ttyAMA0

  A Linux image, and the trace kept for later:
    granule watch --record boot.trace.gz --linux vmlinuz --initrd initrd.img
    granule check boot.trace.gz

  The same Linux with a forgotten invalidation:
    granule watch --plant ptep_clear_flush:tlbi --linux vmlinuz --initrd initrd.img

`granule schema watch` prints the keys of the JSON object.";

/// The options.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// The command: the name of QEMU and its options
    #[arg(value_name = "COMMAND", last = true, required_unless_present = "linux")]
    pub(super) command: Vec<OsString>,

    /// Boot this Linux image, in a machine with one CPU and 1 GiB
    #[arg(long, value_name = "IMAGE", conflicts_with = "command")]
    pub(super) linux: Option<PathBuf>,

    /// Initial RAM disk of --linux
    #[arg(long, value_name = "FILE", requires = "linux")]
    pub(super) initrd: Option<PathBuf>,

    /// CPU of --linux, as QEMU names it; default: max
    #[arg(long, value_name = "MODEL", requires = "linux")]
    pub(super) cpu: Option<String>,

    /// More words for the kernel of --linux
    #[arg(
        long,
        value_name = "TEXT",
        requires = "linux",
        allow_hyphen_values = true
    )]
    pub(super) append: Option<String>,

    /// QEMU for --linux; a COMMAND begins with its own
    #[arg(
        long,
        value_name = "PATH",
        default_value = "qemu-system-aarch64",
        conflicts_with = "command"
    )]
    pub(super) qemu: PathBuf,

    /// Keep what was seen in FILE, compressed, for `granule check FILE`; what FILE held is overwritten
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,

    /// Write what was found to FILE.html too, as one page; what FILE.html held is overwritten
    #[arg(long, value_name = "FILE.html")]
    pub(super) report: Option<PathBuf>,

    /// Also report what is legal but leaves more cached than a careful kernel would
    #[arg(long)]
    pub(super) strict: bool,

    /// Judge nothing: only count and record
    #[arg(long, conflicts_with = "strict")]
    pub(super) no_check: bool,

    /// Steps that the guest's kernel leaves out on purpose: spurious-faults, lazy-unmap, both with a comma, or
    /// none; default: both
    #[arg(long, value_name = "LIST", value_parser = parse_policies)]
    pub(super) allow: Option<Policies>,

    /// Addresses of the kernel for which lazy-unmap holds; default: those of vmalloc and modules in a Linux's VMCOREINFO,
    /// or the second half of the kernel's addresses
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_range)]
    pub(super) lazy: Option<(u64, u64)>,

    /// Features that the CPUs lack, instead of those of QEMU's CPU: ttl, single-tlbi (an erratum: a TLBI takes another
    /// one after its DSB), lva, lpa2, ttst, hafdbs, xnx
    #[arg(long, value_name = "LIST", value_parser = parse_lacks)]
    pub(super) lacks: Option<Lacks>,

    /// BBM level of the CPUs (ID_AA64MMFR2_EL1.BBM), instead of the one that QEMU's CPU has. What they permit without
    /// break-before-make: 0 nothing, 1 the contiguous hint, 2 a block and a table of like leaves, 3 the same without
    /// conflict aborts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub(super) bbm: Option<u8>,

    /// System.map of the guest, or what nm prints of it; without it the list that a Linux keeps in its memory
    #[arg(long, value_name = "FILE")]
    pub(super) symbols: Option<PathBuf>,

    /// File of accepted findings: lines of rule, function and reason
    #[arg(long, value_name = "FILE", conflicts_with = "no_check")]
    pub(super) accept: Option<PathBuf>,

    /// Leave out instructions of a Linux, to see what it looks like: FUNCTION:tlbi, FUNCTION:dsb or FUNCTION:isb
    /// become NOPs in the guest's memory once its first program runs. `FUNCTION:dsb ishst` are those with this
    /// option, FUNCTION:tlbi:2 is the second. May be given several times
    #[arg(long, value_name = "FAULT")]
    pub(super) plant: Vec<Fault>,

    /// Time limit of the guest in seconds, without the time it waits for a core of a busy host
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(super) timeout: Option<u64>,

    /// Print one JSON object to standard output, and QEMU's output to standard error
    #[arg(long)]
    pub json: bool,
}
