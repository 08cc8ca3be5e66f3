//! The CPUs that use the pages beside the changed ones: each writes its own neighbours, reads them back, and
//! merges now and then.

use super::super::quarters::{QUARTER, Quarters};
use crate::arch::cpu;
use crate::bench::support::{Random, kernel, ok};
use crate::mm::merge;
use crate::percpu;
use crate::percpu::PerCpu;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use granule::arch::VirtualAddress;

/// Number of neighbours in each changed quarter.
pub(super) const EACH: u64 = 16;
pub(super) const NEIGHBOURS: usize = 3 * EACH as usize;
/// Words that a CPU writes to a neighbour at once: one cache line.
const WORDS: u64 = 8;
/// Accesses of a CPU between two of its own merges, at least.
const ACCESSES_A_MERGE: u64 = 512;

/// The counts of one of these CPUs.
#[derive(Default)]
pub(super) struct Did {
    pub(super) accesses: u64,
    pub(super) merges: u64,
}

/// The progress of the CPU that makes the changes.
#[derive(Default)]
pub(super) struct Progress {
    /// Changes so far.
    pub(super) changes: AtomicU64,
    /// Whether they are all made.
    pub(super) is_over: AtomicBool,
}

/// Reads and writes this CPU's neighbours until the changes are over.
pub(super) fn visit(
    this: &PerCpu,
    neighbours: &[u64],
    cpus: u64,
    seed: u64,
    progress: &Progress,
    quarters: &Quarters,
) -> Did {
    let number = this.number() as u64;
    let page = kernel().page();
    let mut random = Random::new(seed ^ number << 32);
    // How often each neighbour was written.
    let mut written = [0u64; NEIGHBOURS];
    let mut did = Did::default();
    let mut merged_at = 0;
    // CPU numbers may have gaps. The places among these CPUs are 0 to `cpus` - 1.
    let place = percpu::online()
        .without(0)
        .iter()
        .position(|other| other as u64 == number)
        .unwrap_or(usize::MAX) as u64;
    let mine = |index: usize| index as u64 % cpus == place;
    for (index, neighbour) in neighbours.iter().enumerate() {
        if mine(index) {
            write(*neighbour, page, 0);
        }
    }
    while !progress.is_over.load(Ordering::Acquire) {
        let index = random.below(NEIGHBOURS as u64) as usize;
        if !mine(index) {
            continue;
        }
        let (Some(neighbour), Some(times)) = (neighbours.get(index), written.get_mut(index)) else {
            continue;
        };
        verify(number, *neighbour, page, *times);
        *times += 1;
        write(*neighbour, page, *times);
        did.accesses += 2 * WORDS;
        let changes = progress.changes.load(Ordering::Relaxed);
        if !did.accesses.is_multiple_of(2 * WORDS * ACCESSES_A_MERGE) {
            continue;
        }
        // Once between two changes: the lock has no queue, and CPUs that do nothing but merge would leave the CPU
        // that makes the changes little of it.
        if changes == merged_at {
            // QEMU that counts instructions runs all CPUs on one thread. In 7.2 a CPU that never yields can keep the
            // CPUs after it from running: one of them may hold the lock.
            cpu::relax();
        } else {
            merged_at = changes;
            let pages = 4 * QUARTER / page;
            // The whole range one time in two.
            let count = match random.below(2) {
                0 => pages,
                _ => random.length(pages),
            };
            let first = random.below(pages - count + 1);
            let start = VirtualAddress(quarters.start + first * page);
            ok("merging", merge::merge_linear_map(start, count));
            did.merges += 1;
        }
    }
    for (index, (neighbour, times)) in neighbours.iter().zip(written).enumerate() {
        if mine(index) {
            verify(number, *neighbour, page, times);
            did.accesses += WORDS;
        }
    }
    did
}

/// The word that is written to `address` as write number `times`.
fn word(address: u64, times: u64) -> u64 {
    (address ^ times << 48)
        .wrapping_add(times)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The address of the line within a page.
fn line(neighbour: u64, page: u64, times: u64) -> u64 {
    let bytes = 8 * WORDS;
    neighbour + (word(neighbour, times) >> 32) % (page / bytes) * bytes
}

fn write(neighbour: u64, page: u64, times: u64) {
    let line = line(neighbour, page, times);
    for address in (line..line + 8 * WORDS).step_by(8) {
        // SAFETY: a page of the test's blocks that only this CPU uses.
        unsafe { (address as *mut u64).write_volatile(word(address, times)) };
    }
}

fn verify(cpu: u64, neighbour: u64, page: u64, times: u64) {
    let line = line(neighbour, page, times);
    for address in (line..line + 8 * WORDS).step_by(8) {
        // SAFETY: as in `write`.
        let found = unsafe { (address as *const u64).read_volatile() };
        let expected = word(address, times);
        assert!(
            found == expected,
            "CPU {cpu} reads {found:#x} at {address:#x}, where it wrote {expected:#x}"
        );
    }
}
