//! Reads the page tables of Debian's kernels from outside, and compares: the ranges of a kernel's
//! tree with QEMU's own translation, table memory with the kernel's count, a process's pages with
//! its `/proc/PID/pagemap`, and the findings of `granule lint` with the known ones, with protected
//! and unprotected kernel text. `makedumpfile` compares files of Debian's makedumpfile with the
//! original core.

mod compare;
pub(crate) mod guest;
mod known;
pub(crate) mod makedumpfile;
mod output;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use granule_inspect::lint::{self, Rule, lint};
use granule_inspect::source::Source;
use granule_inspect::tree::{Owner, Tree};
use granule_inspect::{Opened, open};
use xtask::{files, graph};

use self::compare::{Walked, pages, same, translation, walked};
use self::guest::Guest;
use crate::kexec::from_linux;
use crate::machine::Kernel;
use crate::peers::Peers;

/// The values of `rodata=`: kernel text and constants are read-only in the linear map too, which
/// takes pages (`full`, the default), only in the kernel image (`on`), or nowhere (`off`).
const RODATA: [&str; 3] = ["full", "on", "off"];

/// Reads each kernel with each value of `rodata=`, several at a time, and adds a check for each
/// subject; and but for `few`, one that left for itself.
pub(crate) fn all(peers: &Peers<'_>, few: bool) -> Result<()> {
    let archive = guest::archive(&peers.busybox);
    let initramfs = peers.files.initramfs("inspect.cpio", archive)?;
    let kernels = peers.linuxes.iter();
    let cases = kernels.flat_map(|kernel| RODATA.map(|rodata| InspectBoot { kernel, rodata }));
    let cases: Vec<_> = cases.collect();
    graph::all(
        cases.len(),
        |at| run(&cases[at], &initramfs, &["-m", guest::MEMORY]),
        |done| {
            let InspectBoot { kernel, rodata } = cases[done.job];
            for (subject, result) in done.result {
                let (name, size) = (&kernel.name, kernel.size());
                let name = format!("inspect, {name}, {size}, rodata={rodata}: {subject}");
                peers.add(name, result);
            }
        },
    );
    if few {
        return Ok(());
    }
    after_itself(peers, &initramfs)
}

/// Reads a kernel that the same one left for by `kexec`: the memory has what the first one left, at other addresses.
fn after_itself(peers: &Peers<'_>, initramfs: &Path) -> Result<()> {
    let kernel = peers.linux(1)?;
    let tools = from_linux::tools(peers)?;
    let image = files::read(&kernel.image)?;
    let archive = from_linux::archive(&peers.busybox, &tools, &image, guest::LEAVE)?
        .file("/boot/initrd", &files::read(initramfs)?);
    let initramfs = peers.files.initramfs("inspect-leave.cpio", archive)?;
    let case = InspectBoot {
        kernel,
        rodata: RODATA[0],
    };
    for (subject, result) in run(&case, &initramfs, &guest::TWICE) {
        // How much the tables grow depends on what the first kernel left.
        if subject != "table memory" {
            let name = &kernel.name;
            peers.add(format!("inspect, {name} after {name}: {subject}"), result);
        }
    }
    Ok(())
}

/// A kernel, and a value of `rodata=`.
#[derive(Clone, Copy)]
struct InspectBoot<'a> {
    kernel: &'a Kernel,
    rodata: &'a str,
}

fn run(
    case: &InspectBoot<'_>,
    initramfs: &Path,
    options: &[&str],
) -> Vec<(&'static str, Result<String>)> {
    let mut read = match Read::new(case, initramfs, options) {
        Ok(read) => read,
        Err(error) => return vec![("reading", Err(error))],
    };
    vec![
        ("sources", read.sources()),
        ("translation", read.translation()),
        ("pages of a process", read.pages()),
        ("table memory", read.tables()),
        ("lint", read.lint()),
    ]
}

/// A kernel that was read from a dump and from the live machine.
struct Read<'a> {
    case: &'a InspectBoot<'a>,
    guest: Guest,
    dump: Opened,
    /// The kernel's tree in the dump.
    kernel: Walked,
    /// The same tree, and that of the process, by the registers of the live machine.
    live: Walked,
    live_process: Walked,
}

fn tree(opened: &Opened, owner: impl Fn(&Owner) -> bool) -> Option<&Tree> {
    opened.trees.iter().find(|tree| owner(&tree.owner))
}

pub(crate) fn of_kernel(opened: &Opened) -> Result<Walked> {
    let tree = tree(opened, |owner| *owner == Owner::Kernel).context("it has no kernel's tree")?;
    walked(&*opened.memory, tree)
}

impl<'a> Read<'a> {
    fn new(case: &'a InspectBoot<'a>, initramfs: &Path, options: &[&str]) -> Result<Self> {
        let mut guest = Guest::stopped(case.kernel, case.rodata, initramfs, options)?;
        let cpu = guest.in_process().context("no CPU is in a process")?;
        let ttbr0 = guest.cpus.get(cpu).and_then(|cpu| cpu.get("ttbr0_el1"));
        let ttbr0 = ttbr0.context("QEMU does not report TTBR0")?;
        let (live, live_process) = {
            let live = open(&guest.live()?, &guest.options())?;
            // A CPU in the kernel may still have the tables of its last process, and then owns the
            // tree.
            let process = live.trees.iter().find(|tree| {
                matches!(tree.owner, Owner::User(_)) && tree.root == tree.geometry().root_in(ttbr0)
            });
            let process = process.context("the CPU in the process has no tables for it")?;
            (of_kernel(&live)?, walked(&*live.memory, process)?)
        };
        let dump = open(&Source::File(guest.dump("elf")?), &guest.options())?;
        let kernel = of_kernel(&dump)?;
        Ok(Self {
            case,
            guest,
            dump,
            kernel,
            live,
            live_process,
        })
    }

    /// Checks that the live machine and both kinds of dump have the same ranges.
    fn sources(&mut self) -> Result<String> {
        same(&self.kernel, &self.live).context("the live machine differs from the dump")?;
        let kdump = Source::File(self.guest.dump("kdump-zlib")?);
        let kdump = open(&kdump, &self.guest.options())?;
        same(&self.kernel, &of_kernel(&kdump)?)
            .context("the kdump file differs from the ELF file")?;
        let owners = |opened: &Opened| -> Vec<Owner> {
            opened.trees.iter().map(|tree| tree.owner.clone()).collect()
        };
        ensure!(
            owners(&self.dump) == owners(&kdump),
            "the trees are {:?}, and {:?} in the kdump file",
            owners(&self.dump),
            owners(&kdump)
        );
        Ok(format!(
            "an ELF file, a kdump file and the live machine have the same {} ranges and {} tables",
            self.kernel.ranges.len(),
            self.kernel.tables.values().sum::<u64>()
        ))
    }

    /// Compares each tree with the translation of a CPU that uses it.
    fn translation(&mut self) -> Result<String> {
        let mut lines = Vec::new();
        for (whose, cpu, walked) in [
            ("kernel", self.guest.in_kernel(), &self.kernel),
            ("process", self.guest.in_process(), &self.live_process),
        ] {
            let cpu = cpu.with_context(|| format!("no CPU is in a {whose}"))?;
            let agreed = translation(&walked.ranges, |address| {
                self.guest.translated(cpu, address)
            });
            lines.push(format!("{whose}: {}", agreed.context(whose)?));
        }
        Ok(lines.join("; "))
    }

    /// Reads the tree of the process in the dump; `None` if this kernel's dump has no processes.
    fn process(&self, pid: u32) -> Result<Option<Walked>> {
        if !known::has_processes(self.case.kernel.version()) {
            let mut notes = self.dump.notes.iter();
            let note = notes.find(|note| note.contains("KALLSYMS_ALL"));
            note.context("it does not report why there are no processes")?;
            return Ok(None);
        }
        let is_it = |owner: &Owner| matches!(owner, Owner::Process { pid: it, .. } if *it == pid);
        let tree = tree(&self.dump, is_it).with_context(|| {
            let notes = self.dump.notes.join("; ");
            format!("process {pid} is not in the dump: {notes}")
        })?;
        walked(&*self.dump.memory, tree).map(Some)
    }

    fn pages(&mut self) -> Result<String> {
        let output = &self.guest.output;
        let same_pages =
            |walked: &Walked| pages(walked, &output.pages, self.case.kernel.page_size.bytes());
        let found = same_pages(&self.live_process).context("by TTBR0")?;
        let by = match self.process(output.pid)? {
            Some(process) => {
                same_pages(&process).context("in the dump")?;
                "by TTBR0 and in the dump"
            }
            None => "by TTBR0 (the dump has no processes: KALLSYMS_ALL)",
        };
        Ok(format!(
            "{found} of {} in /proc/{}/pagemap, {by}",
            output.looked_up, output.pid
        ))
    }

    fn tables(&mut self) -> Result<String> {
        let (output, page) = (&self.guest.output, self.case.kernel.page_size.bytes());
        let agree = |pid: u32, walked: &Walked| {
            // All but the root.
            let found = (walked.tables.values().sum::<u64>() - 1) * page / 1024;
            let counted = output.tables.get(&pid);
            ensure!(
                counted == Some(&found),
                "process {pid} has {found} KiB of tables below its root; Linux reports {counted:?}"
            );
            Ok(())
        };
        agree(output.pid, &self.live_process)?;
        let counted = known::counted(self.case.kernel.version(), &self.live_process.tables);
        let kib = |tables: u64| i64::try_from(tables * page / 1024).unwrap_or(i64::MAX);
        ensure!(
            counted.iter().any(|&tables| kib(tables) == output.grown),
            "process {} has {:?} tables by level, of which this kernel counts {counted:?}; PageTables grew by {} KiB with it",
            output.pid,
            self.live_process.tables,
            output.grown,
        );
        let mut processes = 1;
        if known::has_processes(self.case.kernel.version()) {
            for &pid in output.tables.keys() {
                let process = self.process(pid)?.context("it has no processes")?;
                agree(pid, &process)?;
            }
            processes = output.tables.len();
        }
        Ok(format!(
            "as VmPTE of {processes} processes; PageTables grew by {} KiB with process {}, as its tables",
            output.grown, output.pid
        ))
    }

    fn lint(&mut self) -> Result<String> {
        let (dump, options) = (&self.dump, lint::LintOptions::default());
        let found = lint(&*dump.memory, &dump.trees, &options, &mut |_| {});
        let mut counts: BTreeMap<Rule, u64> = BTreeMap::new();
        for finding in &found.findings.list {
            *counts.entry(finding.rule).or_default() += 1;
        }
        for ((rule, _), more) in &found.findings.more {
            *counts.entry(*rule).or_default() += more;
        }
        known::judge(&counts, self.case.kernel.version(), self.case.rodata)
    }
}
