//! Random bytes for programs and the next kernel. The generator (`granule_kcore::random`) is seeded at boot by FEAT_RNG and
//! by `rng-seed` of the device tree, and each use mixes in a number of FEAT_RNG and the counter. Where the machine has
//! neither source, a reader of the counter can guess the bytes, and `getrandom` returns EAGAIN.

#![allow(unsafe_code, reason = "RNDR")]

use crate::arch::cpu;
use crate::dev::timer;
use crate::lock::Lock;
use core::arch::asm;
use granule_boot::tree::Tree;
use granule_kcore::kexec::next_tree::RNG_SEED;
use granule_kcore::random::{Generator, SEED_BYTES};

static GENERATOR: Lock<Generator> = Lock::new(Generator::UNSEEDED);

/// Seeds the generator by what the machine has.
#[inline(never)]
pub(crate) fn begin(tree: &[u8]) {
    let tree = Tree::new(tree).ok();
    let chosen = tree.and_then(|tree| tree.root()?.child(b"chosen"));
    let given = chosen.and_then(|chosen| chosen.property(RNG_SEED));
    let mut own = [0; SEED_BYTES];
    let by_hardware = own.chunks_mut(8).all(|piece| {
        // The hardware may be out of numbers for a moment.
        let number = (0..PATIENCE).find_map(|_| hardware());
        piece.copy_from_slice(&number.unwrap_or(0).to_le_bytes());
        number.is_some()
    });
    GENERATOR.with(|generator| {
        if by_hardware {
            generator.seed(&own);
        }
        generator.seed(given.unwrap_or_default());
    });
}

/// Whether nobody can guess the bytes.
pub(crate) fn is_seeded() -> bool {
    GENERATOR.with(|generator| generator.is_seeded())
}

/// Fills `into` with random bytes.
pub(crate) fn fill(into: &mut [u8]) {
    let noise = [timer::now(), hardware().unwrap_or(0)].map(u64::to_le_bytes);
    GENERATOR.with(|generator| {
        generator.mix(noise.as_flattened());
        generator.fill(into);
    });
}

/// The most requests to the hardware for one number.
const PATIENCE: u32 = 16;

/// RNDR. `None` if it is missing or has no number, which its flags report.
fn hardware() -> Option<u64> {
    if cpu::id_aa64isar0_el1() >> 60 & 0xf == 0 {
        return None;
    }
    let (value, failed): (u64, u64);
    // SAFETY: RNDR (S3_3_C2_C4_0) exists. It writes only the flags, and nothing relies on them.
    unsafe {
        asm!("mrs {}, s3_3_c2_c4_0", "cset {}, eq", out(reg) value, out(reg) failed, options(nomem, nostack));
    }
    (failed == 0).then_some(value)
}
