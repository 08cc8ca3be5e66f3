//! Damages a loaded next kernel, or data that leaving for it relies on: `granule.test=kexec:`, whose words
//! are in [`granule_kcore::kexec::test_words`].

#![allow(unsafe_code, reason = "the next kernel's tables, which no CPU walks")]

use super::crash;
use crate::dev::console::println;
use crate::kexec::hook::KexecHook;
use crate::kexec::loaded::Loaded;
use crate::kexec::pages::{self, Held, page_bytes};
use crate::kexec::verify_tables::Use;
use crate::mm::kernel_tables::{self, Kernel};
use crate::mm::pages::NoMemory;
use crate::mm::walker;
use core::arch::asm;
use core::ops::ControlFlow;
use granule::arch::{Descriptor, Kind, VirtualAddress};
use granule::table::{Leaves, Visit};
use granule_kcore::kexec::handoff_note::NAMES;
use granule_kcore::kexec::test_words::TestWords;
use granule_kcore::parameters::Parameters;
use granule_kexec::{ListMemory, PhysRange, verify};
use granule_trace::recorder::Counters;

/// AP\[2\] of a descriptor.
const READ_ONLY: u64 = 1 << 7;

static WORDS: spin::Once<TestWords> = spin::Once::new();

/// Stores the words of the command line.
pub(super) fn note(parameters: &Parameters<'_>) {
    WORDS.call_once(|| parameters.test.kexec());
}

fn words() -> TestWords {
    WORDS.get().copied().unwrap_or_default()
}

/// Whether firmware must appear to refuse to switch CPU `number` off.
pub(super) fn stays(number: usize) -> bool {
    words().stays == Some(number as u64)
}

/// The hook that does the damage.
pub(super) static DAMAGE: KexecHook = KexecHook {
    place: |name| {
        let mut places = NAMES.into_iter().zip(words().places);
        places.find(|(each, _)| *each == name)?.1
    },
    in_use: |place, held| match words().frees {
        Some(count) => hold_middle(place, count, held),
        None => Ok(()),
    },
    sealed: |list| {
        if let Some(bit) = words().flip {
            let byte = list.head().0 + bit / 8 % list.page().bytes();
            flip(byte, (bit % 8) as u32);
        }
    },
    before_check: |kernel, loaded| spoil(kernel, loaded, &words()),
    before_jump: |loaded| {
        if let Some(byte) = words().decay {
            decay(loaded, byte);
        }
        if words().left {
            leave_on();
        }
    },
    crash_is_loaded: crash::run,
    loud: || words().loud.map(|number| number as u32),
};

/// Allocates every other page in the middle of a place. They are freed once the search for free pages there
/// is over.
fn hold_middle(place: &PhysRange, count: u64, held: &mut Option<Held>) -> Result<(), NoMemory> {
    let held = match held {
        Some(held) => held,
        None => held.insert(Held::new()?),
    };
    let middle = place.start + place.bytes / 2 / page_bytes() * page_bytes();
    for index in 0..count {
        let page = PhysRange::new(middle + 2 * index * page_bytes(), page_bytes());
        if place.holds(&page) {
            held.take_free_in(page, &mut |_| Ok(()))?;
        }
    }
    Ok(())
}

/// Flips one bit of a page, in its word, as everything loaded was written.
fn flip(byte: u64, bit: u32) {
    let at = byte & !7;
    let mut words = pages::Words;
    if let Some(word) = words.load(at) {
        // SAFETY: the word is of the next kernel, which only this CPU uses, and it is to be damaged.
        unsafe { words.store(at, word ^ 1 << (8 * (byte & 7) as u32 + bit)) };
    }
}

/// Corrupts the tables.
fn spoil(kernel: &Kernel, loaded: &Loaded, words: &TestWords) {
    let [_, upper] = loaded.tables.geometries();
    let [_, root] = loaded.tables.roots();
    let counters = Counters::new();
    let environment = kernel_tables::apart(kernel, &counters);
    // SAFETY: the tree was made for this root and geometry, and no CPU walks it. Nothing else reads or
    // changes it now: no task runs, and this CPU is the one that leaves.
    let Ok(mut tables) = (unsafe { walker::open(root, upper, environment) }) else {
        return;
    };
    let shown = |at: u64| VirtualAddress(at.wrapping_add(loaded.tables.distance()));
    if let Some(pages) = words.map {
        // The relocation code, which runs in its own mapping and not in the linear map.
        let code = loaded.way.code;
        let attributes = Use::Written.attributes();
        let bytes = pages.saturating_mul(kernel.page());
        let done = tables.map(shown(code.0), code, bytes, attributes, Leaves::PAGES);
        println!("granule: granule.test=kexec:map@{pages}: {done:?}");
    }
    if words.loosen {
        let list = shown(loaded.list.head().0);
        let found = tables.visit_all(|entry| {
            let holds = list.0.wrapping_sub(entry.start.0) < entry.bytes;
            if entry.kind == Kind::Leaf && holds {
                return ControlFlow::Break(*entry);
            }
            ControlFlow::Continue(Visit::Descend)
        });
        let found = found.break_value();
        println!("granule: granule.test=kexec:loosen@1: {}", found.is_some());
        if let Some(entry) = found {
            let writable = Descriptor(entry.descriptor.0 & !READ_ONLY);
            // SAFETY: the new mapping is refused before its use, which this test checks.
            unsafe { walker::overwrite(&mut tables, &entry, writable) };
        }
    }
}

/// Leaves on what a profiler does: PMCR_EL0.E, and the virtual timer, masked.
fn leave_on() {
    // SAFETY: interrupts are masked, and this kernel is about to be left.
    unsafe {
        asm!(
            "msr pmcr_el0, {}", "msr cntv_ctl_el0, {}", "isb",
            in(reg) 1_u64, in(reg) 0b11_u64, options(nomem, nostack)
        );
    }
}

/// Changes a byte of the data to copy.
fn decay(loaded: &Loaded, byte: u64) {
    let mut before = 0;
    let mut at = None;
    let _ = verify(&pages::Words, loaded.list.head(), |record| {
        if record.copies() {
            let into = byte.wrapping_sub(before);
            if into < record.bytes {
                at = Some(record.source.wrapping_add(into));
            }
            before += record.bytes;
        }
    });
    if let Some(at) = at {
        flip(at, 0);
    }
}
