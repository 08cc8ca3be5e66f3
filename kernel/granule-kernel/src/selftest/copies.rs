//! `granule.test=copies`: copies of every length up to a few rounds of `memcpy`, from and to every alignment, with
//! unaligned accesses forbidden (SCTLR.A), as they are with the MMU off.

#![allow(unsafe_code, reason = "SCTLR.A for the time of the copies")]

use crate::arch::cpu;
use crate::dev::console::println;
use core::hint::black_box;
use granule_kcore::parameters::Parameters;

/// Bytes of the longest copy: two rounds of 64 and all that can be left.
const MOST: usize = 200;
/// Bytes round the copy that must stay as they are.
const MARGIN: usize = 16;
const ROOM: usize = MOST + 2 * MARGIN + 8;
const ALIGNMENT_CHECK: u64 = 1 << 1;

#[repr(align(8))]
struct Words([u8; ROOM]);

#[inline(never)]
pub(super) fn run(parameters: &Parameters<'_>) {
    if !parameters.test.asks_for(b"copies") {
        return;
    }
    let before = cpu::sctlr_el1();
    // SAFETY: the bit makes unaligned accesses fault, and the kernel makes none.
    unsafe { cpu::set_sctlr_el1(before | ALIGNMENT_CHECK) };
    let mut from = Words([0; ROOM]);
    for (index, byte) in from.0.iter_mut().enumerate() {
        *byte = (index * 7 + index / 256) as u8 | 1;
    }
    let mut copies = 0;
    for (source, destination) in (0..8).flat_map(|source| (0..8).map(move |to| (source, to))) {
        for bytes in 0..=MOST {
            let mut to = Words([0; ROOM]);
            let (source, begin) = (MARGIN + source, MARGIN + destination);
            let range = source..source + black_box(bytes);
            if let (Some(from), Some(to)) = (from.0.get(range), to.0.get_mut(begin..begin + bytes))
            {
                to.copy_from_slice(black_box(from));
            }
            for (index, byte) in black_box(&to).0.iter().enumerate() {
                let copied = (begin..begin + bytes).contains(&index);
                let expected = from
                    .0
                    .get(source + index.wrapping_sub(begin))
                    .filter(|_| copied);
                assert_eq!(
                    *byte,
                    expected.copied().unwrap_or(0),
                    "{source} {begin} {bytes} {index}"
                );
            }
            copies += 1;
        }
    }
    // SAFETY: the value from before.
    unsafe { cpu::set_sctlr_el1(before) };
    println!("granule: {copies} copies are right");
}
