//! This kernel leaves for Debian's kernels: for each of them from each page size, with one CPU and
//! four, entered at EL1, at EL2, and at EL2 on a CPU on which this kernel itself runs at EL1; with
//! everything in place, and copied with the MMU on and off. The next kernel must reach its first
//! process, a script in Debian's shell, which reports its findings. Machines that firmware started
//! are in [`efi`], crashes in [`crash`], and the other direction is in [`from_linux`].

pub(crate) mod crash;
pub(crate) mod efi;
pub(crate) mod from_linux;

use anyhow::{Context, Result, ensure};
use granule_cli::sizes::show_size as size;
use granule_cli::{Boot, Initramfs, Kexec, PageSize, Request, boot};
use serde_json::Value;
use xtask::workspace::image_path;

use crate::machine::{self, Kernel, ending, marked, request};
use crate::peers::Peers;
use crate::store::hash;

/// The beginning of the script's one line.
const MARK: &str = "next kernel:";

/// The first process: reports its machine and powers off. The page size is the kernel's value in
/// the auxiliary vector (6, AT_PAGESZ). `stty` waits until the terminal's output is written;
/// otherwise the output would be lost, because `poweroff` does not wait.
pub(crate) const SCRIPT: &str = "#!/bin/busybox sh
mount -t proc proc /proc
page=$(od -A n -v -t u8 -w16 /proc/self/auxv | awk '$1 == 6 { print $2 }')
el=$(dmesg | sed -n 's/.*CPU.*started at EL\\([12]\\).*/\\1/p' | head -n 1)
echo \"next kernel: page=$page cpus=$(grep -c ^processor /proc/cpuinfo) el=$el \\
linux=$(uname -v | sed 's/.*Debian \\([^-]*\\).*/\\1/') sha256=$(sha256sum < /payload) cmdline=$(cat /proc/cmdline)\"
stty opost && poweroff -f
";

pub(crate) const APPLETS: &str =
    "sh uname awk cat dmesg echo grep head mount od poweroff sed sha256sum stty";

/// The size of a file in the initramfs, whose hash the script reports: larger than every page size.
const PAYLOAD: usize = 1 << 20;

/// Only emergency messages, and no waiting for entropy or devices.
const WORDS: &str = "console=ttyAMA0 loglevel=1 panic=-1";

const MEMORY: u64 = 1 << 30;

/// The way in which the next kernel's bytes get to their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// Loaded in place.
    InPlace,
    /// All copied.
    Copied,
    /// All copied, with MMU and caches off.
    Uncached,
}

const WAYS: [Way; 3] = [Way::InPlace, Way::Copied, Way::Uncached];

impl Way {
    const fn word(self) -> &'static str {
        match self {
            Self::InPlace => "in place",
            Self::Copied => "copied",
            Self::Uncached => "copied, MMU off",
        }
    }

    /// Checks that the report of the leaving kernel agrees with this way.
    fn judge(self, booted: &Boot) -> Result<()> {
        let figures = booted.kexec.as_ref().context("it did not leave")?;
        let total = figures.bytes_total.filter(|total| *total > 0);
        let total = total.context("it did not report the loaded bytes")?;
        let copied = figures.bytes_copied;
        let right = match self {
            Self::InPlace => copied == Some(0),
            // Whole pages are copied, so it may be a little more.
            Self::Copied | Self::Uncached => copied >= Some(total),
        };
        ensure!(right, "of {total} bytes it copied {copied:?}");
        let left = booted.boots.first().context("it has no record")?;
        let uncached = left.get("kexec.leaving.uncached").and_then(Value::as_bool);
        ensure!(
            uncached == Some(self == Self::Uncached),
            "kexec.leaving.uncached is {uncached:?}"
        );
        Ok(())
    }
}

/// The settings of a boot, beside image and initramfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handover {
    /// The next kernel's index.
    kernel: usize,
    /// The page size of this kernel.
    from: PageSize,
    cpus: u32,
    /// The entry level of this kernel, which the next one must have too.
    el: u8,
    cpu: &'static str,
    way: Way,
}

/// Two CPUs with every page size. The second has no VHE: entered at EL2, this kernel runs at EL1,
/// and returns to EL2 by the vectors that it left there.
const CPUS: [&str; 2] = ["neoverse-n1", "cortex-a35"];

/// Numbers of CPUs, level, CPU: each occurs once with each page size.
const MACHINES: [(u32, u8, &str); 6] = [
    (1, 1, CPUS[0]),
    (4, 2, CPUS[0]),
    (4, 2, CPUS[1]),
    (4, 1, CPUS[0]),
    (1, 2, CPUS[0]),
    (1, 2, CPUS[1]),
];

/// Lists every page size with every machine, every kernel and every way, and every machine with
/// every way, in as few boots as possible.
fn cases(kernels: usize) -> Vec<Handover> {
    let mut cases = Vec::new();
    if kernels == 0 {
        return cases;
    }
    for (place, from) in PageSize::ALL.into_iter().enumerate() {
        for index in 0..kernels.max(MACHINES.len()) {
            let (cpus, el, cpu) = MACHINES[index % MACHINES.len()];
            cases.push(Handover {
                // Another machine for each page size.
                kernel: (index + 2 * place) % kernels,
                from,
                cpus,
                el,
                cpu,
                // Another way for each page size, too.
                way: WAYS[(index + place) % WAYS.len()],
            });
        }
    }
    cases
}

/// Leaves our kernel for each of Debian's, and adds a check for each case.
pub(crate) fn left_for(peers: &Peers<'_>) -> Result<()> {
    let archive = archive(&peers.busybox);
    let initrd = peers.files.initramfs("next.cpio", archive)?;
    peers.each(
        &cases(peers.linuxes.len()),
        |case| {
            let next = &peers.linuxes[case.kernel];
            format!(
                "kexec from {} to {}, {}, CPUs: {}, EL{}, {}, {}",
                size(case.from.bytes()),
                next.name,
                next.size(),
                case.cpus,
                case.el,
                case.cpu,
                case.way.word()
            )
        },
        |case| {
            let next = &peers.linuxes[case.kernel];
            let booted = boot::run(&Request {
                image: Some(image_path()),
                page_size: Some(case.from),
                el: case.el,
                cpu: case.cpu.to_owned(),
                kexec: Some(Kexec {
                    image: Some(next.image.clone()),
                    initrd: Some(initrd.clone()),
                    append: Some(words(case)),
                    copy: case.way != Way::InPlace,
                    uncached: case.way == Way::Uncached,
                    ..Kexec::default()
                }),
                ..request(MEMORY, case.cpus)
            });
            // The machine was powered off without any failure before.
            ensure!(booted.is_ok(), "{}", ending(&booted));
            case.way.judge(&booted)?;
            line(&booted.console_text(), case, next).with_context(|| ending(&booted))
        },
    );
    Ok(())
}

fn archive(busybox: &[u8]) -> Initramfs {
    machine::archive(busybox, "/proc /bin", APPLETS)
        .file("/payload", &payload())
        .program("/init", SCRIPT.as_bytes())
}

fn payload() -> Vec<u8> {
    let word = |n: u32| (n.wrapping_mul(n) >> 5) as u8;
    (0..PAYLOAD as u32).map(word).collect()
}

/// Makes the next kernel's command line, which differs in every boot.
fn words(case: &Handover) -> String {
    format!(
        "{WORDS} PATH=/bin from={} smp={} el={}",
        case.from.word(),
        case.cpus,
        case.el
    )
}

fn line(console: &str, case: &Handover, next: &Kernel) -> Result<String> {
    let line = marked(console, MARK)?;
    let expected = format!(
        " page={} cpus={} el={} linux={}",
        next.page_size.bytes(),
        case.cpus,
        case.el,
        next.version()
    );
    let rest = line
        .strip_prefix(&expected)
        .with_context(|| format!("it printed{line:?}, expected{expected:?}"))?;
    let given = format!(" sha256={}  - cmdline={}", hash(&payload()), words(case));
    ensure!(rest == given, "it printed{rest:?}, expected{given:?}");
    Ok(expected.trim_start().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_machine_and_way_with_every_page_size() {
        for kernels in 1..9 {
            let cases = cases(kernels);
            for from in PageSize::ALL {
                let of = || cases.iter().filter(|case| case.from == from);
                let seen: BTreeSet<_> = of().map(|case| case.kernel).collect();
                assert_eq!(seen.len(), kernels);
                let seen: BTreeSet<_> = of().map(|it| (it.cpus, it.el, it.cpu)).collect();
                assert_eq!(seen.len(), MACHINES.len());
                let seen: BTreeSet<_> = of().map(|it| it.way).collect();
                assert_eq!(seen.len(), WAYS.len());
            }
            for (cpus, el, cpu) in MACHINES {
                let of = |case: &&Handover| (case.cpus, case.el, case.cpu) == (cpus, el, cpu);
                let seen: BTreeSet<_> = cases.iter().filter(of).map(|it| it.way).collect();
                assert_eq!(seen.len(), WAYS.len());
            }
        }
        assert!(cases(0).is_empty());
    }

    #[test]
    fn each_part_of_the_line_is_compared_with_the_boot() {
        let case = Handover {
            kernel: 0,
            from: PageSize::K64,
            cpus: 4,
            el: 2,
            cpu: CPUS[0],
            way: Way::InPlace,
        };
        let good = format!(
            "boot\r\n{MARK} page=16384 cpus=4 el=2 linux=6.12.107 sha256={}  - cmdline={}\r\n",
            hash(&payload()),
            words(&case)
        );
        let next = Kernel {
            image: "x".into(),
            name: "Linux 6.12.107".into(),
            page_size: PageSize::K16,
            is_ours: false,
        };
        let judge = |console: &str| line(console, &case, &next);
        assert!(judge(&good).unwrap().starts_with("page=16384 cpus=4"));
        for (part, other) in [
            (MARK, "no kernel:"),
            ("page=16384", "page=4096"),
            ("cpus=4", "cpus=1"),
            ("el=2 linux", "el=1 linux"),
            ("linux=6.12.107", "linux=6.1.176"),
            ("sha256=", "sha256=1"),
            ("from=64k", "from=4k"),
        ] {
            assert!(good.contains(part), "{part}");
            assert!(judge(&good.replace(part, other)).is_err(), "{part}");
        }
    }
}
