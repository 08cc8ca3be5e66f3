//! The command line of `granule bench kexec`.

use clap::Args;

use super::{Mmu, PayloadPlace};
use crate::bench::args::ImageArgs;
use crate::request::PageSize;
use crate::sizes::parse_size;

pub(crate) const LONG: &str = "\
Boot the kernel, have it leave for itself with an initramfs that is filled up to the payload, and
print what each phase took: shutdown (from the call of reboot to the relocation code), relocation
(from there to the next kernel's first instructions), startup (from there to the first line on the
console, and until the kernel is up, before its first process). With the MMU on and off while bytes
are copied, and with all of it copied or put where it goes at once.

What is counted is instructions, by the virtual counter under -icount, where an instruction is a
nanosecond; in steps of 16. `of bound` is the relocation against 1.1 times a plain copy of as many
bytes (the loop of `granule.bench=copy`, counted in the same boot) and one instruction for each
operation on a cache line. QEMU has no caches: what copying past them costs is not to be seen in
instructions. `predicted` is the time that follows from what was published of two machines.

The kernel and `kexec` are built by `cargo xtask image` and `cargo xtask user`. Ctrl-C ends the boot
that runs and prints what is done. The exit code is 0 only if every boot was ok and what arrived was
what was given.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  The payloads that were published, every way:
    granule bench kexec

  Quickly, for a program:
    granule bench kexec --payload 8M --memory 256M --mmu on --json

`granule schema bench kexec` prints the keys of the JSON object; docs/performance.md has results.";

/// The benchmark: the options of `granule bench kexec`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Bench {
    /// Bytes of image and initramfs together, one or more
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size,
          default_value = "25M,84M,380M")]
    pub payload: Vec<u64>,

    /// With the MMU on or off while bytes are copied, one or both
    #[arg(
        long,
        value_name = "WAY",
        value_delimiter = ',',
        value_enum,
        default_value = "off,on"
    )]
    pub mmu: Vec<Mmu>,

    /// Place of the payload: copied from elsewhere, or in-place with nothing to copy, one or both
    #[arg(
        long,
        value_name = "PLACE",
        value_delimiter = ',',
        value_enum,
        default_value = "copied,in-place"
    )]
    pub place: Vec<PayloadPlace>,

    /// Page size, one or more; the next kernel has the same
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        value_enum,
        ignore_case = true,
        default_value = "4k"
    )]
    pub page_size: Vec<PageSize>,

    /// RAM of the machine
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4G")]
    pub memory: u64,

    /// CPU in QEMU's own words
    #[arg(long, value_name = "TEXT", default_value = "neoverse-n1")]
    pub cpu: String,

    /// The image, and the options of each boot
    #[command(flatten)]
    pub on: ImageArgs,
}
