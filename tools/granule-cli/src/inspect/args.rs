//! The command lines of `granule dump`, `granule lint` and `granule report`: their options for sources, and
//! those of each.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use granule_inspect::source::{OpenError, Source};

use super::is_live;
use crate::sizes::parse_address;

/// The text of `granule dump --help` above its options.
pub const DUMP_LONG: &str = "\
List what page tables map: those of a memory dump or of a live virtual machine, of any arm64 kernel.

A line is a range of neighbouring leaves: addresses, size, physical address, kind of leaf and
attributes, in the Arm manual's words:
  RW ro              stores allowed, or loads alone (stage 2: also wo and none)
  PX PXN, UX UXN     executable by the privileged level, by EL0, or never; X XN where there is one level
  user               EL0 may access
  AF, nG             accessed; belongs to one address space
  ISH OSH NSH        inner, outer or not shareable; SH-TCR if TCR gives it, SH-unknown if a guess cannot
  DBM, GP            hardware may make it writable (dirty state); guarded page (BTI)
  normal-WB ...      the memory type; index-N if MAIR is not known
Permissions are those that remain after the tables above a leaf have restricted them.

The exit code is 0, or 3 for bad usage and if the source or a root table cannot be read; with --diff 1
if there is a difference.";

/// The text of `granule dump --help` below its options.
pub const DUMP_EXAMPLES: &str = "\
Examples:
  A dump that records where its tables are (QEMU's dump-guest-memory, /proc/vmcore, makedumpfile):
    granule dump vmcore

  A live QEMU that was started with -s:
    granule dump gdb:localhost:1234

  A raw image of RAM that begins at 1 GiB, with the registers of EL1:
    granule dump ram.bin --base 0x40000000 --ttbr1 0x41230000 --tcr 0x5b5103510 --mair 0x44ff04

  Raw images of two banks of RAM:
    granule dump low.bin@0x80000000 high.bin@0x8000000000 --ttbr1 0x81230000 --tcr 0x5b5103510

  What is writable and executable by the kernel; what EL0 can reach in one place:
    granule dump vmcore --with RW,PX
    granule dump vmcore --with user --from 0x400000 --to 0x4fffff

  Why an address faults, level by level; what a change did:
    granule dump vmcore --explain 0xffff800080000000
    granule dump before.elf --diff after.elf

`granule schema dump` prints the keys of the JSON objects.";

/// The text of `granule lint --help` above its options.
pub const LINT_LONG: &str = "\
Find what is wrong or wasteful in page tables: those of a memory dump or of a live virtual machine, of
any arm64 kernel.

A finding is a line: severity, rule, address and size, whose tables, and what it leads to. The exit
code is 0 if there is no more than info, 1 for a warning, 2 for an error and for a line of --memory-map
that is none, and 3 for bad usage and if the source or a root table cannot be read.";

/// The text of `granule lint --help` below its options.
pub const LINT_EXAMPLES: &str = "\
Rules:
  writable-executable  one privilege may store to it and execute it
  contiguous           entries of a contiguous group disagree, or the group is not aligned
  memory-clash         the same memory has two memory types or shareabilities
  reserved-bits        reserved bits or encodings
  output-size          an address beyond the size that TCR or VTCR sets
  shared-table, loop   a table used twice; a table that leads to itself
  writable-text        a writable alias of the privileged level's read-only text
  unreadable-table     a table that is not in the source
  hypervisor-memory    tables or code of EL2 that stage 2 maps
  no-map               no-map memory that is mapped (--memory-map)
  kept-shareability    shareability that TCR.DS made bits of the output
  contiguous-state     entries of a contiguous group differ in access flag or dirty state
  missed-contiguous, missed-block
                       leaves that could be larger, with what that would win

Examples:
  Everything; findings alone that matter for security:
    granule lint vmcore
    granule lint vmcore --rule writable-executable,writable-text

  How much of what is mapped a TLB of 48 entries and one of 1280 hold:
    granule lint vmcore --tlb 48,1280

  Whether the kernel maps memory that it must not, as a dump taken with the machine's /proc/iomem has it:
    granule lint vmcore --memory-map iomem.txt --rule no-map

  With a file of findings that are meant to be so. A line is a rule, addresses and a reason:
    loop 0xffffff0000000000-0xffffff7fffffffff the map of the tables themselves
    granule lint vmcore --accept accepted.txt

`granule schema lint` prints the keys of the JSON object, and the rules.";

/// The text of `granule report --help` above its options.
pub const REPORT_LONG: &str = "\
Make one page of HTML that shows the page tables of memory dumps or live virtual machines, side by side.

The page needs no network and nothing beside it. It has
  a map of each tree, coloured by leaf size or by access. Unmapped gaps are folded, so that each region
    has a row of its own with its own scale. A click on a cell, or the arrow keys, show its range, leaf
    and attributes; Enter or + goes into a row, - goes back, 0 shows everything
  charts: leaf sizes, table memory, and how far a TLB reaches (modelled)
  what `granule lint` finds, with links into the map
  results of benchmarks side by side (--bench)

A source has at most as many cells in the page as --detail gives. Beyond, neighbours are put together and
the page notes it; sums stay exact. The same sources give the same bytes.

The exit code is 0, or 3 for bad usage, if a source or a root table cannot be read, and if the page
cannot be written.";

/// The text of `granule report --help` below its options.
pub const REPORT_EXAMPLES: &str = "\
Examples:
  One dump:
    granule report vmcore -o report.html

  Two kernels beside each other, with names:
    granule report a.elf b.elf --name before --name after -o report.html

  With benchmarks of two builds:
    granule bench linear-map --json > new.json
    granule report vmcore --bench old.json --bench new.json -o report.html

The options below \"Missing from the source\" are for every source.";

/// The place of the tables.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// ELF core, kdump file, raw images (FILE@ADDRESS ..., or one with --base), or a live QEMU: gdb:HOST:PORT, qmp:PATH
    #[arg(value_name = "SOURCE", value_parser = Source::from_str, required = true)]
    sources: Vec<Source>,

    #[command(flatten)]
    registers: RegisterArgs,
}

/// The data that a source may lack.
#[derive(Debug, Args)]
#[command(next_help_heading = "Missing from the source")]
struct RegisterArgs {
    /// Physical address of the first byte of a raw image; other files contain it
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    base: Option<u64>,

    /// Exception level of the registers below, 1 to 3
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
    el: Option<u8>,

    /// EL2 runs a kernel with both halves (HCR_EL2.E2H)
    #[arg(long)]
    vhe: bool,

    /// TTBR0: the root of the lower half
    #[arg(long, value_name = "VALUE", value_parser = parse_address)]
    ttbr0: Option<u64>,

    /// TTBR1: the root of the upper half
    #[arg(long, value_name = "VALUE", value_parser = parse_address)]
    ttbr1: Option<u64>,

    /// TCR: page size and address bits
    #[arg(long, value_name = "VALUE", value_parser = parse_address)]
    tcr: Option<u64>,

    /// MAIR: memory types; without it they are shown as indices
    #[arg(long, value_name = "VALUE", value_parser = parse_address)]
    mair: Option<u64>,

    /// VTTBR_EL2: the root of stage 2
    #[arg(long, value_name = "VALUE", value_parser = parse_address)]
    vttbr: Option<u64>,

    /// VTCR_EL2: page size and address bits of stage 2
    #[arg(long, value_name = "VALUE", value_parser = parse_address)]
    vtcr: Option<u64>,

    /// HCR_EL2, whose bit FWB gives the memory types of stage 2 their meaning
    #[arg(long, value_name = "VALUE", value_parser = parse_address)]
    hcr: Option<u64>,

    /// ID_AA64MMFR1_EL1, whose XNX (bits 31:28) gives the execute permissions of stage 2 their meaning
    #[arg(long, value_name = "VALUE", value_parser = parse_address)]
    mmfr1: Option<u64>,

    /// System.map of a Linux kernel that does not list its symbols: for the processes of a dump
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
}

impl SourceArgs {
    /// The source: raw images are one memory.
    pub(super) fn source(&self) -> Result<Source, OpenError> {
        Source::together(&self.sources)
    }

    /// Whether a live machine is read.
    fn is_live(&self) -> bool {
        self.sources.iter().any(is_live)
    }

    /// The options of [`granule_inspect::open`].
    pub fn options(&self) -> granule_inspect::Options {
        self.registers.options()
    }
}

impl RegisterArgs {
    fn options(&self) -> granule_inspect::Options {
        granule_inspect::Options {
            base: self.base,
            el: self.el,
            vhe: self.vhe,
            ttbr0: self.ttbr0,
            ttbr1: self.ttbr1,
            tcr: self.tcr,
            mair: self.mair,
            vttbr: self.vttbr,
            vtcr: self.vtcr,
            hcr: self.hcr,
            mmfr1: self.mmfr1,
            symbols: self.symbols.clone(),
        }
    }
}

/// The options of `granule dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// Lowest address to show
    #[arg(long = "from", value_name = "ADDRESS", value_parser = parse_address, default_value = "0x0", hide_default_value = true)]
    pub(super) first: u64,

    /// Highest address to show
    #[arg(long = "to", value_name = "ADDRESS", value_parser = parse_address,
          default_value = "0xffffffffffffffff", hide_default_value = true)]
    pub(super) last: u64,

    /// Show only ranges with all of these words (also: block, page, contiguous, NX)
    #[arg(long, value_name = "WORD", value_delimiter = ',', value_parser = word)]
    pub(super) with: Vec<String>,

    /// Show only ranges with none of these words
    #[arg(long, value_name = "WORD", value_delimiter = ',', value_parser = word)]
    pub(super) without: Vec<String>,

    /// Explain one address level by level instead, and why it faults where it does
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address,
          conflicts_with_all = ["diff", "with", "without", "first", "last"])]
    pub(super) explain: Option<u64>,

    /// Show instead what another source maps differently; the register options are for both
    #[arg(long, value_name = "SOURCE", value_parser = Source::from_str)]
    pub(super) diff: Option<Source>,

    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) from: SourceArgs,
}

/// The options of `granule lint`.
#[derive(Debug, Args)]
pub struct LintArgs {
    /// Only these rules
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = rule)]
    pub(super) rule: Vec<granule_inspect::lint::Rule>,

    /// File of accepted findings: lines of rule, addresses and reason
    #[arg(long, value_name = "FILE")]
    pub(super) accept: Option<PathBuf>,

    /// Memory that must not be mapped: a file with the lines of /proc/iomem, or `found` for the device tree and the EFI
    /// memory map in the memory
    #[arg(long, value_name = "FILE")]
    pub(super) memory_map: Option<PathBuf>,

    /// Entries of a TLB, and of a second one: report how much of the mapped memory they hold (modelled)
    #[arg(long, value_name = "ENTRIES", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) tlb: Vec<u64>,

    /// Findings of each rule and severity to list; more are only counted
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(super) most: usize,

    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) from: SourceArgs,
}

/// The options of `granule report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// ELF cores, kdump files, raw images (FILE@ADDRESS, several with commas, or one with --base), or live QEMUs:
    /// gdb:HOST:PORT, qmp:PATH; FILE.json is taken as with --bench
    #[arg(value_name = "SOURCE", required = true, value_parser = Source::from_str)]
    pub(super) sources: Vec<Source>,

    /// File to write; - for standard output
    #[arg(short, long, value_name = "FILE.html")]
    pub(super) output: PathBuf,

    /// Name of a source in the page, in their order; else that of the file
    #[arg(long = "name", value_name = "NAME")]
    pub(super) names: Vec<String>,

    /// Result of `granule bench ... --json` or `granule-bench --json`, or a file of docs/results, to compare; may be
    /// given several times
    #[arg(long, value_name = "FILE.json")]
    pub(super) bench: Vec<PathBuf>,

    /// Ranges of a source that are kept apart; beyond, neighbours are put together and summed
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) detail: u32,

    /// Findings of each rule and severity to list; more are only counted
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(super) most: usize,

    #[command(flatten)]
    registers: RegisterArgs,
}

impl ReportArgs {
    /// Whether a live machine is read.
    pub fn is_live(&self) -> bool {
        self.sources.iter().any(is_live)
    }

    /// The options of [`granule_inspect::open`], for every source.
    pub(super) fn options(&self) -> granule_inspect::Options {
        self.registers.options()
    }
}

/// The kinds of a range's leaves, beside the words of their attributes.
pub(super) const KINDS: [&str; 3] = ["block", "page", "contiguous"];

/// A misspelt word would show nothing, or everything.
fn word(word: &str) -> Result<String, String> {
    use granule_inspect::attributes::{WORDS, is_word};
    let kind = KINDS.iter().any(|kind| kind.eq_ignore_ascii_case(word));
    if kind || is_word(word) {
        return Ok(word.to_owned());
    }
    Err(format!(
        "unknown attribute {word:?}; expected one of {} {}, or a memory type such as normal-WB, device-nGnRE, index-0",
        KINDS.join(" "),
        WORDS.join(" ")
    ))
}

impl DumpArgs {
    /// Whether a live machine is read.
    pub fn is_live(&self) -> bool {
        self.from.is_live() || self.diff.as_ref().is_some_and(is_live)
    }
}

impl LintArgs {
    /// Whether a live machine is read.
    pub fn is_live(&self) -> bool {
        self.from.is_live()
    }
}

fn rule(name: &str) -> Result<granule_inspect::lint::Rule, String> {
    use granule_inspect::lint::Rule;
    Rule::named(name).ok_or_else(|| {
        let names: Vec<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        format!("no rule is called {name:?}; there are {}", names.join(", "))
    })
}
