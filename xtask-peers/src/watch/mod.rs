//! Systems of others under `granule watch`: Debian's kernels on many machines, with a workload, and systems that are no
//! Linux. Which findings a system deserves is not decided here: the rules are the model's, and what is accepted has a
//! reason.

mod linux;
mod matrix;
mod others;
mod run;
mod workload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use granule_cli::Initramfs;
use granule_cli::sizes::show_size as size;
use xtask::graph;
use xtask::workspace::target_dir;

use self::matrix::Machine;
use self::others::System;
use crate::check::Check;
use crate::emulator;
use crate::machine::{Files, Kernel};
use crate::peers::Peers;

/// The versions of the plugin interface that the QEMUs have.
const INTERFACES: [u64; 2] = [4, 7];
/// The place of the QEMU that systems other than Linux run on.
const NEWEST: usize = 1;
/// The place of the one before.
const OLDER: usize = 0;

/// The first process where a few programs are enough.
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

/// The initramfs with it.
pub(crate) fn archive(busybox: &[u8]) -> Initramfs {
    Initramfs::new()
        .directory("/bin")
        .program("/bin/busybox", busybox)
        .program("/init", SCRIPT)
}

/// The machines with Debian's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machines {
    None,
    /// Every pair of kernel, CPU, number of CPUs and QEMU once.
    Sample,
    All,
}

/// How much is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) machines: Machines,
    /// Systems that are no Linux too.
    pub(crate) others: bool,
}

/// What is watched.
enum Case {
    Linux(Machine),
    Other(System),
}

/// Watches Debian's kernels on machines to this extent, and the other systems: a check for each.
pub(crate) fn watched(
    peers: &Peers<'_>,
    files: &Files,
    extent: Extent,
    fresh: bool,
    add: &mut impl FnMut(Check),
) -> Result<()> {
    let folder = target_dir().join("peers");
    let qemus = emulator::QEMUS
        .each_ref()
        .map(|wanted| emulator::qemu(wanted, &folder, fresh));
    let machines = match extent.machines {
        Machines::None => Vec::new(),
        Machines::Sample => matrix::covering(),
        Machines::All => matrix::full(),
    };
    let mut cases: Vec<Case> = machines.into_iter().map(Case::Linux).collect();
    let others = extent.others.then(|| others::all(peers, files));
    match others.unwrap_or_else(|| Ok(Vec::new())) {
        Ok(others) => cases.extend(others.into_iter().map(Case::Other)),
        Err(error) => add(Check::new(
            "watch, systems that are no Linux".into(),
            Err(error),
        )),
    }
    let initrds: BTreeMap<usize, Result<PathBuf>> = (0..peers.linuxes.len())
        .map(|at| (at, initrd(peers, files, at)))
        .collect();
    let qemu = |at: usize| -> Result<&Path> {
        match qemus.get(at) {
            Some(Ok(qemu)) => Ok(qemu),
            Some(Err(error)) => bail!("{error:#}"),
            None => bail!("there is no such QEMU"),
        }
    };
    // A recording has the same verdict: of the first run with each QEMU.
    let is_recorded = |at: usize| {
        let qemu_of = |case: &Case| match case {
            Case::Linux(machine) => Some(machine.qemu),
            Case::Other(_) => None,
        };
        let first = cases
            .iter()
            .position(|it| qemu_of(it) == qemu_of(&cases[at]));
        first == Some(at)
    };
    let run = |at: usize| -> Result<String> {
        let folder = files.folder(&format!("watch-{at}"))?;
        let done = match &cases[at] {
            Case::Other(system) => system.watch(qemu(system.qemu())?, &folder),
            Case::Linux(machine) => {
                let Some((kernel @ Kernel::Linux { image, .. }, page_size)) =
                    peers.linuxes.get(machine.kernel)
                else {
                    bail!("the kernel's package was not unpacked");
                };
                let initrd = match initrds.get(&machine.kernel) {
                    Some(Ok(path)) => path,
                    Some(Err(error)) => bail!("{error:#}"),
                    None => bail!("it has no initramfs"),
                };
                let is_6_1 = kernel.name().starts_with("Linux 6.1.");
                linux::Case {
                    qemu: qemu(machine.qemu)?,
                    interface: INTERFACES.get(machine.qemu).copied().unwrap_or_default(),
                    image,
                    initrd,
                    page_size: *page_size,
                    cpu: machine.cpu(),
                    cpus: machine.cpus,
                    is_recorded: is_recorded(at),
                    knows_indirection: !is_6_1,
                    leaves: !(kernel.name().starts_with("Linux 6.12.")
                        && page_size.bytes() == 4096
                        && machine.cpu() == "max"),
                    loses: !is_6_1,
                }
                .watch(&folder)
            }
        };
        // Recordings and flashes are large.
        std::fs::remove_dir_all(&folder).context("cannot remove the files of a run")?;
        done
    };
    let name = |case: &Case| match case {
        Case::Other(system) => format!("watch, {}", system.name),
        Case::Linux(machine) => {
            let kernel = peers.linuxes.get(machine.kernel);
            let (kernel, pages) = kernel.map_or(("Linux".into(), 0), |(kernel, page_size)| {
                (kernel.name(), page_size.bytes())
            });
            let version = emulator::QEMUS
                .get(machine.qemu)
                .map_or("?", |it| it.version);
            format!(
                "watch, QEMU {version}, {kernel}, {}, {}, CPUs: {}",
                size(pages),
                machine.cpu(),
                machine.cpus
            )
        }
    };
    graph::all(cases.len(), run, |done| {
        let told = done
            .result
            .map(|told| format!("{told}, {:.0} s", done.time.as_secs_f32()));
        add(Check::new(name(&cases[done.job]), told));
    });
    Ok(())
}

/// The initramfs for the kernel at this place.
fn initrd(peers: &Peers<'_>, files: &Files, at: usize) -> Result<PathBuf> {
    let modules = peers
        .modules(at, &workload::MODULES)
        .context("the kernel's modules")?;
    files.initramfs(
        &format!("watched-{at}.cpio"),
        workload::archive(&peers.busybox, &modules)?,
    )
}
