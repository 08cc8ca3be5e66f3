//! The parts of `make test-peers` and their order. What a part does is in its own file.

use std::process::ExitCode;

use anyhow::Result;
use granule_cli::PageSize;
use xtask::boot::build_cli;
use xtask::workspace::{cargo, image_path, is_built, run as run_command, target_dir};

use crate::bench::bench;
use crate::check::Check;
use crate::inspect::{self, makedumpfile};
use crate::kexec;
use crate::machine::{Files, Kernel};
use crate::peers::{self, Peers};
use crate::shell::shells;
use crate::store::Store;
use crate::summary::Summary;
use crate::tlb::replays;
use crate::watch;
use crate::{apt, boards, disk, faults, firmware, loaders, report, sensitivity, together, trees};

/// A part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Fetch packages only
    Packages,
    /// The benchmark of user memory
    Bench,
    /// Debian's shell
    Shell,
    /// Debian's kernels, left for
    Kexec,
    /// Those and ours, left for on machines that EFI firmware started
    KexecEfi,
    /// Ours, left for by Debian's kernel and Debian's program
    FromLinux,
    /// The device trees of Debian's kernel packages, as our readers and as dtc read them
    Trees,
    /// A sample of the boots on QEMU's boards
    Boards,
    /// All of them; only if it is asked for
    BoardsAll,
    /// A sample of our kernel's boots through firmware and boot loaders, on two QEMUs
    Firmware,
    /// All of them; only if it is asked for
    FirmwareAll,
    /// Debian's Linux by each boot loader, from our boot disk
    Disk,
    /// Fetch the boot loaders only; only if it is asked for
    Loaders,
    /// The page tables of Debian's kernels, read from outside
    Inspect,
    /// Files of Debian's makedumpfile; a part of inspect
    Makedumpfile,
    /// The page of `granule report` with Debian's kernels beside ours; only if it is asked for
    Report,
    /// A sample of Debian's kernels, watched
    Watch,
    /// Systems that are no Linux, watched
    WatchOthers,
    /// All of Debian's kernels on all machines, watched; only if it is asked for
    WatchAll,
    /// Faults planted in a Debian kernel, watched; only if it is asked for
    FaultsAll,
    /// What `granule check` notices in recordings of Debian's kernels, with events taken out
    Sensitivity,
    /// TLB misses, modelled: our program, and Debian's shell
    Tlb,
}

const PAGE_SIZES: [PageSize; 3] = [PageSize::K4, PageSize::K16, PageSize::K64];

/// Builds the programs for the boots: the image, the user programs, and `granule` with its plugin.
fn build() -> Result<()> {
    if is_built() {
        return Ok(());
    }
    run_command(cargo(&["xtask", "image"]))?;
    run_command(cargo(&["xtask", "user"]))?;
    build_cli().map(drop)
}

/// Runs the parts that `only` names, or all but those that must be asked for.
pub(crate) fn run(only: &[Part], few: bool, fresh: bool, mut summary: Summary) -> Result<ExitCode> {
    let asked = |part| only.contains(&part);
    let wants = |part| only.is_empty() || asked(part);
    let files = Files::new()?;
    let folder = target_dir().join("peers");
    if only == [Part::Loaders] {
        loaders::fetch(&folder, fresh)?;
        return Ok(ExitCode::SUCCESS);
    }
    let store = Store::new(folder.clone(), apt::ARM64);
    let packages = match store.packages(&peers::all(), fresh) {
        Ok(packages) => packages,
        Err(why) => {
            summary.say(&format!("{why:#}"));
            if only == [Part::Report] {
                summary.say("without Debian's kernels");
                run_command(cargo(&["xtask", "report"]))?;
                return Ok(ExitCode::SUCCESS);
            }
            return summary.not_run(&why);
        }
    };
    summary.packages.clone_from(&packages);
    let peers = Peers::unpack(&store, &packages, few, &files, &mut |check| {
        summary.add(check)
    });
    summary.part("packages");
    if asked(Part::Report) {
        let made = report::make(&peers.linuxes, &peers.busybox, &files);
        summary.add(Check::new("report".to_owned(), made));
    }
    if wants(Part::Trees) {
        trees::all(&peers, &files, &folder, fresh, &mut |it| summary.add(it))?;
        summary.part("trees");
    }
    if wants(Part::Boards) || asked(Part::BoardsAll) {
        build()?;
        let extent = if asked(Part::BoardsAll) {
            boards::Extent::All
        } else {
            boards::Extent::Sample
        };
        boards::all(&peers, &files, &folder, extent, fresh, &mut |it| {
            summary.add(it)
        })?;
        summary.part("boards");
    }
    if wants(Part::Firmware) || asked(Part::FirmwareAll) {
        build()?;
        let extent = if asked(Part::FirmwareAll) {
            firmware::Extent::All
        } else {
            firmware::Extent::Sample
        };
        firmware::booted(&folder, extent, fresh, &mut |it| summary.add(it))?;
        summary.part("firmware");
    }
    if wants(Part::Inspect) {
        inspect::all(&peers.linuxes, &peers.busybox, &files, &mut |it| {
            summary.add(it)
        })?;
        summary.part("inspect");
    }
    if (wants(Part::Inspect) || wants(Part::Makedumpfile))
        && let Some((Kernel::Linux { image, .. }, _)) = peers.linuxes.first()
    {
        let subject = makedumpfile::Subject {
            image,
            package: &peers.first()?,
            busybox: &peers.busybox,
            packages: &folder,
            fresh,
        };
        let checks = makedumpfile::all(&subject);
        checks.into_iter().for_each(|it| summary.add(it));
        summary.part("makedumpfile");
    }
    if wants(Part::Disk) {
        disk::booted(&peers, &files, &folder, fresh, &mut |it| summary.add(it))?;
        summary.part("disk");
    }
    if wants(Part::Watch) || wants(Part::WatchOthers) || asked(Part::WatchAll) {
        build()?;
        let all = asked(Part::WatchAll);
        let extent = watch::Extent {
            machines: match (all, wants(Part::Watch)) {
                (true, _) => watch::Machines::All,
                (false, true) => watch::Machines::Sample,
                (false, false) => watch::Machines::None,
            },
            others: all || wants(Part::WatchOthers),
        };
        watch::watched(&peers, &files, extent, fresh, &mut |it| summary.add(it))?;
        summary.part("watch");
    }
    if asked(Part::FaultsAll) {
        build()?;
        summary.faults = faults::run(&peers, &files, fresh, &mut |it| summary.add(it))?;
        summary.part("faults");
    }
    if wants(Part::Sensitivity) {
        build()?;
        summary.sensitivity = sensitivity::run(&peers, &files, fresh, &mut |it| summary.add(it))?;
        summary.part("sensitivity");
    }
    if wants(Part::Tlb) {
        build()?;
        summary.tlb = replays(&peers, &files, fresh, &mut |check| summary.add(check))?;
        summary.part("tlb");
    }
    let ours = [
        Part::Bench,
        Part::Shell,
        Part::Kexec,
        Part::KexecEfi,
        Part::FromLinux,
    ];
    if ours.into_iter().any(wants) {
        build()?;
        let image = image_path();
        let granules = PAGE_SIZES.map(|page_size| {
            let image = image.clone();
            (Kernel::Granule { image, page_size }, page_size)
        });
        if wants(Part::Shell) {
            let there = shells(&peers, &granules, &files, &mut |it| summary.add(it))?;
            let there: Vec<&str> = there.iter().flatten().map(String::as_str).collect();
            together::all(&peers.busybox, &files, &there, &mut |it| summary.add(it));
            summary.part("shell");
        }
        if wants(Part::Kexec) {
            kexec::left_for(&peers, &image, &files, &mut |it| summary.add(it))?;
            summary.part("kexec");
        }
        if wants(Part::KexecEfi) {
            kexec::efi::left_for(&peers, &image, &files, &mut |it| summary.add(it))?;
            summary.part("kexec-efi");
        }
        if wants(Part::FromLinux) {
            kexec::from_linux::left(&peers, &image, &files, &folder, fresh, &mut |it| {
                summary.add(it)
            })?;
            summary.part("from-linux");
        }
        if wants(Part::Bench) {
            let (rows, table) = bench(&peers, &granules, &files, &mut |it| summary.add(it))?;
            summary.rows = rows;
            summary.say(&table);
            summary.part("bench");
        }
    }
    summary.end()
}
