//! Boots through firmware: firmware × machine description × EL × page size × CPUs × QEMU, a sample
//! that covers all pairs, and the report and the trace that each boot must give.
//!
//! `make test` runs a sample of the boots that need no download. The sample of all boots is a part
//! of `granule-peers`, which fetches boot loaders and the other QEMU.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use granule_cli::check::{self, CheckOptions};
use granule_cli::{Firmware, PageSize};
use serde_json::{Value, json};

use crate::boot::{self, Expected};
use crate::pairwise;

/// The firmware that starts the kernel, and whether ACPI tables may describe the machine.
const STARTS: [(Firmware, &[bool]); 6] = [
    (Firmware::Direct, &[false]),
    (Firmware::Uefi, &[false, true]),
    (Firmware::UBoot, &[false]),
    (Firmware::UBootEfi, &[false]),
    (Firmware::Grub, &[false, true]),
    (Firmware::SystemdBoot, &[false, true]),
];

/// Entered at EL2, QEMU's `max` stays there: it has VHE.
const ELS: [u8; 2] = [1, 2];
const CPUS: [u32; 2] = [1, 4];

/// Enough for EDK2 and for a trace of the boot.
const MEMORY: u64 = 512 << 20;

/// A QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Qemu {
    /// The machine's own; 7.2 in Debian 12.
    Installed,
    /// [`FETCHED`], which `granule-peers` fetches.
    Fetched,
}

/// The version of the fetched QEMU.
pub const FETCHED: &str = "10.0";

/// The QEMUs of the whole matrix.
pub const QEMUS: [Qemu; 2] = [Qemu::Installed, Qemu::Fetched];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirmwareBoot {
    /// The firmware that starts the kernel.
    pub firmware: Firmware,
    /// Whether ACPI's tables alone describe the machine.
    pub acpi: bool,
    el: u8,
    page_size: PageSize,
    cpus: u32,
    /// The QEMU that runs it.
    pub qemu: Qemu,
}

/// The files of a boot.
#[derive(Debug)]
pub struct Files<'a> {
    /// The image, and its SHA-256.
    pub image: &'a Path,
    pub sha256: &'a str,
    /// The QEMU to run, unless it is the machine's own.
    pub qemu: Option<PathBuf>,
    /// The boot loader, if one runs.
    pub loader: Option<PathBuf>,
}

/// Every case on these QEMUs.
#[must_use]
pub fn full(qemus: &[Qemu]) -> Vec<FirmwareBoot> {
    let mut cases = Vec::new();
    for (firmware, descriptions) in STARTS {
        for &acpi in descriptions {
            for el in ELS {
                for page_size in PageSize::ALL {
                    for cpus in CPUS {
                        cases.extend(qemus.iter().map(|&qemu| FirmwareBoot {
                            firmware,
                            acpi,
                            el,
                            page_size,
                            cpus,
                            qemu,
                        }));
                    }
                }
            }
        }
    }
    cases
}

/// The cases that run with the tools that `cargo xtask setup` installs.
#[must_use]
pub fn installed() -> Vec<FirmwareBoot> {
    let mut cases = full(&[Qemu::Installed]);
    cases.retain(|case| !case.firmware.has_loader());
    cases
}

/// A few of the cases, with every pair of values that occurs in any of them.
#[must_use]
pub fn covering(cases: &[FirmwareBoot]) -> Vec<FirmwareBoot> {
    pairwise::covering(cases, FirmwareBoot::dimensions)
}

impl FirmwareBoot {
    fn dimensions(&self) -> Vec<u64> {
        let start = STARTS.iter().position(|(it, _)| *it == self.firmware);
        vec![
            start.unwrap_or_default() as u64,
            self.acpi.into(),
            self.el.into(),
            self.page_size.bytes(),
            self.cpus.into(),
            self.qemu as u64,
        ]
    }

    /// Whether the kernel runs as an EFI program.
    fn is_efi(&self) -> bool {
        !matches!(self.firmware, Firmware::Direct | Firmware::UBoot)
    }

    /// Boots the case and returns the faults of its report and trace, in one line.
    #[must_use]
    pub fn wrong(&self, files: &Files<'_>) -> Option<String> {
        let wrong = self
            .run(files)
            .unwrap_or_else(|error| vec![format!("{error:#}")]);
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }

    fn run(&self, files: &Files<'_>) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().context("cannot make a folder for the trace")?;
        let trace = folder.path().join("trace");
        let mut arguments = self.arguments();
        arguments.push(format!("--trace={}", trace.display()));
        for (option, path) in [("qemu", &files.qemu), ("loader", &files.loader)] {
            arguments.extend(path.iter().map(|it| format!("--{option}={}", it.display())));
        }
        let record = boot::boot(files.image, &arguments)?;
        let mut wrong = self.mismatches(&record, files.sha256);
        wrong.extend(is_clean(&trace).err().map(|error| format!("{error:#}")));
        Ok(wrong)
    }
}

/// Checks that the trace breaks no rule, in strict mode.
fn is_clean(trace: &Path) -> Result<()> {
    let text = std::fs::read(trace).context("there is no trace")?;
    let checked =
        check::check(&text[..], &CheckOptions::STRICT, &mut |_| ()).map_err(anyhow::Error::msg)?;
    ensure!(checked.header.complete, "the trace is not complete");
    let text = checked.text();
    let first = text.lines().next().unwrap_or_default();
    ensure!(checked.is_clean(), "the trace is not clean: {first}");
    Ok(())
}

impl Expected for FirmwareBoot {
    fn arguments(&self) -> Vec<String> {
        let mut words = vec![
            format!("--firmware={}", self.firmware.word()),
            format!("--el={}", self.el),
            format!("--page-size={}", self.page_size.word()),
            format!("--smp={}", self.cpus),
            format!("--memory={}M", MEMORY >> 20),
        ];
        words.extend(self.acpi.then(|| "--acpi".to_owned()));
        words
    }

    fn values(&self) -> Vec<(String, Value)> {
        let firmware = if self.is_efi() { "efi" } else { "none" };
        let described_by = if self.acpi { "acpi" } else { "device-tree" };
        boot::owned([
            ("qemu.firmware", json!(self.firmware.word())),
            ("firmware", json!(firmware)),
            ("described_by", json!(described_by)),
            ("page_size", json!(self.page_size.bytes())),
            ("page_size_source", json!("command-line")),
            ("entry_el", json!(self.el)),
            ("run_el", json!(self.el)),
            ("cpus", json!(self.cpus)),
            ("cpus_expected", json!(self.cpus)),
            ("cpu_mismatch", json!([])),
            ("outcome", json!("ok")),
        ])
    }

    /// The map must cover all of RAM, as in a direct boot.
    fn faults(&self, record: &Value) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        let version = boot::text(record, "qemu.version")?;
        if self.qemu == Qemu::Fetched && !version.starts_with(&format!("{FETCHED}.")) {
            wrong.push(format!("qemu.version is {version}, expected {FETCHED}"));
        }
        let ram = boot::number(record, "linear_map.ram_bytes")?;
        let mapped = boot::number(record, "linear_map.mapped_bytes")?;
        // EFI firmware keeps some of RAM for its run time, in multiples of 4 KiB: up to a page of ours at each of their
        // edges is not mapped. EDK2 aligns them for every page size.
        let (least_ram, most_left) = match self.firmware {
            Firmware::Direct | Firmware::UBoot => (MEMORY, 0),
            Firmware::UBootEfi => (MEMORY - (64 << 20), 4 * self.page_size.bytes()),
            Firmware::Uefi | Firmware::Grub | Firmware::SystemdBoot => (MEMORY - (64 << 20), 0),
        };
        let is_ram = (least_ram..=MEMORY).contains(&ram);
        if !is_ram || mapped > ram || ram - mapped > most_left {
            wrong.push(format!(
                "{mapped} bytes are mapped of {ram} bytes of RAM, of {MEMORY} of the machine"
            ));
        }
        // Both ends of each run of leaves, and random addresses.
        for (key, least) in [("translations", 4096 + 2), ("patterns", 1), ("leaves", 1)] {
            let key = format!("self_check.{key}");
            let found = boot::number(record, &key)?;
            if found < least {
                wrong.push(format!("{key} is {found}, expected {least} or more"));
            }
        }
        Ok(wrong)
    }
}

impl fmt::Display for FirmwareBoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.arguments().join(" "))?;
        match self.qemu {
            Qemu::Installed => Ok(()),
            Qemu::Fetched => write!(f, " on QEMU {FETCHED}"),
        }
    }
}

#[cfg(test)]
mod tests;
