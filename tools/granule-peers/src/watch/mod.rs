//! Other systems under `granule watch`: Debian's kernels on many machines, with a workload, and
//! systems other than Linux. The rules are the model's, and each accepted finding has a reason.

mod linux;
mod matrix;
mod others;
mod run;
pub(crate) mod workload;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use granule_cli::{Initramfs, PageSize};

use crate::peers::Peers;
use crate::{emulator, machine};

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

/// Returns a value that several cases share, or the reason why it could not be made.
fn made<T>(all: &[Result<T>], at: usize) -> Result<&T> {
    match all.get(at) {
        Some(Ok(made)) => Ok(made),
        Some(Err(error)) => bail!("{error:#}"),
        None => bail!("there is no number {at} of {}", all.len()),
    }
}

/// A check's name, and its work with files in a folder.
type Case<'a> = (String, Box<dyn Fn(&Path) -> Result<String> + Sync + 'a>);

/// Watches Debian's kernels on these machines, and other systems too. Adds a check for each.
pub(crate) fn watched(peers: &Peers<'_>, machines: Machines, with_others: bool) -> Result<()> {
    let qemus = &[OLDER, NEWEST].map(|at| peers.qemu(at));
    let machines = match machines {
        Machines::None => Vec::new(),
        Machines::Sample => matrix::covering(),
        Machines::All => matrix::full(),
    };
    let initrds = (0..peers.linuxes.len()).map(|at| initrd(peers, at));
    let initrds = &initrds.collect::<Vec<_>>();
    let mut cases: Vec<Case<'_>> = Vec::new();
    // The first run with each QEMU is recorded; the recording must have the same verdict.
    let mut has_recording = [false; 2];
    for machine in machines {
        let is_recorded = !std::mem::replace(&mut has_recording[machine.qemu], true);
        let work = move |folder: &Path| {
            let kernel = peers.linux(machine.kernel)?;
            let is_6_1 = kernel.version().starts_with("6.1.");
            let is_6_12 = kernel.version().starts_with("6.12.");
            let run = linux::LinuxRun {
                qemu: made(qemus, machine.qemu)?,
                interface: INTERFACES[machine.qemu],
                image: &kernel.image,
                initrd: made(initrds, machine.kernel)?,
                page_size: kernel.page_size,
                cpu: machine.cpu(),
                cpus: machine.cpus,
                is_recorded,
                knows_indirection: !is_6_1,
                leaves: !(is_6_12 && kernel.page_size == PageSize::K4 && machine.cpu() == "max"),
                loses: !is_6_1,
            };
            run.watch(folder)
        };
        let kernel = peers.linux(machine.kernel).map(|it| (&*it.name, it.size()));
        let (kernel, size) = kernel.unwrap_or(("Linux", String::new()));
        let version = emulator::QEMUS[machine.qemu].version;
        let (cpu, cpus) = (machine.cpu(), machine.cpus);
        let name = format!("watch, QEMU {version}, {kernel}, {size}, {cpu}, CPUs: {cpus}");
        cases.push((name, Box::new(work)));
    }
    let others = if with_others {
        others::all(peers)
    } else {
        Ok(Vec::new())
    };
    for system in others.unwrap_or_else(|error| {
        peers.add("watch, systems other than Linux", Err(error));
        Vec::new()
    }) {
        let name = format!("watch, {}", system.name);
        let work = move |folder: &Path| system.watch(made(qemus, system.qemu())?, folder);
        cases.push((name, Box::new(work)));
    }
    let work = |(_, work): &Case<'_>| {
        let began = Instant::now();
        let folder = peers.files.new_folder()?;
        // Recordings and flashes are large, and removed with their folder.
        let line = work(folder.path())?;
        Ok(format!("{line}, {:.0} s", began.elapsed().as_secs_f32()))
    };
    peers.each(&cases, |(name, _)| name.clone(), work);
    Ok(())
}

fn initrd(peers: &Peers<'_>, at: usize) -> Result<PathBuf> {
    let modules = peers.modules(at, &workload::MODULES);
    let archive = workload::archive(&peers.busybox, &modules.context("the kernel's modules")?)?;
    peers
        .files
        .initramfs(&format!("watched-{at}.cpio"), archive)
}
