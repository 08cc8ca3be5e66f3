//! Reports how an earlier kernel started this one, and what that kernel handed over.
//!
//! The device tree is read while its window is mapped; the note is read once the linear map exists. The
//! report decides nothing: without a readable note the boot proceeds as usual.

#![allow(unsafe_code, reason = "data that another kernel left")]

use crate::arch::{cpu, image};
use crate::dev::console::println;
use crate::handover::{Handover, TreeInfo};
use crate::mm::firmware::with_tree;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use granule::arch::{Geometry, PhysicalAddress};
use granule::linear::Placement;
use granule_kcore::devicetree::memory as tree;
use granule_kcore::kexec::handoff_note::{self as note, HandoffNote, Read};
use granule_kexec::Digest;

/// The counter just before the first line on the console.
static CONSOLE: AtomicU64 = AtomicU64::new(0);

/// Records the time just before the first line on the console.
pub(crate) fn console_comes() {
    CONSOLE.store(cpu::counter_now(), Ordering::Relaxed);
}

/// The earlier kernel's properties in the device tree.
#[derive(Debug)]
pub(crate) struct Arrival {
    note: Option<u64>,
    initrd: Option<Range<u64>>,
    /// The digest of the device tree as it was given, if digests were requested.
    tree: Option<u64>,
}

/// Reads the device tree before its window is unmapped, and computes its digest if `digest_asked`.
pub(crate) fn look(handover: &Handover, digest_asked: bool) -> Arrival {
    with_tree(handover, |bytes| {
        let note = note::address(bytes);
        let digests = note.is_some() && digest_asked;
        Arrival {
            note,
            initrd: tree::initial_ramdisk(bytes),
            tree: digests.then(|| {
                let given = handover.given_digest;
                given.unwrap_or_else(|| tree_digest(bytes, &handover.tree))
            }),
        }
    })
}

/// The digest of the tree as it arrived: with its seed, which this kernel overwrote.
fn tree_digest(bytes: &[u8], tree: &TreeInfo) -> u64 {
    let seed = tree.seed_offset as usize;
    let overwritten = tree.seed.to_be_bytes();
    let mut digest = Digest::new();
    for (index, piece) in bytes.chunks(8).enumerate() {
        let mut word = [0; 8];
        for (offset, (to, from)) in word.iter_mut().zip(piece).enumerate() {
            let in_seed = (index * 8 + offset).wrapping_sub(seed);
            let wiped = overwritten.get(in_seed).filter(|_| seed != 0);
            *to = *wiped.unwrap_or(from);
        }
        digest.word(u64::from_le_bytes(word));
    }
    digest.value()
}

fn digest(bytes: &[u8]) -> u64 {
    let mut digest = Digest::new();
    digest.bytes(bytes);
    digest.value()
}

/// Memory that the earlier kernel left, through the linear map. `None` unless all of it is mapped.
fn left<'a>(placement: &Placement, geometry: &Geometry, range: &Range<u64>) -> Option<&'a [u8]> {
    let page = geometry.page_size().bytes();
    let start = placement.virtual_address(PhysicalAddress(range.start))?.0;
    let bytes = range.end.checked_sub(range.start)?;
    let mut pages = (start & !(page - 1)..start.checked_add(bytes)?).step_by(page as usize);
    if bytes == 0 || !pages.all(|at| cpu::translate(at).is_ok()) {
        return None;
    }
    // SAFETY: the range was just seen to be mapped. The device tree reserves it, so nothing writes it.
    Some(unsafe { core::slice::from_raw_parts(start as *const u8, bytes as usize) })
}

/// Prints the handoff in the boot record, if the device tree named a note.
#[inline(never)]
pub(crate) fn report(
    arrival: &Arrival,
    handover: &Handover,
    placement: &Placement,
    geometry: &Geometry,
) {
    let Some(at) = arrival.note else { return };
    // The boot's duration before the first process; the report itself must not count.
    let up = cpu::counter_now();
    let running = geometry.page_size();
    let page = left(
        placement,
        geometry,
        &(at..at.saturating_add(note::BYTES as u64)),
    );
    let Some(page) = page.and_then(<[u8]>::first_chunk) else {
        println!(
            "granule: /chosen/{} of the device tree names {at:#x}, which is not in RAM that is mapped: ignored",
            note::PROPERTY
        );
        return;
    };
    match HandoffNote::read(page, running) {
        Ok(read) => {
            say("from_page_size", read.from.bytes());
            say("to_page_size", running.bytes());
            report_note(&read, handover.entry.counter, up);
        }
        Err(error) => println!("granule: the note of the kernel before, at {at:#x}: {error}"),
    }
    if let Some(tree) = arrival.tree {
        say("arrived.tree.digest", Hex(tree));
        if let Some(range) = &arrival.initrd
            && let Some(bytes) = left(placement, geometry, range)
        {
            say("arrived.initrd.digest", Hex(digest(bytes)));
        }
        // Relocation writes only memory from here on.
        let bytes = image::relro().start;
        // SAFETY: the image's text and constants stay mapped and are never written.
        let kernel =
            unsafe { core::slice::from_raw_parts(image::start() as *const u8, bytes as usize) };
        say("arrived.kernel.bytes", bytes);
        say("arrived.kernel.digest", Hex(digest(kernel)));
    }
}

fn report_note(read: &Read, entry: u64, up: u64) {
    let Read { note, leave, .. } = read;
    say("bytes_total", note.bytes_total);
    say("bytes_copied", note.bytes_copied);
    say("lines_cleaned", note.lines_cleaned);
    say("dsb", note.dsb);
    say("tlbi", note.tlbi);
    say("uncached", note.uncached);
    say("count.hz", note.hz);
    say("count.call", note.call);
    if let Some(leave) = leave {
        say("count.leave", leave);
    }
    say("count.entry", entry);
    say("count.console", CONSOLE.load(Ordering::Relaxed));
    say("count.up", up);
    for (name, segment) in note::NAMES.iter().zip(&note.payload) {
        if segment.bytes != 0 {
            println!("@granule kexec.segment.{name}.start={:#x}", segment.start);
            println!("@granule kexec.segment.{name}.bytes={}", segment.bytes);
            println!(
                "@granule kexec.segment.{name}.digest={:#018x}",
                segment.digest
            );
        }
    }
}

/// A digest, as 16 hexadecimal digits.
struct Hex(u64);

impl core::fmt::Display for Hex {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

fn say(key: &str, value: impl core::fmt::Display) {
    println!("@granule kexec.{key}={value}");
}
