//! The request for one boot: plain data, its options on the command line and their defaults, the
//! words it puts into bootargs, and the combinations that are refused.
//!
//! Nothing here reads files or starts programs; the request alone decides everything.

mod change;
mod crash;
mod firmware;
mod kaslr_seed;
mod kexec;
mod linear_map;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{Args, Parser, ValueEnum, value_parser};

pub use self::crash::Crash;
pub use self::firmware::Firmware;
pub use self::kaslr_seed::KaslrSeed;
pub(crate) use self::kaslr_seed::parse_kaslr_seed;
pub use self::kexec::Kexec;
pub use self::linear_map::{Barriers, LinearMap, Rodata};
use crate::sizes::{parse_address, parse_size, show_size};
use crate::trace_area::TraceArea;

/// A page size that can be requested of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PageSize {
    /// 4 KiB.
    #[value(name = "4k")]
    K4,
    /// 16 KiB.
    #[value(name = "16k")]
    K16,
    /// 64 KiB.
    #[value(name = "64k")]
    K64,
}

impl PageSize {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::K4, Self::K16, Self::K64];

    /// The word on the command line: `4k`, `16k` or `64k`.
    pub fn word(self) -> &'static str {
        self.value().name()
    }

    /// The library's value.
    pub fn value(self) -> granule::arch::PageSize {
        match self {
            Self::K4 => granule::arch::PageSize::K4,
            Self::K16 => granule::arch::PageSize::K16,
            Self::K64 => granule::arch::PageSize::K64,
        }
    }

    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.value().bytes()
    }
}

/// The VA sizes that VMSAv8-64 stage 1 supports with some page size.
pub const VA_BITS: [u8; 6] = [36, 39, 42, 47, 48, 52];

/// The number of CPU interfaces of a GICv2.
const GIC2_CPUS: u32 = 8;

/// The word in bootargs that makes the kernel count its instructions.
pub const COUNT_INSTRUCTIONS: &str = "granule.count=instructions";

/// One boot. `Request::default()` is a machine with 4 GiB of RAM and one CPU of QEMU's `max` model,
/// entered at EL2, with a time limit of one minute.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Request {
    /// Page size to request (arm64.pagesize=); else the kernel chooses
    #[arg(long, value_name = "SIZE", value_enum, ignore_case = true, help_heading = KERNEL)]
    pub page_size: Option<PageSize>,

    /// VA size to request (arm64.vabits=): 36, 39, 42, 47, 48 or 52
    #[arg(long, value_name = "N", help_heading = KERNEL)]
    pub va_bits: Option<u8>,

    #[arg(long, value_name = "MODE", value_enum, help_heading = KERNEL, hide_possible_values = true,
          help = "Memory to protect (rodata=): off, noalias (image and its alias), on, full")]
    pub rodata: Option<Rodata>,

    #[arg(long, value_name = "STRATEGY", value_enum, help_heading = KERNEL, hide_possible_values = true,
          help = "Strategy for making the linear map (linear_map=): direct, or a published way: base, \
                  no-cont-remap, batch-barriers, no-alloc-remap, lazy-unmap")]
    pub linear_map: Option<LinearMap>,

    #[arg(long, value_name = "WHEN", value_enum, help_heading = KERNEL, hide_possible_values = true,
          help = "Barriers of the published ways (linear_map_barriers=): with each entry, with each table")]
    pub linear_map_barriers: Option<Barriers>,

    /// More bootargs, put behind the words of the options above
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = KERNEL)]
    pub append: Option<String>,

    /// RAM of the machine: 512M, 4G, 512G
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = parse_size, help_heading = MACHINE)]
    pub memory: u64,

    /// Number of CPUs
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = MACHINE)]
    pub smp: u32,

    /// CPU in QEMU's own words, properties included: max,lpa2=off
    #[arg(long, value_name = "TEXT", default_value = "max", help_heading = MACHINE)]
    pub cpu: String,

    /// Version of the interrupt controller: 2 or 3
    #[arg(long, value_name = "2|3", default_value_t = 3, help_heading = MACHINE)]
    pub gic: u8,

    /// Exception level the image is entered at: 1 or 2
    #[arg(long, value_name = "1|2", default_value_t = 2, help_heading = MACHINE)]
    pub el: u8,

    /// Let the virtual clock count instructions, in one host thread
    #[arg(long, help_heading = MACHINE)]
    pub icount: bool,

    /// The seed in the tree's `/chosen`.
    #[arg(skip = KaslrSeed::Off)]
    pub kaslr_seed: KaslrSeed,

    /// The value of QEMU's option `-plugin`, for what counts from outside.
    #[arg(skip)]
    pub plugin: Option<OsString>,

    /// A file that the machine has as its virtio disk, to be read and written.
    #[arg(skip)]
    pub virtio_disk: Option<PathBuf>,

    /// QEMU to run
    #[arg(long, value_name = "PATH", default_value = "qemu-system-aarch64", help_heading = MACHINE)]
    pub qemu: PathBuf,

    /// Kernel image; default: target/granule/Image here or in a directory above
    #[arg(long, value_name = "FILE", help_heading = FILES)]
    pub image: Option<PathBuf>,

    /// Boot target/granule/Image-test, which has granule.test= and the other words that make things fail
    #[arg(long, conflicts_with = "image", help_heading = FILES)]
    pub test_image: bool,

    /// Hand the kernel exactly this device tree, broken or not
    #[arg(long, value_name = "FILE", help_heading = FILES)]
    pub dtb: Option<PathBuf>,

    /// Initial RAM disk (with --dtb it lies at the address in the tree's /chosen)
    #[arg(long, value_name = "FILE", help_heading = FILES)]
    pub initrd: Option<PathBuf>,

    /// Where the image's first byte lies: 0x80000000
    #[arg(long, value_name = "ADDR", value_parser = parse_address, help_heading = FILES)]
    pub load_address: Option<u64>,

    /// Where the device tree lies; default: behind the image
    #[arg(long, value_name = "ADDR", value_parser = parse_address, help_heading = FILES)]
    pub dtb_address: Option<u64>,

    /// Have the kernel record what it does to its translation, for `granule check FILE`
    #[arg(long, value_name = "FILE", help_heading = FILES)]
    pub trace: Option<PathBuf>,

    /// RAM to set aside for the trace; default: a sixteenth, 8M to 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = MACHINE)]
    pub trace_buffer: Option<u64>,

    /// Keep RAM in FILE (sparse, as large as RAM); the next boot with FILE starts with its contents
    #[arg(long, value_name = "FILE", help_heading = MACHINE)]
    pub ram_file: Option<PathBuf>,

    /// Program that starts the kernel: QEMU itself (direct), or firmware; all but direct and uefi from a disk
    #[arg(long, value_name = "WAY", value_enum, default_value = "direct", help_heading = FIRMWARE)]
    pub firmware: Firmware,

    /// Have EDK2 hand over ACPI tables instead of a device tree
    #[arg(long, help_heading = FIRMWARE)]
    pub acpi: bool,

    /// Firmware that QEMU starts; default: where packages put EDK2 or U-Boot
    #[arg(long, value_name = "FILE", help_heading = FIRMWARE)]
    pub firmware_file: Option<PathBuf>,

    /// Program of the boot loader; default: the one that `make disk` fetched
    #[arg(long, value_name = "FILE", help_heading = FIRMWARE)]
    pub loader: Option<PathBuf>,

    /// Disk that EDK2 boots from as it is, as a USB stick: what `make disk` wrote
    #[arg(long, value_name = "FILE", help_heading = FIRMWARE)]
    pub disk: Option<PathBuf>,

    /// The kernel to leave for.
    #[command(flatten)]
    pub kexec: Option<Kexec>,

    /// The kernel to crash into.
    #[command(flatten)]
    pub crash: Option<Crash>,

    /// Time limit of the guest in seconds, without the time it waits for a core of a busy host
    #[arg(long, value_name = "S", default_value = "60",
          value_parser = value_parser!(u64).range(1..=31_536_000).map(Duration::from_secs))]
    pub timeout: Duration,
}

const KERNEL: &str = "Requests to the kernel";
pub(crate) const MACHINE: &str = "The machine";
const FIRMWARE: &str = "Firmware";
const FILES: &str = "Files and where they lie in memory";

/// The options alone, whose defaults are those of a request.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    request: Request,
}

impl Default for Request {
    fn default() -> Self {
        Options::parse_from(["granule"]).request
    }
}

impl Request {
    /// Whether we place image and tree in RAM ourselves. QEMU's `-kernel` would replace memory
    /// nodes and pick the address itself.
    pub fn is_raw(&self) -> bool {
        self.dtb.is_some() || self.load_address.is_some() || self.dtb_address.is_some()
    }

    /// The bootargs of this request. `append` comes last.
    pub fn bootargs(&self) -> String {
        let mut words = Vec::new();
        if let Some(size) = self.page_size {
            words.push(format!("arm64.pagesize={}", size.word()));
        }
        if let Some(bits) = self.va_bits {
            words.push(format!("arm64.vabits={bits}"));
        }
        if let Some(rodata) = self.rodata {
            words.push(format!("rodata={}", rodata.word()));
        }
        if let Some(strategy) = self.linear_map {
            words.push(format!("linear_map={}", strategy.word()));
        }
        if let Some(barriers) = self.linear_map_barriers {
            words.push(format!("linear_map_barriers={}", barriers.word()));
        }
        if self.icount {
            words.push(COUNT_INSTRUCTIONS.into());
        }
        if self.dtb.is_none() {
            words.extend(self.trace_area().map(|area| area.word()));
        }
        words.extend(self.kexec.as_ref().and_then(Kexec::word));
        if self.crash.is_some() {
            words.extend(Crash::word(self.append.as_deref()));
        }
        words.extend(self.append.clone());
        words.join(" ")
    }

    /// The RAM reserved for the kernel's trace, if a trace is requested.
    pub fn trace_area(&self) -> Option<TraceArea> {
        self.trace.as_ref()?;
        // Firmware lies at the end of RAM, and in part stays there.
        Some(match self.firmware {
            Firmware::Direct => TraceArea::at_end_of_ram(self.memory, self.trace_buffer),
            _ => TraceArea::amid_ram(self.memory, self.trace_buffer),
        })
    }

    /// Checks the request without looking at any file.
    /// Fails with one line about the first mistake.
    pub fn check(&self) -> Result<(), String> {
        if self.memory == 0 {
            return Err("--memory 0: the machine needs RAM, for example 512M".into());
        }
        // QEMU silently rounds RAM up to 8 KiB and then finds that its memory backend has another
        // size.
        if !self.memory.is_multiple_of(8 << 10) {
            return Err(format!(
                "--memory {}: QEMU's RAM comes in multiples of 8K",
                show_size(self.memory)
            ));
        }
        if self.smp == 0 {
            return Err("--smp 0: the machine needs a CPU".into());
        }
        if !matches!(self.el, 1 | 2) {
            return Err(format!(
                "--el {}: the image is entered at EL1 or EL2",
                self.el
            ));
        }
        match self.gic {
            3 => (),
            2 if self.smp <= GIC2_CPUS => (),
            2 => {
                return Err(format!(
                    "--gic 2 --smp {}: a GICv2 serves at most {GIC2_CPUS} CPUs",
                    self.smp
                ));
            }
            other => {
                return Err(format!(
                    "--gic {other}: the interrupt controller is version 2 or 3"
                ));
            }
        }
        if self.cpu.is_empty() {
            return Err("--cpu is empty: name a QEMU CPU model, for example max".into());
        }
        if self.timeout.is_zero() {
            return Err("--timeout 0: the guest needs at least a second".into());
        }
        if let Some(bits) = self.va_bits.filter(|bits| !VA_BITS.contains(bits)) {
            return Err(format!(
                "--va-bits {bits}: it is one of 36, 39, 42, 47, 48, 52"
            ));
        }
        // A NUL ends the property in the tree, and the words after it are lost.
        if self.append.as_ref().is_some_and(|text| text.contains('\0')) {
            return Err("--append holds a NUL byte, which would end the bootargs".into());
        }
        // An instruction fetch from an address that is not word aligned faults before the kernel
        // can report its address.
        if let Some(address) = self.load_address.filter(|a| !a.is_multiple_of(4)) {
            return Err(format!(
                "--load-address {address:#x}: instructions are 4-byte aligned (and the kernel requests 2M)"
            ));
        }
        if self.kaslr_seed.number().is_some() && self.firmware != Firmware::Direct {
            return Err(format!(
                "--kaslr-seed with a number: with --firmware {} the seed comes from the firmware; give random or off",
                self.firmware.word()
            ));
        }
        self.check_trace()?;
        self.firmware.check(self)?;
        if let Some(kexec) = &self.kexec {
            kexec.check(self)?;
        }
        if let Some(crash) = &self.crash {
            crash.check(self)?;
        }
        self.check_exact_tree()
    }

    fn check_trace(&self) -> Result<(), String> {
        let Some(area) = self.trace_area() else {
            return match self.trace_buffer {
                None => Ok(()),
                Some(_) => Err("--trace-buffer: there is no --trace to put into it".into()),
            };
        };
        area.check(self.memory)
    }

    /// `--dtb` passes the tree to the kernel unchanged, so options that put words into the tree
    /// conflict with it.
    fn check_exact_tree(&self) -> Result<(), String> {
        if self.dtb.is_none() {
            return Ok(());
        }
        let changed = [
            ("--page-size", self.page_size.is_some()),
            ("--va-bits", self.va_bits.is_some()),
            ("--rodata", self.rodata.is_some()),
            ("--linear-map", self.linear_map.is_some()),
            ("--linear-map-barriers", self.linear_map_barriers.is_some()),
            ("--append", self.append.is_some()),
        ];
        if self.kaslr_seed != KaslrSeed::Off {
            return Err(
                "--kaslr-seed would alter /chosen/kaslr-seed, but --dtb hands the kernel exactly that \
                 tree: write the seed into the tree instead"
                    .into(),
            );
        }
        match changed.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) => Err(format!(
                "{option} would alter /chosen/bootargs, but --dtb hands the kernel exactly that \
                 tree: write the words into the tree's bootargs instead"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootargs_have_every_word_and_append_comes_last() {
        assert_eq!(Request::default().bootargs(), "");
        let all = Request {
            page_size: Some(PageSize::K16),
            va_bits: Some(47),
            rodata: Some(Rodata::Noalias),
            linear_map: Some(LinearMap::Direct),
            linear_map_barriers: Some(Barriers::Table),
            icount: true,
            append: Some("arm64.errata=none quiet".into()),
            ..Request::default()
        };
        assert_eq!(
            all.bootargs(),
            "arm64.pagesize=16k arm64.vabits=47 rodata=noalias linear_map=direct \
             linear_map_barriers=table granule.count=instructions arm64.errata=none quiet"
        );
    }

    #[test]
    fn each_bad_request_is_named() {
        let with = |change: &dyn Fn(&mut Request)| {
            let mut request = Request::default();
            change(&mut request);
            request.check().unwrap_err()
        };
        assert!(with(&|r| r.memory = 0).contains("--memory 0"));
        assert!(with(&|r| r.memory = 4096).contains("--memory 4K"));
        assert!(with(&|r| r.smp = 0).contains("--smp"));
        assert!(with(&|r| r.el = 3).contains("--el 3"));
        assert!(with(&|r| r.gic = 4).contains("--gic 4"));
        assert!(with(&|r| (r.gic, r.smp) = (2, 9)).contains("--gic 2 --smp 9"));
        assert!(with(&|r| r.cpu.clear()).contains("--cpu"));
        assert!(with(&|r| r.timeout = Duration::ZERO).contains("--timeout"));
        assert!(with(&|r| r.va_bits = Some(40)).contains("--va-bits 40"));
        assert!(with(&|r| r.append = Some("a\0b".into())).contains("--append"));
        assert!(with(&|r| r.load_address = Some(0x4020_0002)).contains("0x40200002"));
        assert_eq!(Request::default().check(), Ok(()));
    }

    #[test]
    fn an_exact_tree_refuses_what_would_alter_it() {
        type Change = fn(&mut Request);
        let changes: [(&str, Change); 6] = [
            ("--page-size", |r| r.page_size = Some(PageSize::K4)),
            ("--va-bits", |r| r.va_bits = Some(48)),
            ("--rodata", |r| r.rodata = Some(Rodata::On)),
            ("--linear-map", |r| r.linear_map = Some(LinearMap::Base)),
            ("--linear-map-barriers", |r| {
                r.linear_map_barriers = Some(Barriers::Entry);
            }),
            ("--append", |r| r.append = Some("x".into())),
        ];
        for (option, change) in changes {
            let mut request = Request {
                dtb: Some("t.dtb".into()),
                ..Request::default()
            };
            assert_eq!(request.check(), Ok(()));
            change(&mut request);
            let line = request.check().unwrap_err();
            assert!(line.starts_with(option) && line.contains("--dtb"), "{line}");
        }
    }
}
