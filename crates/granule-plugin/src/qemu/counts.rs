//! The plugin for `granule bench user`: counts TLBIs and DSBs when they execute, and writes a line
//! with the counts when a program reads the clock.
//!
//! It reads no register and no memory of the guest, so QEMU 7.2 is sufficient. Nothing else calls
//! back, so the guest executes the same instructions as without it. All CPUs count together.

use super::api::Basics;
use super::callback::{Site, Translation};
use super::handle::TranslatedBlock;
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
    fn translated(block: &TranslatedBlock<'_>) {
        let Some(counting) = COUNTING.get() else {
            return;
        };
        for (insn, pc, word) in counting.basics.instructions(block) {
            let what: &'static Counted = match counted(pc, word) {
                Some(Counted::Tlbi) => &Counted::Tlbi,
                Some(Counted::Dsb) => &Counted::Dsb,
                Some(Counted::Reading) => &Counted::Reading,
                None => continue,
            };
            counting.basics.call_before(&insn, false, what);
        }
    }
}

impl Site for Counted {
    fn executed(&'static self, _cpu: c_uint) {
        let Some(counting) = COUNTING.get() else {
            return;
        };
        match self {
            Self::Tlbi => {
                counting.tlbi.fetch_add(1, Relaxed);
            }
            Self::Dsb => {
                counting.dsb.fetch_add(1, Relaxed);
            }
            Self::Reading => counting.write(),
        }
    }
}

impl Counting {
    /// Writes the counts at once, because QEMU may be killed when the guest has powered off.
    fn write(&self) {
        let counts = Counts {
            tlbi: self.tlbi.load(Relaxed),
            dsb: self.dsb.load(Relaxed),
        };
        // The reader reports a missing line.
        let _ = (&self.file).write_all(counts.line().as_bytes());
    }
}
