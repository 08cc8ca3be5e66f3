//! System calls of every number with arguments of every kind, from a seed: many children each make
//! some, and whatever becomes of them, nobody else notices.
//!
//! The second argument is the seed, the third how many children there are. Each child is a process
//! group of its own, with memory of every kind, a pipe, a directory, the console, and its output
//! nowhere; it may end, run something else, or wait for ever, and is ended then.

#![allow(unsafe_code, reason = "memory that the test mapped")]

use super::{End, KERNEL, UPPER, Victim, end_of};
use crate::check;
use crate::tests::memory::mapped;
use crate::tests::processes::forked;
use crate::tests::{number, page};
use granule_programs::calls::{
    self, CLONE, CLOSE_RANGE, HERE, KILL, PIPE2, SIGKILL, call, protect, say, unmap,
};
use granule_programs::start::Start;

/// Calls of each child.
const CALLS: u64 = 150;
/// Numbers of calls are below this.
const NUMBERS: u64 = 1001;
/// A child that takes longer than so many milliseconds waits for what does not come.
const PATIENCE_MS: u64 = 60;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    fn one_of(&mut self, values: &[u64]) -> u64 {
        let index = self.below(values.len() as u64) as usize;
        values.get(index).copied().unwrap_or(0)
    }
}

/// Numbers of calls that do something.
const KNOWN: &[u64] = &[
    17, 24, 25, 29, 49, 56, 57, 59, 61, 62, 63, 64, 71, 73, 78, 79, 80, 96, 99, 101, 113, 115, 124,
    129, 130, 131, 132, 134, 135, 137, 139, 157, 160, 166, 167, 168, 172, 173, 174, 175, 176, 177,
    179, 214, 215, 220, 221, 222, 226, 233, 260, 261, 278, 436,
];

/// Flags, sizes, commands, requests, masks, and edges of all widths.
const VALUES: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    10,
    16,
    17,
    19,
    32,
    63,
    64,
    255,
    256,
    0x11,
    0x22,
    0x32,
    0x4111,
    0x5421,
    1024,
    4095,
    4096,
    0x1000_0000,
    0x10_0022,
    0x100_0011,
    0x20_0011,
    0o4000,
    0o2000000,
    0o40000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    1 << 40,
    1 << 47,
    1 << 48,
    i64::MAX as u64,
    1 << 63,
    HERE,
    -1_i64 as u64,
    -2_i64 as u64,
    -4096_i64 as u64,
];

/// Memory of a child, of every kind.
struct Arena {
    page: u64,
    at: u64,
}

const ARENA_PAGES: u64 = 16;

impl Arena {
    fn new(page: u64, random: &mut Random) -> Self {
        let at = mapped(ARENA_PAGES * page);
        for word in (at..at + 4 * page).step_by(8) {
            // Half of it are small numbers: lengths, times, descriptors; then addresses in here.
            let value = match random.below(8) {
                0..4 => random.below(20),
                4 => at + random.below(ARENA_PAGES * page),
                5 => random.one_of(VALUES),
                6 => 0,
                _ => random.next(),
            };
            // SAFETY: just mapped.
            unsafe { (word as *mut u64).write_volatile(value) };
        }
        for (index, path) in [c"/init", c"/", c"/dev/null", c"/proc/self/exe"]
            .iter()
            .enumerate()
        {
            for (offset, byte) in path.to_bytes_with_nul().iter().enumerate() {
                let to = at + index as u64 * 64 + offset as u64;
                // SAFETY: just mapped.
                unsafe { (to as *mut u8).write_volatile(*byte) };
            }
        }
        unmap(at + 6 * page, page);
        protect(at + 8 * page, page, 1);
        protect(at + 10 * page, page, 0);
        protect(at + 12 * page, page, 5);
        Self { page, at }
    }

    fn pointer(&self, random: &mut Random) -> u64 {
        let bytes = ARENA_PAGES * self.page;
        match random.below(12) {
            // One of the paths.
            0..3 => self.at + 64 * random.below(4),
            3..6 => self.at + 8 * random.below(4 * self.page / 8),
            6 => self.at + random.below(bytes),
            // Just before what is not there, or is of another kind.
            7 => self.at + self.page * random.below(ARENA_PAGES) - random.below(40),
            8 => self.at + self.page * random.below(ARENA_PAGES),
            9 => KERNEL + random.below(1 << 24),
            10 => UPPER,
            _ => random.next(),
        }
    }
}

fn argument(random: &mut Random, arena: &Arena, last: u64) -> u64 {
    match random.below(16) {
        0..6 => arena.pointer(random),
        6..11 => random.one_of(VALUES),
        11..13 => random.below(24),
        13 => random.next() >> random.below(64),
        14 => last,
        _ => 0,
    }
}

const EXIT: [u64; 2] = [93, 94];
const TO_OTHERS: [u64; 3] = [129, 130, 131];
/// Those that wait, or end the run, more often than not.
const WAITING: [u64; 4] = [133, 139, 73, 137];

fn calls_of(seed: u64, page: u64) -> i32 {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let own = call(calls::GETPID, []) as u64;
    let arena = Arena::new(page, &mut random);
    let mut last = 0;
    for _ in 0..CALLS {
        let number = match random.below(2) {
            0 => random.below(NUMBERS),
            _ => random.one_of(KNOWN),
        };
        let rare = EXIT.contains(&number) || WAITING.contains(&number);
        if rare && random.below(16) > 0 {
            continue;
        }
        let mut arguments = [0; 6];
        for to in &mut arguments {
            *to = argument(&mut random, &arena, last);
        }
        let [first, second, ..] = &mut arguments;
        // Everyone is root here: whom a signal is for is not left to chance.
        if TO_OTHERS.contains(&number) {
            *first = random.one_of(&[own, 0, own.wrapping_neg(), 30_000, i64::MIN as u64]);
            if number != 129 {
                *first = own;
                *second = if number == 131 { own } else { *second };
            }
        }
        // Often enough what makes a child; that goes on with the same calls.
        if number == CLONE && random.below(2) == 0 {
            *first = random.one_of(&[0x11, 0, 0x1200011, 0x100_0011]);
            *second = 0;
        }
        last = call(number, arguments) as u64;
    }
    0
}

/// Input is a directory, output nowhere; a pipe, the console and files beside.
fn set_up_files() {
    let open =
        |path: &core::ffi::CStr, flags: u64| call(56, [HERE, path.as_ptr() as u64, flags]) as u64;
    call(CLOSE_RANGE, [3, 63]);
    let (folder, null) = (open(c"/", 0), open(c"/dev/null", 2));
    for (from, to) in [(folder, 0), (null, 1), (null, 2)] {
        call(24, [from, to]);
    }
    open(c"/init", 0);
    // Only for queries: it writes nowhere.
    open(c"/dev/console", 0o4000);
    open(c"/dev/zero", 2);
    let pipes = [0_u32; 2];
    for flags in [0, 0o4000] {
        call(PIPE2, [pipes.as_ptr() as u64, flags]);
    }
}

pub(in crate::tests) fn random(start: Start) {
    let page = page(start);
    let (seed, children) = (number(start.argument(2)), number(start.argument(3)));
    let victim = Victim::new(page);
    let (mut all, mut ended, mut too_long) = (0_u64, 0_u64, 0_u64);
    for index in 0..children {
        let pid = forked(|| {
            // Leads a group of its own, which ends with it.
            call(157, []);
            set_up_files();
            calls_of(seed + index, page)
        });
        match end_of(pid, PATIENCE_MS) {
            End::Status(0) => all += 1,
            End::Status(_) => ended += 1,
            End::TooLong => too_long += 1,
        }
        // Its children.
        call(KILL, [pid.wrapping_neg() as u64, SIGKILL]);
        while matches!(calls::call(calls::WAIT4, [u64::MAX, 0, 1]), 1..) {}
    }
    victim.looks_again();
    victim.end();
    say(format_args!(
        "seed {seed}: {all} made all of {CALLS} calls, {ended} ended before, {too_long} waited too long\n"
    ));
    check!(all > children / 8, "too few made all calls");
    say(format_args!("random\n"));
}
