//! The command line: its options, their help and their defaults.
//!
//! Parsing ends in a [`Request`]; nothing is opened or started here.

use clap::{Args, Parser, Subcommand};

use crate::bench::args::BenchArgs;
use crate::check::args::{self as check, CheckArgs};
use crate::inspect::args::{self as inspect, DumpArgs, LintArgs, ReportArgs};
use crate::plan::{self, args::PlanArgs};
use crate::request::{self, KaslrSeed, Request, parse_kaslr_seed};
use crate::schema::{self, SchemaArgs};
use crate::watch::args::{self as watch, WatchArgs};

/// Boots and inspects an arm64 kernel that chooses its page size at boot.
#[derive(Debug, Parser)]
#[command(
    name = "granule",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot the kernel image under QEMU and report how it ended
    #[command(long_about = BOOT_LONG, after_help = BOOT_HINT, after_long_help = BOOT_EXAMPLES)]
    Boot(Box<BootArgs>),

    /// Replay a trace through the model of the MMU and report what breaks the architecture's rules
    #[command(long_about = check::LONG, after_help = check::HINT, after_long_help = check::EXAMPLES)]
    Check(CheckArgs),

    /// Run any arm64 system under QEMU and judge what it does to its page tables
    #[command(long_about = watch::LONG, after_long_help = watch::EXAMPLES)]
    Watch(Box<WatchArgs>),

    /// Measure by booting: the cost of building and changing the linear map, of user memory and of kexec
    Bench(BenchArgs),

    /// Compute the cost of a linear map on any machine, without booting
    #[command(long_about = plan::args::LONG, after_long_help = plan::args::EXAMPLES)]
    Plan(PlanArgs),

    /// List what the page tables of a dump or a live machine map, explain an address, compare two
    #[command(long_about = inspect::DUMP_LONG, after_help = DUMP_HINT, after_long_help = inspect::DUMP_EXAMPLES)]
    Dump(Box<DumpArgs>),

    /// Find what is wrong or wasteful in the page tables of a dump or a live machine
    #[command(long_about = inspect::LINT_LONG, after_help = LINT_HINT, after_long_help = inspect::LINT_EXAMPLES)]
    Lint(Box<LintArgs>),

    /// Make one HTML page of page tables: a map of memory, charts, findings, benchmarks
    #[command(long_about = inspect::REPORT_LONG, after_help = REPORT_HINT, after_long_help = inspect::REPORT_EXAMPLES)]
    Report(Box<ReportArgs>),

    /// Print the JSON Schema of what a command prints with --json: its keys, outcomes and exit codes
    #[command(long_about = schema::LONG, after_long_help = schema::EXAMPLES)]
    Schema(SchemaArgs),
}

const REPORT_HINT: &str = "`granule report --help` has examples and describes the page.";
const DUMP_HINT: &str = "`granule dump --help` has examples and explains the words.";
const LINT_HINT: &str = "`granule lint --help` has examples and the rules.";

const BOOT_LONG: &str = "\
Boot the kernel image under QEMU's `virt` machine and report how it ended.

The guest's console streams to standard output. The last line on standard error
names the outcome: ok, panic, timeout, refused, self-check-failed or guest-exit.
The exit code is 0 only for ok, 2 for bad usage and 1 for everything else.";

const BOOT_HINT: &str = "`granule boot --help` has examples.";

const BOOT_EXAMPLES: &str = "\
Examples:
  The same image with each page size:
    granule boot --page-size 4k
    granule boot --page-size 16k
    granule boot --page-size 64k

  Half a terabyte of RAM (reserved lazily, so a laptop will do), largest leaves:
    granule boot --memory 512G --rodata noalias

  A CPU without 16K pages, entered at EL1; the kernel prints what it chose instead:
    granule boot --cpu cortex-a72 --el 1 --page-size 16k

  Eight CPUs on a GICv2; the kernel checks what calls between them do:
    granule boot --test-image --smp 8 --gic 2 --append granule.test=ipi

  Count instructions, and keep only what a program needs:
    granule boot --icount --json 2>/dev/null | jq .linear_map.instructions

  Where a boot spends its instructions, phase by phase; the same as a picture:
    granule boot --icount --phases
    granule boot --icount --json > boot.json; granule report boot.json -o boot.html

  RAM that survives the reset, and a next boot with another page size that looks at it:
    granule boot --page-size 4k --memory 256M --ram-file ram --append granule.persist=0x4f000000,0x1000
    granule boot --page-size 64k --memory 256M --ram-file ram --append granule.persist=0x4f000000,0x1000

  Leave for the same image with another page size, and for a kernel of your own:
    granule boot --page-size 4k --kexec-page-size 64k
    granule boot --kexec vmlinuz --kexec-initrd initrd.img --kexec-append 'console=ttyAMA0 quiet'

  Crash, and read the page tables that the dead kernel had, out of the core that a crash kernel saves:
    granule boot --page-size 4k --crash --crash-page-size 64k --crash-output core
    granule dump core
    granule boot --crash --crash-kernel vmlinuz --crash-append 'console=ttyAMA0 quiet'

  Through UEFI, with ACPI tables only; through U-Boot; through GRUB, which `make disk` fetches:
    granule boot --firmware uefi --acpi
    granule boot --firmware u-boot --page-size 64k
    granule boot --firmware grub
    granule boot --firmware uefi --disk target/granule/disk.img

  A tree of your own, byte for byte, and an image above 4 GiB:
    granule boot --dtb board.dtb
    granule boot --memory 8G --load-address 0x140000000

RAM starts at 0x40000000. `granule schema boot` prints the keys of the JSON object, and what each
outcome means; docs/boot-record.md documents what the kernel prints and leaves in memory.";

/// The options of `granule boot`.
#[derive(Debug, Args)]
pub struct BootArgs {
    #[command(flatten)]
    request: Request,

    /// Seed of the kernel's addresses (/chosen/kaslr-seed): a number, off, or random for a new one each boot;
    /// default: random, or what the tree of --dtb has
    #[arg(long, value_name = "SEED", value_parser = parse_kaslr_seed, help_heading = request::MACHINE)]
    kaslr_seed: Option<KaslrSeed>,

    /// Print one JSON object to standard output, and the console to standard error
    #[arg(long)]
    pub json: bool,

    /// Print the phases from the first instruction to the first program; with --icount, their instructions
    #[arg(long)]
    pub phases: bool,
}

impl BootArgs {
    /// The request that these options describe.
    pub fn request(&self) -> Request {
        let usual = match self.request.dtb {
            None => KaslrSeed::Random,
            Some(_) => KaslrSeed::Off,
        };
        self.request
            .clone()
            .kaslr_seed(self.kaslr_seed.unwrap_or(usual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Barriers, Crash, Firmware, Kexec, LinearMap, PageSize, Rodata};
    use clap::CommandFactory;
    use granule_testing::text::assert_contains;
    use std::time::Duration;

    fn parse(words: &[&str]) -> Result<Request, String> {
        let argv = ["granule", "boot"].iter().chain(words);
        match Cli::try_parse_from(argv) {
            Ok(Cli {
                command: Command::Boot(args),
            }) => Ok(args.request()),
            Ok(_) => Err("another command".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_options_are_the_default_request() {
        let expected = Request::default().kaslr_seed(KaslrSeed::Random);
        assert_eq!(parse(&[]), Ok(expected));
    }

    #[test]
    fn the_test_image_is_instead_of_another() {
        let request = parse(&["--test-image"]).unwrap();
        assert!(request.test_image && request.image.is_none());
        assert!(parse(&["--test-image", "--image", "I"]).is_err());
    }

    #[test]
    fn every_option_arrives() {
        let line = "--page-size 64K --va-bits 52 --memory 512G --smp 4 --cpu max,lpa2=off --gic 2 --el 1 \
                    --rodata noalias --linear-map base --linear-map-barriers table --append -x=1 --dtb t --initrd i --image I \
                    --qemu /q --icount --timeout 9 --trace T --trace-buffer 4M --load-address 0x140000000 \
                    --dtb-address 2G --ram-file ram \
                    --firmware systemd-boot --acpi --firmware-file F --loader L --disk D --kexec N --kexec-initrd j \
                    --kaslr-seed 0x10 --kexec-append -y=2 --kexec-page-size 16k --kexec-copy --kexec-uncached \
                    --crash --crash-page-size 64k --crash-initrd k --crash-append -z=3 --crash-output O";
        let request = parse(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(
            request,
            Ok(Request {
                image: Some("I".into()),
                test_image: false,
                page_size: Some(PageSize::K64),
                va_bits: Some(52),
                memory: 512 << 30,
                smp: 4,
                cpu: "max,lpa2=off".into(),
                gic: 2,
                el: 1,
                rodata: Some(Rodata::Noalias),
                linear_map: Some(LinearMap::Base),
                linear_map_barriers: Some(Barriers::Table),
                append: Some("-x=1".into()),
                dtb: Some("t".into()),
                initrd: Some("i".into()),
                load_address: Some(0x1_4000_0000),
                dtb_address: Some(2 << 30),
                qemu: "/q".into(),
                icount: true,
                plugin: None,
                virtio_disk: None,
                kaslr_seed: KaslrSeed::Number(16),
                timeout: Duration::from_secs(9),
                trace: Some("T".into()),
                trace_buffer: Some(4 << 20),
                ram_file: Some("ram".into()),
                firmware: Firmware::SystemdBoot,
                acpi: true,
                firmware_file: Some("F".into()),
                loader: Some("L".into()),
                disk: Some("D".into()),
                kexec: Some(Kexec {
                    image: Some("N".into()),
                    initrd: Some("j".into()),
                    append: Some("-y=2".into()),
                    page_size: Some(PageSize::K16),
                    copy: true,
                    uncached: true,
                }),
                crash: Some(Crash {
                    crash: true,
                    page_size: Some(PageSize::K64),
                    kernel: None,
                    initrd: Some("k".into()),
                    append: Some("-z=3".into()),
                    output: Some("O".into()),
                }),
            })
        );
    }

    #[test]
    fn a_seed_is_random_off_or_a_number_and_an_exact_trees_own() {
        let seed = |words: &[&str]| parse(words).unwrap().kaslr_seed;
        assert_eq!(seed(&["--kaslr-seed", "12"]), KaslrSeed::Number(12));
        assert_eq!(seed(&["--kaslr-seed", "off"]), KaslrSeed::Off);
        assert_eq!(seed(&["--kaslr-seed", "random"]), KaslrSeed::Random);
        let most = format!("{:#x}", u64::MAX);
        assert_eq!(seed(&["--kaslr-seed", &most]), KaslrSeed::Number(u64::MAX));
        assert_eq!(seed(&["--dtb", "t"]), KaslrSeed::Off);
        let error = parse(&["--dtb", "t", "--kaslr-seed", "1"]).unwrap();
        assert!(error.check().unwrap_err().contains("--kaslr-seed"));
    }

    #[test]
    fn leaving_needs_somewhere_to_leave_for() {
        let same = parse(&["--kexec-page-size", "64k"]).unwrap().kexec;
        let expected = Kexec {
            page_size: Some(PageSize::K64),
            ..Kexec::default()
        };
        assert_eq!(same, Some(expected));
        for option in [
            "--kexec-initrd=i",
            "--kexec-append=x",
            "--kexec-copy",
            "--kexec-uncached",
        ] {
            let error = parse(&[option]).unwrap_err();
            assert!(error.contains("--kexec"), "{error}");
        }
    }

    #[test]
    fn wrong_values_are_refused_with_the_option_and_the_choice() {
        for (words, expected) in [
            (["--page-size", "5k"], "16k"),
            (["--memory", "4096"], "has no unit"),
            (["--rodata", "maybe"], "noalias"),
            (["--firmware", "bios"], "u-boot-efi"),
            (["--linear-map", "magic"], "direct"),
            (["--load-address", "here"], "0x80000000"),
            (["--timeout", "0"], "--timeout"),
            (["--smp", "many"], "--smp"),
            (["--kaslr-seed", "maybe"], "random"),
            (["--kexec-page-size", "5k"], "64k"),
        ] {
            let error = parse(&words).unwrap_err();
            assert_contains(&error, words[0]);
            assert_contains(&error, expected);
        }
    }
}
