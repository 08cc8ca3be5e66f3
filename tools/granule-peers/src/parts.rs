//! The parts of `make test-peers` and their order. The work of each part is in its own file.

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Result;
use xtask::boot::build_cli;
use xtask::workspace::{cargo, is_built, run as run_command, target_dir};

use self::Part::*;
use crate::inspect::{self, makedumpfile};
use crate::peers::{self, Peers};
use crate::store::Store;
use crate::summary::Summary;
use crate::{bench, boards, disk, faults, firmware, kexec, loaders, report, sensitivity, shell};
use crate::{tlb, together, trees, watch};

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Fetch packages only
    Packages,
    /// The benchmark of user memory
    Bench,
    /// Debian's shell
    Shell,
    /// Kexec from our kernel to Debian's kernels
    Kexec,
    /// Crashes of our kernel into Debian's kernels, which save its memory
    Crash,
    /// Kexec from our kernel to Debian's kernels, on machines that EFI firmware started
    KexecEfi,
    /// Kexec from Debian's kernel to ours, by Debian's program
    FromLinux,
    /// The device trees of Debian's kernel packages, by our readers and by dtoolkit
    Trees,
    /// A sample of the boots on QEMU's boards
    Boards,
    /// All boots on QEMU's boards; only by name
    BoardsAll,
    /// A sample of our kernel's boots through firmware and boot loaders, on two QEMUs
    Firmware,
    /// All boots through firmware and boot loaders; only by name
    FirmwareAll,
    /// Debian's Linux by each boot loader, from our boot disk
    Disk,
    /// Fetch the boot loaders only; only by name
    Loaders,
    /// The page tables of Debian's kernels, read from outside
    Inspect,
    /// Files of Debian's makedumpfile; a part of inspect
    Makedumpfile,
    /// The page of `granule report` with Debian's kernels beside ours; only by name
    Report,
    /// A sample of Debian's kernels, watched
    Watch,
    /// Systems other than Linux, watched
    WatchOthers,
    /// All of Debian's kernels on all machines, watched; only by name
    WatchAll,
    /// Faults planted in a Debian kernel, watched; only by name
    FaultsAll,
    /// Recordings of Debian's kernels with events removed, which `granule check` must notice
    Sensitivity,
    /// Modelled TLB misses of our program and of Debian's shell
    Tlb,
}

impl Part {
    /// Returns whether it runs only if `--only` names it.
    fn is_by_name_only(self) -> bool {
        let only = [BoardsAll, FirmwareAll, Loaders, Report, WatchAll, FaultsAll];
        only.contains(&self)
    }
}

/// Prepares `cargo xtask`, with its output to standard error, because ours may be JSON.
pub(crate) fn chore(words: &[&str]) -> Command {
    let mut command = cargo(&[&["xtask"], words].concat());
    command.stdout(std::io::stderr());
    command
}

/// Builds the programs for the boots: the image, the user programs, and `granule` with its plugin.
fn build() -> Result<()> {
    if is_built() {
        return Ok(());
    }
    run_command(chore(&["image"]))?;
    run_command(chore(&["user"]))?;
    build_cli().map(drop)
}

/// Runs the parts that `only` names, or by default all except those that run only by name.
pub(crate) fn run(only: &[Part], few: bool, fresh: bool, summary: &Summary) -> Result<ExitCode> {
    let began = Instant::now();
    let folder = target_dir().join("peers");
    if only == [Part::Loaders] {
        loaders::fetch(&folder, fresh)?;
        return Ok(ExitCode::SUCCESS);
    }
    let store = Store::new(folder);
    let packages = match store.packages(&peers::all(), fresh) {
        Ok(packages) => packages,
        Err(why) => {
            summary.print_line(&format!("{why:#}"));
            if only == [Part::Report] {
                summary.print_line("without Debian's kernels");
                run_command(chore(&["report"]))?;
                return Ok(ExitCode::SUCCESS);
            }
            return summary.not_run(&why);
        }
    };
    summary.keep("packages", &packages)?;
    let peers = &Peers::unpack(&store, &packages, (few, fresh), summary)?;
    let ended = |name: &str, began: Instant| {
        // A run of all parts has a limit.
        let seconds = began.elapsed().as_secs_f32();
        summary.print_line(&format!("--- {name} ({seconds:.1} s)"));
    };
    ended("packages", began);
    let is_named = |part| only.contains(&part);
    let is_included = |part: Part| is_named(part) || only.is_empty() && !part.is_by_name_only();
    let machines = match (is_named(Part::WatchAll), is_included(Part::Watch)) {
        (true, _) => watch::Machines::All,
        (false, true) => watch::Machines::Sample,
        (false, false) => watch::Machines::None,
    };
    let with_others = is_named(Part::WatchAll) || is_included(Part::WatchOthers);
    let makedumpfile: &[Part] = if few {
        &[Makedumpfile]
    } else {
        &[Inspect, Makedumpfile]
    };
    // The values of `--only` that include a row, its name, whether it needs `build`, and its work.
    type Row<'a> = (&'a [Part], &'a str, bool, &'a dyn Fn() -> Result<()>);
    #[rustfmt::skip]
    let rows: [Row<'_>; 17] = [
        (&[Report], "report", false, &|| report::make(peers)),
        (&[Trees], "trees", false, &|| trees::all(peers)),
        (&[Boards, BoardsAll], "boards", true, &|| boards::all(peers, is_named(BoardsAll))),
        (&[Firmware, FirmwareAll], "firmware", true, &|| firmware::booted(peers, is_named(FirmwareAll))),
        (&[Inspect], "inspect", false, &|| inspect::all(peers, few)),
        (makedumpfile, "makedumpfile", false, &|| makedumpfile::all(peers)),
        (&[Disk], "disk", false, &|| disk::booted(peers)),
        (&[Watch, WatchOthers, WatchAll], "watch", true, &|| watch::watched(peers, machines, with_others)),
        (&[FaultsAll], "faults", true, &|| faults::run(peers)),
        (&[Sensitivity], "sensitivity", true, &|| sensitivity::run(peers)),
        (&[Tlb], "tlb", true, &|| tlb::replays(peers)),
        (&[Shell], "shell", true, &|| together::all(peers, &shell::shells(peers)?)),
        (&[Kexec], "kexec", true, &|| kexec::left_for(peers)),
        (&[Crash], "crash", true, &|| kexec::crash::entered(peers)),
        (&[KexecEfi], "kexec-efi", true, &|| kexec::efi::left_for(peers)),
        (&[FromLinux], "from-linux", true, &|| kexec::from_linux::left(peers)),
        (&[Bench], "bench", true, &|| bench::bench(peers)),
    ];
    let mut is_ready = false;
    for (parts, name, needs_build, work) in rows {
        if !parts.iter().any(|&part| is_included(part)) {
            continue;
        }
        let began = Instant::now();
        if needs_build && !is_ready {
            build()?;
            is_ready = true;
        }
        work()?;
        ended(name, began);
    }
    summary.end()
}
