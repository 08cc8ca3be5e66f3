//! The plugin for `granule bench user`: TLBIs and DSBs are counted when they execute, and each reading
//! of the clock by a program writes a line with the counts.
//!
//! It reads no register and no memory of the guest, so that QEMU 7.2 will do, and nothing else calls
//! back: the guest runs the same instructions as without it. All CPUs count together.

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

/// Counts from now on, into a new file at `path`.
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

/// Written at once: QEMU may be killed when the guest has powered off.
extern "C" fn reading(_cpu: c_uint, _data: Pointer) {
    let Some(counting) = COUNTING.get() else {
        return;
    };
    let counts = Counts {
        tlbi: counting.tlbi.load(Relaxed),
        dsb: counting.dsb.load(Relaxed),
    };
    // A reader that misses a line says so.
    let _ = (&counting.file).write_all(counts.line().as_bytes());
}
