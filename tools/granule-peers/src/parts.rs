//! The parts of `make test-peers` and their order. What a part does is in its own file.

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Result;
use xtask::boot::build_cli;
use xtask::workspace::{cargo, is_built, run as run_command, target_dir};

use crate::inspect::{self, makedumpfile};
use crate::peers::{self, Peers};
use crate::store::Store;
use crate::summary::Summary;
use crate::{
    apt, bench, boards, disk, faults, firmware, kexec, loaders, report, sensitivity, shell,
};
use crate::{tlb, together, trees, watch};

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
    /// The device trees of Debian's kernel packages, as our readers and as dtoolkit read them
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

impl Part {
    /// Whether it runs only if it is asked for.
    fn must_be_asked_for(self) -> bool {
        use Part::{BoardsAll, FaultsAll, FirmwareAll, Loaders, Report, WatchAll};
        matches!(
            self,
            BoardsAll | FirmwareAll | Loaders | Report | WatchAll | FaultsAll
        )
    }
}

/// Prepares `cargo xtask`. What it prints goes to standard error, because ours may be JSON.
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

/// Runs the parts that `only` names, or all but those that must be asked for.
pub(crate) fn run(only: &[Part], few: bool, fresh: bool, summary: &Summary) -> Result<ExitCode> {
    let began = Instant::now();
    let folder = target_dir().join("peers");
    if only == [Part::Loaders] {
        loaders::fetch(&folder, fresh)?;
        return Ok(ExitCode::SUCCESS);
    }
    let store = Store::new(folder, apt::ARM64);
    let packages = match store.packages(&peers::all(), fresh) {
        Ok(packages) => packages,
        Err(why) => {
            summary.say(&format!("{why:#}"));
            if only == [Part::Report] {
                summary.say("without Debian's kernels");
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
        summary.say(&format!("--- {name} ({seconds:.1} s)"));
    };
    ended("packages", began);
    let asked = |part| only.contains(&part);
    let wants = |part: Part| asked(part) || only.is_empty() && !part.must_be_asked_for();
    // The values of `--only` that include a row, its name, whether it needs what `build` builds, and its work.
    type Row<'a> = (&'a [Part], &'a str, bool, &'a dyn Fn() -> Result<()>);
    let rows: [Row<'_>; 16] = [
        (&[Part::Report], "report", false, &|| report::make(peers)),
        (&[Part::Trees], "trees", false, &|| trees::all(peers)),
        (&[Part::Boards, Part::BoardsAll], "boards", true, &|| {
            boards::all(peers, asked(Part::BoardsAll))
        }),
        (
            &[Part::Firmware, Part::FirmwareAll],
            "firmware",
            true,
            &|| firmware::booted(peers, asked(Part::FirmwareAll)),
        ),
        (&[Part::Inspect], "inspect", false, &|| inspect::all(peers)),
        (
            if few {
                &[Part::Makedumpfile]
            } else {
                &[Part::Inspect, Part::Makedumpfile]
            },
            "makedumpfile",
            false,
            &|| makedumpfile::all(peers),
        ),
        (&[Part::Disk], "disk", false, &|| disk::booted(peers)),
        (
            &[Part::Watch, Part::WatchOthers, Part::WatchAll],
            "watch",
            true,
            &|| {
                let all = asked(Part::WatchAll);
                let machines = match (all, wants(Part::Watch)) {
                    (true, _) => watch::Machines::All,
                    (false, true) => watch::Machines::Sample,
                    (false, false) => watch::Machines::None,
                };
                watch::watched(peers, machines, all || wants(Part::WatchOthers))
            },
        ),
        (&[Part::FaultsAll], "faults", true, &|| faults::run(peers)),
        (&[Part::Sensitivity], "sensitivity", true, &|| {
            sensitivity::run(peers)
        }),
        (&[Part::Tlb], "tlb", true, &|| tlb::replays(peers)),
        (&[Part::Shell], "shell", true, &|| {
            together::all(peers, &shell::shells(peers)?)
        }),
        (&[Part::Kexec], "kexec", true, &|| kexec::left_for(peers)),
        (&[Part::KexecEfi], "kexec-efi", true, &|| {
            kexec::efi::left_for(peers)
        }),
        (&[Part::FromLinux], "from-linux", true, &|| {
            kexec::from_linux::left(peers)
        }),
        (&[Part::Bench], "bench", true, &|| bench::bench(peers)),
    ];
    let mut is_ready = false;
    for (parts, name, needs_build, work) in rows {
        if !parts.iter().any(|&part| wants(part)) {
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
