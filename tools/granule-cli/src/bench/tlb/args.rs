//! The command line of `granule bench tlb`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::sizes::parse_size;

pub(crate) const LONG: &str = "\
Run a workload under QEMU, and replay its memory accesses through models of the TLBs of
published CPUs: misses for each thousand instructions, with the kernel's and the programs'
memory in pages, in contiguous groups of pages, and in blocks, for each page size.

The figures are modelled. A miss is an access for which neither level of the TLB has an entry,
so that the CPU walks the tables. The sizes of the TLBs are those of the CPUs' manuals, which
--json names with what they leave open. The maps are rules: wherever an access goes, it finds a
leaf of that size, aligned and full. `linear blocks` is the kernel's linear map in blocks and all
else in pages; the line below the table has what that alone does to the kernel's misses, beside
the figure that was published. `guest` is what the guest's own tables had.

The workload is a program of ours that maps memory, writes to each page, forks, writes again,
changes permissions and unmaps: that of `granule bench user`. --initrd boots our kernel with
another one, and after `--` comes any QEMU command of a machine with one CPU. What counts begins
with the first instruction at EL0 and ends with the machine. Our own kernel runs under -icount,
so its figures repeat.

QEMU from 10.0 on is needed (Debian 13 has it).
Ctrl-C ends the guest and prints what was counted. The exit code is 0 if the machine or the
limit of --most ended the run, 1 if something else did, and 2 if nothing could be counted.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  The program of ours, some minutes:
    granule bench tlb

  Quickly, for a program:
    granule bench tlb --bytes 8M --json

  Debian's busybox on our kernel (an initramfs whose /init is the workload):
    granule bench tlb --initrd busybox.cpio

  Any system, its first hundred million instructions from the first program on:
    granule bench tlb --most 100M -- qemu-system-aarch64 -machine virt -cpu cortex-a72 \\
      -m 1G -nographic -kernel vmlinuz -initrd initrd -append console=ttyAMA0

`granule schema bench tlb` prints the keys of the JSON object; docs/performance.md has results and
what the model leaves out.";

/// The options of `granule bench tlb`.
#[derive(Debug, Args)]
pub struct TlbArgs {
    /// RAM of the machine
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "512M", conflicts_with = "command")]
    pub memory: u64,

    /// Memory that the program maps
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64M",
          conflicts_with_all = ["initrd", "command"])]
    pub bytes: u64,

    /// Number of rounds of the program, each of all its work
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=15),
          conflicts_with_all = ["initrd", "command"])]
    pub rounds: u32,

    /// Page size of the kernel that runs; the models have all
    #[arg(
        long,
        value_name = "SIZE",
        value_enum,
        ignore_case = true,
        default_value = "4k",
        conflicts_with = "command"
    )]
    pub page_size: crate::request::PageSize,

    /// Initramfs whose /init is the workload, in place of the program
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub initrd: Option<PathBuf>,

    /// End the guest after so many instructions (K, M and G are thousands here)
    #[arg(long, value_name = "N", value_parser = instructions, default_value = "2G")]
    pub most: u64,

    /// QEMU to run
    #[arg(
        long,
        value_name = "PATH",
        default_value = "qemu-system-aarch64",
        conflicts_with = "command"
    )]
    pub qemu: PathBuf,

    /// Folder with image and program; default: target/granule here or in a directory above
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    pub folder: Option<PathBuf>,

    /// Time limit in seconds, without the time the guest waits for a core of a busy host
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub timeout: u64,

    /// Print one JSON object to standard output, and the table to standard error
    #[arg(long)]
    pub json: bool,

    /// QEMU command of a machine with one CPU, in place of our kernel
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// A number of instructions: thousands, millions and milliards have a letter.
fn instructions(text: &str) -> Result<u64, String> {
    let (digits, times) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok();
    let number = number.and_then(|number| number.checked_mul(times));
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| "expected a number of instructions, such as 500M".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_instructions_have_letters_of_thousands() {
        for (text, number) in [
            ("1", 1),
            ("2k", 2000),
            ("500M", 500_000_000),
            ("2G", 2_000_000_000),
        ] {
            assert_eq!(instructions(text), Ok(number));
        }
        for text in ["", "0", "M", "1.5G", "-1", "99999999999G", "4KiB", "ü"] {
            assert!(instructions(text).is_err(), "{text}");
        }
    }
}
