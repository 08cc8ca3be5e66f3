//! Other systems under `granule watch`: Debian's kernels on many machines, with a workload, and
//! systems other than Linux. The rules are the model's, and each accepted finding has a reason.

mod linux;
mod matrix;
mod others;
mod run;
mod workload;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use granule_cli::{Initramfs, PageSize};

use self::matrix::Machine;
use self::others::System;
use crate::emulator;
use crate::machine;
use crate::peers::Peers;

/// The versions of the plugin interface of the QEMUs.
const INTERFACES: [u64; 2] = [4, 7];
/// The place of the QEMU for systems other than Linux.
const NEWEST: usize = 1;
/// The place of the older QEMU.
const OLDER: usize = 0;

/// The first process, where a few programs are enough.
const SCRIPT: &[u8] = b"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox mount -t proc proc /proc
for i in 1 2 3 4 5 6 7 8 9 10; do /bin/busybox true; done
/bin/busybox dd if=/proc/kallsyms of=/file bs=64k count=16 2>/dev/null
/bin/busybox sha256sum /file | /bin/busybox wc -c
echo watched to the end
/bin/busybox poweroff -f
";
const LAST_LINE: &str = "watched to the end";

/// Makes the initramfs with this first process.
pub(crate) fn archive(busybox: &[u8]) -> Initramfs {
    machine::archive(busybox, "/bin", "").program("/init", SCRIPT)
}

/// The selection of machines with Debian's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machines {
    None,
    /// Every pair of kernel, CPU, number of CPUs and QEMU once.
    Sample,
    All,
}

/// A watched system.
enum WatchedSystem {
    Linux(Machine),
    Other(System),
}

/// Returns a value that several cases share, or the reason why it could not be made.
fn made<T>(all: &[Result<T>], at: usize) -> Result<&T> {
    match all.get(at) {
        Some(Ok(made)) => Ok(made),
        Some(Err(error)) => bail!("{error:#}"),
        None => bail!("there is no number {at} of {}", all.len()),
    }
}

/// Watches Debian's kernels on these machines, and other systems too. Adds a check for each.
pub(crate) fn watched(peers: &Peers<'_>, machines: Machines, with_others: bool) -> Result<()> {
    let qemus = [OLDER, NEWEST].map(|at| peers.qemu(at));
    let machines = match machines {
        Machines::None => Vec::new(),
        Machines::Sample => matrix::covering(),
        Machines::All => matrix::full(),
    };
    let mut cases: Vec<WatchedSystem> = machines.into_iter().map(WatchedSystem::Linux).collect();
    let others = with_others.then(|| others::all(peers));
    match others.unwrap_or_else(|| Ok(Vec::new())) {
        Ok(others) => cases.extend(others.into_iter().map(WatchedSystem::Other)),
        Err(error) => peers.add("watch, systems other than Linux", Err(error)),
    }
    let initrds: Vec<_> = (0..peers.linuxes.len())
        .map(|at| initrd(peers, at))
        .collect();
    // The first run with each QEMU is recorded; the recording must have the same verdict.
    let is_recorded = |machine: &Machine| {
        let linuxes = cases.iter().filter_map(|case| match case {
            WatchedSystem::Linux(other) => Some(other),
            WatchedSystem::Other(_) => None,
        });
        let mut same = linuxes.filter(|it| it.qemu == machine.qemu);
        same.next() == Some(machine)
    };
    let run = |case: &WatchedSystem, folder: &Path| match case {
        WatchedSystem::Other(system) => system.watch(made(&qemus, system.qemu())?, folder),
        WatchedSystem::Linux(machine) => {
            let kernel = peers.linux(machine.kernel)?;
            let is_6_1 = kernel.version().starts_with("6.1.");
            linux::LinuxRun {
                qemu: made(&qemus, machine.qemu)?,
                interface: INTERFACES[machine.qemu],
                image: &kernel.image,
                initrd: made(&initrds, machine.kernel)?,
                page_size: kernel.page_size,
                cpu: machine.cpu(),
                cpus: machine.cpus,
                is_recorded: is_recorded(machine),
                knows_indirection: !is_6_1,
                leaves: !(kernel.version().starts_with("6.12.")
                    && kernel.page_size == PageSize::K4
                    && machine.cpu() == "max"),
                loses: !is_6_1,
            }
            .watch(folder)
        }
    };
    let name = |case: &WatchedSystem| match case {
        WatchedSystem::Other(system) => format!("watch, {}", system.name),
        WatchedSystem::Linux(machine) => {
            let kernel = peers.linux(machine.kernel);
            let kernel = kernel.map_or("Linux".to_owned(), |it| {
                format!("{}, {}", it.name, it.size())
            });
            let version = emulator::QEMUS[machine.qemu].version;
            let (cpu, cpus) = (machine.cpu(), machine.cpus);
            format!("watch, QEMU {version}, {kernel}, {cpu}, CPUs: {cpus}")
        }
    };
    let work = |case: &WatchedSystem| {
        let began = Instant::now();
        let folder = peers.files.new_folder()?;
        // Recordings and flashes are large, and removed with their folder.
        let line = run(case, folder.path())?;
        Ok(format!("{line}, {:.0} s", began.elapsed().as_secs_f32()))
    };
    peers.each(&cases, name, work);
    Ok(())
}

/// Makes the initramfs for the kernel at this place.
fn initrd(peers: &Peers<'_>, at: usize) -> Result<PathBuf> {
    let modules = peers.modules(at, &workload::MODULES);
    let archive = workload::archive(&peers.busybox, &modules.context("the kernel's modules")?)?;
    peers
        .files
        .initramfs(&format!("watched-{at}.cpio"), archive)
}
