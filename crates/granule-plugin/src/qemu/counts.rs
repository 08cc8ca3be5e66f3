//! The plugin for `granule bench user`: counts TLBIs and DSBs when they execute, and writes a line
//! with the counts when a program reads the clock.
//!
//! It reads no register and no memory of the guest, so QEMU 7.2 is sufficient. Nothing else calls
//! back, so the guest executes the same instructions as without it. All CPUs count together.

use super::api::{Basics, InsnCallback, Pointer, Translation};
use crate::counts::{Counted, Counts, counted};
use std::ffi::c_uint;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting {
    basics: Basics,
    file: File,
    tlbi: AtomicU64,
    dsb: AtomicU64,
}

static COUNTING: OnceLock<Counting> = OnceLock::new();

/// Starts to count, into a new file at `path`.
pub(super) fn install(id: u64, basics: Basics, path: &str) -> Result<(), String> {
    let file = File::create(path).map_err(|error| format!("{path}: {error}"))?;
    let counting = COUNTING.get_or_init(|| Counting {
        basics,
        file,
        tlbi: AtomicU64::new(0),
        dsb: AtomicU64::new(0),
    });
    counting.basics.on_translation::<Counting>(id);
    Ok(())
}

impl Translation for Counting {
    fn translated(block: Pointer) {
        let Some(counting) = COUNTING.get() else {
            return;
        };
        for (insn, pc, word) in counting.basics.instructions(block) {
            let call: InsnCallback = match counted(pc, word) {
                Some(Counted::Tlbi) => tlbi,
                Some(Counted::Dsb) => dsb,
                Some(Counted::Reading) => reading,
                None => continue,
            };
            let nothing = std::ptr::null_mut();
            counting.basics.call_before(insn, call, false, nothing);
        }
    }
}

extern "C" fn tlbi(_cpu: c_uint, _data: Pointer) {
    if let Some(counting) = COUNTING.get() {
        counting.tlbi.fetch_add(1, Relaxed);
    }
}

extern "C" fn dsb(_cpu: c_uint, _data: Pointer) {
    if let Some(counting) = COUNTING.get() {
        counting.dsb.fetch_add(1, Relaxed);
    }
}

/// Writes the counts at once, because QEMU may be killed when the guest has powered off.
extern "C" fn reading(_cpu: c_uint, _data: Pointer) {
    let Some(counting) = COUNTING.get() else {
        return;
    };
    let counts = Counts {
        tlbi: counting.tlbi.load(Relaxed),
        dsb: counting.dsb.load(Relaxed),
    };
    // The reader reports a missing line.
    let _ = (&counting.file).write_all(counts.line().as_bytes());
}
