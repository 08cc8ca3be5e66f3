//! Checks every condition that must hold on arrival and prints all results. The first condition that does not
//! hold is the reason for the outcome.

#![allow(unsafe_code, reason = "the memory that is examined, and registers")]

use crate::console::Console;
use crate::digest::{self, SegmentDigest};
use crate::firmware;
use crate::head::{Entered, stop};
use crate::note::{self, HandoffNote};
use core::arch::asm;
use granule_boot::peek::Conduit;
use granule_boot::tree::{Tree, total_size};
use granule_boot::uart::Family;

/// SCTLR: MMU on, data cache on.
const SCTLR_M: u64 = 1 << 0;
const SCTLR_C: u64 = 1 << 2;
/// DAIF with all four masked.
const ALL_MASKED: u64 = 0xf << 6;
/// Alignment of an image's address.
const IMAGE_ALIGN: u64 = 2 << 20;
/// Affinity fields of MPIDR.
const AFFINITY: u64 = 0xff_00ff_ffff;

/// The output, and the first condition that did not hold.
struct Probe {
    console: Console,
    reason: Option<&'static [u8]>,
}

impl Probe {
    fn holds(&mut self, it: bool, otherwise: &'static [u8]) {
        if !it && self.reason.is_none() {
            self.reason = Some(otherwise);
        }
    }
}

/// Values of `/chosen` and `/cpus` that the library's first read does not return.
#[derive(Default)]
struct Chosen {
    note: Option<u64>,
    initrd_start: Option<u64>,
    initrd_end: Option<u64>,
}

/// Called by the entry, on the stack at the image's end.
#[unsafe(no_mangle)]
extern "C" fn probe_main(entered: &mut Entered) -> ! {
    let at = entered.x[0];
    if at == 0 || at & 7 != 0 {
        stop();
    }
    // SAFETY: the boot protocol places a device tree there. A wrong address causes an exception, which stops
    // the probe.
    let start = unsafe { core::slice::from_raw_parts(at as *const u8, 8) };
    let Ok(bytes) = total_size(start) else { stop() };
    // SAFETY: as above, for the size that the tree states.
    let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, bytes as usize) };
    let Ok(tree) = Tree::new(bytes) else { stop() };
    let seen = tree.peek();
    let mut consoles = seen.consoles;
    consoles.check(&tree, u64::MAX, &[]);
    let uart = consoles.first();
    let Some(uart) = uart.filter(|uart| uart.family == Family::Pl011) else {
        stop()
    };
    entered.uart = uart.base;
    // SAFETY: the tree has a PL011 there.
    let console = unsafe { Console::new(uart.base) };
    let mut probe = Probe {
        console,
        reason: None,
    };
    let conduit = seen.psci.and_then(|psci| psci.method);
    probe.registers(entered);
    probe.cpus(&tree, conduit);
    let chosen = chosen(&tree);
    probe.memory(entered, &chosen, bytes.len() as u64);
    console.text(b"probe.bootargs", seen.bootargs);
    match probe.reason {
        None => console.text(b"outcome", b"ok"),
        Some(reason) => {
            console.text(b"reason", reason);
            console.text(b"outcome", b"self-check-failed");
        }
    }
    console.last();
    if let Some(conduit) = conduit {
        firmware::system_off(conduit);
    }
    stop()
}

/// Called by the vectors: a correct probe takes no exception.
#[unsafe(no_mangle)]
extern "C" fn probe_exception(entered: &Entered, esr: u64, elr: u64, far: u64) {
    if entered.uart == 0 {
        return;
    }
    // SAFETY: the address came from the tree before the exception.
    let console = unsafe { Console::new(entered.uart) };
    console.key(b"reason");
    console.all(b"an exception in the probe, ESR ");
    console.in_hexadecimal(esr);
    console.all(b", ELR ");
    console.in_hexadecimal(elr);
    console.all(b", FAR ");
    console.in_hexadecimal(far);
    console.end();
    console.text(b"outcome", b"panic");
    console.last();
}

impl Probe {
    fn registers(&mut self, entered: &Entered) {
        let console = self.console;
        let [tree, x1, x2, x3] = entered.x;
        console.number(b"probe.el", entered.el);
        console.number(b"probe.count", entered.count);
        console.hexadecimal(b"probe.x0", tree);
        console.hexadecimal(b"probe.x1", x1);
        console.hexadecimal(b"probe.x2", x2);
        console.hexadecimal(b"probe.x3", x3);
        console.hexadecimal(b"probe.sctlr", entered.sctlr);
        console.hexadecimal(b"probe.hcr", entered.hcr);
        console.hexadecimal(b"probe.daif", entered.daif);
        console.hexadecimal(b"probe.pending", entered.pending);
        console.hexadecimal(b"probe.cpacr", entered.cpacr);
        console.hexadecimal(b"probe.cntkctl", entered.cntkctl);
        console.hexadecimal(b"probe.load", entered.load);
        self.holds(x1 | x2 | x3 == 0, b"x1, x2 or x3 is not 0");
        self.holds(entered.sctlr & SCTLR_M == 0, b"the MMU is on");
        self.holds(entered.sctlr & SCTLR_C == 0, b"the data cache is on");
        self.holds(
            entered.daif & ALL_MASKED == ALL_MASKED,
            b"some exception is not masked",
        );
        self.holds(
            entered.load & (IMAGE_ALIGN - 1) == 0,
            b"the image is not 2 MiB aligned",
        );
        // An interrupt left pending by a timer or a device would reach the next kernel before it has drivers.
        self.holds(entered.pending == 0, b"an interrupt is pending");
    }

    /// Checks that every CPU in the tree but this one is off.
    fn cpus(&mut self, tree: &Tree<'_>, conduit: Option<Conduit>) {
        let mpidr: u64;
        // SAFETY: reads a register.
        unsafe {
            asm!("mrs {}, mpidr_el1", out(reg) mpidr, options(nomem, nostack, preserves_flags))
        };
        let (mut all, mut on) = (0, 0);
        let cpus = tree.root().and_then(|root| root.child(b"cpus"));
        let cpus = cpus.into_iter().flat_map(|cpus| cpus.children());
        for cpu in cpus.filter(|cpu| cpu.is_named(b"cpu")) {
            let Some(affinity) = cpu.number(b"reg") else {
                continue;
            };
            all += 1;
            let this = affinity == mpidr & AFFINITY;
            let off = !this && conduit.is_some_and(|it| firmware::is_off(it, affinity));
            on += u64::from(!off);
        }
        self.console.number(b"probe.cpus.all", all);
        self.console.number(b"probe.cpus.on", on);
        self.holds(on == 1, b"another CPU is on");
    }

    /// Digests the memory that was handed over, and compares it with the previous kernel's note, if there is
    /// one.
    fn memory(&mut self, entered: &Entered, chosen: &Chosen, tree_bytes: u64) {
        let console = self.console;
        let [tree, ..] = entered.x;
        let initrd = match (chosen.initrd_start, chosen.initrd_end) {
            (Some(start), Some(end)) => Some((start, end.wrapping_sub(start))),
            _ => None,
        };
        // Only the initramfs is cleaned, because it need not be clean on arrival.
        let initrd = initrd.map(|(start, bytes)| {
            digest::clean(start, bytes);
            // SAFETY: the tree names this range, and nothing writes to it.
            unsafe { SegmentDigest::at(start, bytes) }
        });
        // SAFETY: these bytes were just read, and nothing writes to them.
        let tree = unsafe { SegmentDigest::at(tree, tree_bytes) };
        let note = chosen.note.map(|at| {
            console.hexadecimal(b"probe.note", at);
            // SAFETY: the previous kernel guarantees that a page is there.
            HandoffNote::read(unsafe { core::slice::from_raw_parts(at as *const u8, note::BYTES) })
        });
        match note {
            None => {
                console.text(b"probe.note", b"none");
                self.report_segments([None, initrd, Some(tree)], None);
            }
            Some(None) => self.holds(false, b"the note is not whole"),
            Some(Some(note)) => {
                console.number(b"probe.from_page_size", note.from);
                match note.leave {
                    Some(count) => console.number(b"probe.leave", count),
                    None => self.holds(false, b"the note lacks its last count"),
                }
                let [kernel, ..] = note.segments;
                self.holds(
                    kernel.start == entered.load,
                    b"the image is not where it was to be",
                );
                // SAFETY: the image lies there, and its bytes are never written.
                let kernel = unsafe { SegmentDigest::at(entered.load, kernel.bytes) };
                self.report_segments([Some(kernel), initrd, Some(tree)], Some(&note));
            }
        }
    }

    fn report_segments(&mut self, found: [Option<SegmentDigest>; 3], note: Option<&HandoffNote>) {
        let [kernel, initrd, tree] = found;
        let recorded = |index: usize| note.and_then(|note| note.segments.get(index).copied());
        let console = self.console;
        let mut one = |found: Option<SegmentDigest>,
                       recorded: Option<SegmentDigest>,
                       keys: [&[u8]; 3],
                       wrong| {
            let found = found.unwrap_or_default();
            if found.bytes != 0 {
                let [start, bytes, digest] = keys;
                console.hexadecimal(start, found.start);
                console.number(bytes, found.bytes);
                console.hexadecimal(digest, found.digest);
            }
            if let Some(recorded) = recorded {
                // An empty range has no address and no digest to compare.
                let same = recorded.bytes == found.bytes
                    && (recorded.bytes == 0
                        || recorded.start == found.start && recorded.digest == found.digest);
                self.holds(same, wrong);
            }
        };
        one(
            kernel,
            recorded(0),
            [
                b"probe.kernel.start",
                b"probe.kernel.bytes",
                b"probe.kernel.digest",
            ],
            b"the image is not what was loaded",
        );
        one(
            initrd,
            recorded(1),
            [
                b"probe.initrd.start",
                b"probe.initrd.bytes",
                b"probe.initrd.digest",
            ],
            b"the initramfs is not what was loaded",
        );
        one(
            tree,
            recorded(2),
            [
                b"probe.tree.start",
                b"probe.tree.bytes",
                b"probe.tree.digest",
            ],
            b"the device tree is not what was loaded",
        );
    }
}

/// The values that a leaving kernel puts into `/chosen`.
fn chosen(tree: &Tree<'_>) -> Chosen {
    let Some(node) = tree.root().and_then(|root| root.child(b"chosen")) else {
        return Chosen::default();
    };
    Chosen {
        note: node.number(b"granule,kexec-note").filter(|at| at & 7 == 0),
        initrd_start: node.number(b"linux,initrd-start").filter(|at| at & 7 == 0),
        initrd_end: node.number(b"linux,initrd-end"),
    }
}
