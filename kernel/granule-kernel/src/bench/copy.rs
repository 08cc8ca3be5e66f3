//! The cost of copying memory with the plainest fast loop, load pairs and store pairs, four lines a round:
//! `granule.bench=copy[:BYTES]`. `granule bench kexec` compares the relocation's own loop with it.

#![allow(unsafe_code, reason = "blocks of memory that the benchmark owns")]

use super::support::{Block, ok};
use crate::arch::counter::InstructionCounter;
use crate::dev::console::println;
use core::arch::asm;

/// Default number of bytes to copy: a multiple of what a round moves, and of every page size.
pub(super) const BYTES: u64 = 1 << 20;

/// Copies `bytes`, a power of two, and prints the number of instructions.
pub(super) fn run(bytes: u64, counter: Option<&InstructionCounter>) {
    let Some(counter) = counter else {
        println!(
            "granule: granule.bench=copy counts instructions: granule.count=instructions is missing; ignored"
        );
        return;
    };
    let bytes = bytes.next_power_of_two().max(BYTES);
    let (from, to) = (Block::new(bytes), Block::new(bytes));
    fill(&from);
    let ((), count) = counter.measure(|| copy(&from, &to));
    let instructions = ok("counting instructions", count);
    assert!(same(&from, &to), "the yardstick did not copy");
    println!("@granule bench.copy.bytes={bytes}");
    println!("@granule bench.copy.instructions={instructions}");
    from.free();
    to.free();
}

fn words(block: &Block) -> *mut u64 {
    block.start as *mut u64
}

fn fill(block: &Block) {
    for index in 0..block.bytes() as usize / 8 {
        // SAFETY: inside the block, which the caller owns and which is writable RAM.
        unsafe { words(block).add(index).write(index as u64 | 1 << 63) };
    }
}

fn same(one: &Block, other: &Block) -> bool {
    (0..one.bytes() as usize / 8).all(|index| {
        // SAFETY: as in `fill`; both blocks have the same size.
        let pair = unsafe { (words(one).add(index).read(), words(other).add(index).read()) };
        pair.0 == pair.1
    })
}

fn copy(from: &Block, to: &Block) {
    // SAFETY: the caller owns both blocks, which have the same size, a multiple of 256 bytes.
    unsafe {
        asm!(
            "2:",
            "ldp {a}, {b}, [{from}], #256",
            "ldp {c}, {d}, [{from}, #-240]",
            "ldp {e}, {f}, [{from}, #-224]",
            "ldp {g}, {h}, [{from}, #-208]",
            "stp {a}, {b}, [{to}], #256",
            "stp {c}, {d}, [{to}, #-240]",
            "stp {e}, {f}, [{to}, #-224]",
            "stp {g}, {h}, [{to}, #-208]",
            "ldp {a}, {b}, [{from}, #-192]",
            "ldp {c}, {d}, [{from}, #-176]",
            "ldp {e}, {f}, [{from}, #-160]",
            "ldp {g}, {h}, [{from}, #-144]",
            "stp {a}, {b}, [{to}, #-192]",
            "stp {c}, {d}, [{to}, #-176]",
            "stp {e}, {f}, [{to}, #-160]",
            "stp {g}, {h}, [{to}, #-144]",
            "ldp {a}, {b}, [{from}, #-128]",
            "ldp {c}, {d}, [{from}, #-112]",
            "ldp {e}, {f}, [{from}, #-96]",
            "ldp {g}, {h}, [{from}, #-80]",
            "stp {a}, {b}, [{to}, #-128]",
            "stp {c}, {d}, [{to}, #-112]",
            "stp {e}, {f}, [{to}, #-96]",
            "stp {g}, {h}, [{to}, #-80]",
            "ldp {a}, {b}, [{from}, #-64]",
            "ldp {c}, {d}, [{from}, #-48]",
            "ldp {e}, {f}, [{from}, #-32]",
            "ldp {g}, {h}, [{from}, #-16]",
            "stp {a}, {b}, [{to}, #-64]",
            "stp {c}, {d}, [{to}, #-48]",
            "stp {e}, {f}, [{to}, #-32]",
            "stp {g}, {h}, [{to}, #-16]",
            "subs {bytes}, {bytes}, #256",
            "b.ne 2b",
            from = inout(reg) from.start => _,
            to = inout(reg) to.start => _,
            bytes = inout(reg) to.bytes() => _,
            a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
            e = out(reg) _, f = out(reg) _, g = out(reg) _, h = out(reg) _,
            options(nostack)
        );
    }
}
