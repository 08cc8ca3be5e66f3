//! The boots in which one kernel leaves for the next, and the report that each must give.
//!
//! Pure functions over tables, as for the matrix of single boots; [`payload`] makes the disk for the next
//! kernel. The next kernel is the same image with its own page size.

use anyhow::Result;
use serde_json::{Value, json};

use super::payload;
use crate::boot::{self, Expected};

/// Page sizes, in KiB. Every CPU below has them all.
const PAGE_SIZES: &[u32] = &[4, 16, 64];
const CPUS: &[u32] = &[1, 2, 4];

/// The way of the next kernel to its place: whether everything is copied (or nothing), and whether the copy
/// runs with MMU and caches off.
const WAYS: &[(bool, bool)] = &[(false, false), (false, true), (true, false), (true, true)];

/// DSBs of the relocation, which do not depend on the copied bytes: with the MMU on, and two more for the
/// cache maintenance before and after a copy past the caches (docs/performance.md, "Leaving for another
/// kernel").
const DSB: u64 = 5;
const DSB_UNCACHED: u64 = 7;

/// A machine, and the exception levels at which its kernel may start.
#[derive(Debug)]
struct Machine {
    cpu: &'static str,
    /// Virtualization host extensions: a kernel entered at EL2 stays there. Without them the way into the
    /// next kernel goes through the vectors that this kernel left at EL2.
    vhe: bool,
    els: &'static [u32],
}

/// Cortex-A35 is the CPU without VHE that has 16K pages; at EL1 it behaves like the other.
const MACHINES: &[Machine] = &[
    Machine {
        cpu: "neoverse-n1",
        vhe: true,
        els: &[1, 2],
    },
    Machine {
        cpu: "cortex-a35",
        vhe: false,
        els: &[2],
    },
];
const WITH_VHE: usize = 0;
const WITHOUT_VHE: usize = 1;

/// One boot of two kernels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KexecBoot {
    /// Index into `MACHINES`.
    machine: usize,
    cpus: u32,
    el: u32,
    /// In KiB, as is `to`.
    from: u32,
    to: u32,
    copy: bool,
    uncached: bool,
    memory: &'static str,
    /// Bytes of the file in the next kernel's initial RAM disk; `None` means without a disk.
    payload: Option<usize>,
}

impl KexecBoot {
    /// In place, on the smallest machine.
    fn new(machine: usize, el: u32, (from, to): (u32, u32)) -> Self {
        Self {
            machine,
            cpus: 1,
            el,
            from,
            to,
            copy: false,
            uncached: false,
            memory: "512M",
            payload: None,
        }
    }

    fn machine(&self) -> &'static Machine {
        &MACHINES[self.machine]
    }

    /// The bytes of the disk that [`payload::make`] must make before this boot.
    pub(crate) fn payload(&self) -> Option<usize> {
        self.payload
    }
}

impl Expected for KexecBoot {
    fn arguments(&self) -> Vec<String> {
        let mut words = vec![
            format!("--cpu={}", self.machine().cpu),
            format!("--smp={}", self.cpus),
            format!("--el={}", self.el),
            format!("--memory={}", self.memory),
            format!("--page-size={}k", self.from),
            format!("--kexec-page-size={}k", self.to),
        ];
        words.extend(self.copy.then(|| "--kexec-copy".to_owned()));
        words.extend(self.uncached.then(|| "--kexec-uncached".to_owned()));
        let disk = self.payload.map(payload::path);
        words.extend(disk.map(|path| format!("--kexec-initrd={}", path.display())));
        words
    }

    fn values(&self) -> Vec<(String, Value)> {
        let bytes = |kib: u32| json!(u64::from(kib) << 10);
        let stays = self.el == 2 && self.machine().vhe;
        let mut values = Vec::new();
        for (at, page_size) in [(0, self.from), (1, self.to)] {
            let of_each = [
                ("page_size", bytes(page_size)),
                ("page_size_source", json!("command-line")),
                ("entry_el", json!(self.el)),
                ("run_el", json!(if stays { 2 } else { 1 })),
                ("vhe", json!(stays)),
                ("cpus", json!(self.cpus)),
                ("cpu_mismatch", json!([])),
                ("outcome", json!("ok")),
                ("ended", json!(true)),
                ("record_faults", json!([])),
            ];
            values.extend(of_each.map(|(key, value)| (format!("boots.{at}.{key}"), value)));
        }
        let dsb = if self.uncached { DSB_UNCACHED } else { DSB };
        values.extend(boot::owned([
            ("kexec.from_page_size", bytes(self.from)),
            ("kexec.to_page_size", bytes(self.to)),
            ("kexec.digest_ok", json!(true)),
            ("kexec.dsb", json!(dsb)),
            ("boots.1.kexec.uncached", json!(self.uncached)),
        ]));
        values
    }

    /// Exactly two kernels, every given file, and all bytes copied or none.
    fn faults(&self, record: &Value) -> Result<Vec<String>> {
        let boots = boot::at(record, "boots")?.as_array().map_or(0, Vec::len);
        let image = boot::number(record, "image.bytes")?;
        let total = boot::number(record, "kexec.bytes_total")?;
        let copied = boot::number(record, "kexec.bytes_copied")?;
        let lines = boot::number(record, "kexec.lines_cleaned")?;
        let given = image + self.payload.unwrap_or(0) as u64;
        let disk = boot::number(record, "boots.1.kexec.segment.initrd.bytes").ok();
        let arrived = match self.payload {
            Some(bytes) => disk.is_some_and(|disk| disk > bytes as u64),
            None => disk.is_none_or(|disk| disk == 0),
        };
        let (all, disk_bytes) = (self.copy, self.payload);
        #[rustfmt::skip]
        let judged = [
            (boots == 2, format!("boots has {boots} records, expected 2")),
            // The device tree is a segment too.
            (total > given,
                format!("kexec.bytes_total is {total}, expected more than the {given} of image and disk")),
            // Whole pages are copied.
            (if all { copied >= total } else { copied == 0 },
                format!("kexec.bytes_copied is {copied} of {total}, with all to copy: {all}")),
            // Bytes in place were cleaned at load time.
            (all == (lines > 0), format!("kexec.lines_cleaned is {lines}, with lines to clean: {all}")),
            (arrived,
                format!("boots.1.kexec.segment.initrd.bytes is {disk:?}, with {disk_bytes:?} in the disk")),
        ];
        let wrong = judged.into_iter().filter(|(is_right, _)| !is_right);
        Ok(wrong.map(|(_, line)| line).collect())
    }
}

impl std::fmt::Display for KexecBoot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.arguments().join(" "))
    }
}

/// Each page size with each possible next one, itself included.
fn pairs() -> impl Iterator<Item = (u32, u32)> {
    let with = |from: u32| PAGE_SIZES.iter().map(move |to| (from, *to));
    PAGE_SIZES.iter().copied().flat_map(with)
}

/// Every page size into every other, on every number of CPUs, at either level, in every way. Cases that are
/// more alike get fewer machines: every page size into itself in every way, and without VHE every pair
/// once, with ways and CPUs that take turns.
pub(crate) fn full() -> Vec<KexecBoot> {
    let mut cases = Vec::new();
    for pair in pairs() {
        let same = pair.0 == pair.1;
        for &el in MACHINES[WITH_VHE].els {
            for &cpus in CPUS {
                for &(copy, uncached) in WAYS {
                    cases.extend((!same || (el, cpus) == (2, 2)).then(|| KexecBoot {
                        cpus,
                        copy,
                        uncached,
                        ..KexecBoot::new(WITH_VHE, el, pair)
                    }));
                }
            }
        }
    }
    for (turn, pair) in pairs().enumerate() {
        let (copy, uncached) = WAYS[turn % WAYS.len()];
        for &el in MACHINES[WITHOUT_VHE].els {
            cases.push(KexecBoot {
                // Three pairs have the same first size.
                cpus: CPUS[(turn + turn / 3) % CPUS.len()],
                copy,
                uncached,
                ..KexecBoot::new(WITHOUT_VHE, el, pair)
            });
        }
    }
    cases
}

/// `count` cases with a memory size and a disk drawn as well; the same for the same seed.
pub(crate) fn random(seed: u64, count: usize) -> Vec<KexecBoot> {
    const MEMORY: &[&str] = &["256M", "384M", "1G", "1539M", "3G", "6G", "16G"];
    let mut random = fastrand::Rng::with_seed(seed);
    let pairs: Vec<_> = pairs().collect();
    let mut draw = || {
        let machine = random.usize(..MACHINES.len());
        let el = random.choice(MACHINES[machine].els)?;
        let pair = random.choice(&pairs)?;
        let (copy, uncached) = *random.choice(WAYS)?;
        // Disks of some bytes are as frequent as disks of some MiB.
        let bits = random.u32(4..=24);
        Some(KexecBoot {
            cpus: random.u32(1..=4),
            copy,
            uncached,
            memory: random.choice(MEMORY)?,
            payload: Some(random.usize(1..=1 << bits)),
            ..KexecBoot::new(machine, *el, *pair)
        })
    };
    (0..count).filter_map(|_| draw()).collect()
}

#[cfg(test)]
mod tests;
