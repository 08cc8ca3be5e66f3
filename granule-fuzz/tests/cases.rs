//! Each target on 10 000 cases, on stable Rust: random bytes, and random changes of a few
//! beginnings that get further.

use granule_fuzz::TARGETS;

const CASES: u64 = 10_000;

/// xorshift64*: the same cases on every machine for a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Texts that the parsers know, to be damaged.
const TEXTS: &[&str] = &[
    "arm64.pagesize=16k arm64.vabits=48 rodata=\"on\" -- x",
    "@granule page_size=4096\n@granule linear_map.leaf=65536,true,3\n@granule end\n",
    "512G",
    "tlbi cpu0 vaae1is 0x0000000080000",
    "store cpu0 0x40000000 0x40001003 release\nisb cpu1\ndsb cpu0 ish\n",
    "0x4020_0000",
];

fn case(random: &mut Random) -> Vec<u8> {
    let length = (random.next() % 300) as usize;
    let mut bytes: Vec<u8> = match random.next() % 3 {
        0 => (0..length).map(|_| random.next() as u8).collect(),
        // Mostly small numbers: offsets, levels, valid table descriptors.
        1 => (0..length).map(|_| (random.next() % 4) as u8).collect(),
        _ => TEXTS[(random.next() % TEXTS.len() as u64) as usize].into(),
    };
    for _ in 0..random.next() % 4 {
        if !bytes.is_empty() {
            let at = (random.next() % bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
    }
    bytes
}

#[test]
fn every_target_survives() {
    let seed = std::env::var("GRANULE_FUZZ_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(1);
    for (name, run) in TARGETS {
        let mut random = Random(seed);
        for number in 0..CASES {
            let bytes = case(&mut random);
            let survived = std::panic::catch_unwind(|| run(&bytes)).is_ok();
            assert!(
                survived,
                "{name}: case {number} of GRANULE_FUZZ_SEED={seed}: {bytes:02x?}"
            );
        }
    }
    println!(
        "{} targets, {CASES} cases each, GRANULE_FUZZ_SEED={seed}",
        TARGETS.len()
    );
}
