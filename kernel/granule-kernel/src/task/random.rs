//! Random numbers for programs, as good as the machine allows: FEAT_RNG, if present, and the counter are
//! mixed into a state.
//!
//! Without FEAT_RNG the numbers differ between boots and calls, but a reader of the counter can guess
//! them. They suit hash tables and stack canaries, not keys.

#![allow(unsafe_code, reason = "RNDR")]

use crate::arch::cpu;
use crate::dev::timer;
use crate::lock::Lock;
use core::arch::asm;

static STATE: Lock<u64> = Lock::new(0);

/// Fills `into` with random bytes.
pub(crate) fn fill(into: &mut [u8]) {
    let (words, rest) = into.as_chunks_mut::<8>();
    for word in words {
        *word = number().to_le_bytes();
    }
    for (to, from) in rest.iter_mut().zip(number().to_le_bytes()) {
        *to = from;
    }
}

/// Fills `into` with numbers of the hardware only, for secrets. False if the hardware failed.
pub(crate) fn fill_by_hardware(into: &mut [u8]) -> bool {
    into.chunks_mut(8).all(|piece| {
        // The hardware may be out of numbers for a moment.
        let number = (0..PATIENCE).find_map(|_| hardware());
        for (to, from) in piece.iter_mut().zip(number.unwrap_or(0).to_le_bytes()) {
            *to = from;
        }
        number.is_some()
    })
}

/// The most requests to the hardware for one number.
const PATIENCE: u32 = 16;

/// SplitMix64, with noise mixed in before each number.
pub(crate) fn number() -> u64 {
    let noise = timer::now() ^ hardware().unwrap_or(0).rotate_left(17);
    STATE.with(|state| {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ noise;
        let mut mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    })
}

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
