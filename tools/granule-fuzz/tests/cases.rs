//! Each target on 5000 cases, on stable Rust: random bytes, and random changes of beginnings that get further: a few
//! texts, and the real files of the target's folders in `corpus`.

#![allow(clippy::unwrap_used)]

use granule_fuzz::TARGETS;
use std::collections::BTreeSet;
use std::path::Path;

/// Cases of each target.
const CASES: u64 = 5_000;

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

/// Texts that the parsers accept, to be damaged.
const TEXTS: &[&str] = &[
    "arm64.pagesize=16k arm64.vabits=48 rodata=\"on\" -- x",
    "@granule page_size=4096\n@granule linear_map.leaf=65536,true,3\n@granule end\n",
    "@granule page_size=4096\n@granule kexec.leaving.dsb=2\n@granule outcome=ok\n@granule end\n\
     @granule page_size=65536\n@granule end\n",
    "512G",
    "bench begin page=4096 bytes=8192 pages=2 rounds=1 frequency=62500000\n\
     bench op=fork best=1 median=2 worst=3 at=0\nbench end ops=1 timed=1\n",
    "tlbi cpu0 vaae1is 0x0000000080000",
    "store cpu0 0x40000000 0x40001003 release\nisb cpu1\ndsb cpu0 ish\n",
    "0x4020_0000",
    "earlycon=pl011,mmio32,0x9000000,115200n8 console=ttyAMA0",
    "console=ttyS1,115200 earlycon=uart8250,mmio16,0x1c090000",
    "x granule.trace=0x13f000000,0x1000000 rodata=on",
    "granule.trace=\"0X40000000,0x10000\"",
    "arm64.fake_cpu=2:parange=0,bbm=1 arm64.fake_cpu=3:midr=0x410fd034 linear_map=base",
    "GRANULE-BOOTREC\0\u{1}\0\0\0\u{3}\0\0\0\u{7}\0\0\0\u{8}\0\0\0bad tree",
];

/// A case of random bytes, a text or a file, damaged. Files are long, so few cases are one.
fn made(random: &mut Random, files: &[Vec<u8>]) -> Vec<u8> {
    let length = (random.next() % 300) as usize;
    let mut bytes: Vec<u8> = match random.next() % 24 {
        0 if !files.is_empty() => files[(random.next() % files.len() as u64) as usize].clone(),
        0..8 => (0..length).map(|_| random.next() as u8).collect(),
        // Mostly small numbers: offsets, levels, valid table descriptors.
        8..16 => (0..length).map(|_| (random.next() % 4) as u8).collect(),
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

/// The real files of a format.
fn files(folder: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(folder);
    let files = std::fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    // In one order on every machine.
    let files: BTreeSet<_> = files.collect();
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

/// The number in an environment variable, or what there is without it.
fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => match text.parse() {
            Ok(number) => number,
            Err(error) => panic!("{name}={text} is not a number: {error}"),
        },
        Err(_) => otherwise,
    }
}

/// `GRANULE_FUZZ_TARGET`, or all; each on `GRANULE_FUZZ_CASES` cases.
#[test]
fn every_target_survives() {
    let seed = number("GRANULE_FUZZ_SEED", 1);
    let most = number("GRANULE_FUZZ_CASES", CASES);
    let only = std::env::var("GRANULE_FUZZ_TARGET").ok();
    let targets = TARGETS
        .iter()
        .filter(|(name, ..)| only.as_ref().is_none_or(|only| only == name));
    let mut ran = 0;
    for (name, run, corpus) in targets {
        let files: Vec<_> = corpus.iter().flat_map(|folder| files(folder)).collect();
        // 0 is where xorshift stays.
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for case in 0..most {
            let bytes = made(&mut random, &files);
            let survived = std::panic::catch_unwind(|| run(&bytes)).is_ok();
            assert!(
                survived,
                "{name}: case {case} of GRANULE_FUZZ_SEED={seed}: {bytes:02x?}"
            );
        }
        println!("{name}: {most} cases of GRANULE_FUZZ_SEED={seed}");
        ran += 1;
    }
    assert!(ran > 0, "GRANULE_FUZZ_TARGET={only:?} is not a target");
}

/// cargo-fuzz has a lock file of its own, which nothing that is built otherwise reads: what a package of
/// ours depends on must be in there, or the targets no longer build.
#[test]
fn the_targets_lock_file_knows_what_they_depend_on() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = |path: &Path| -> toml::Table {
        let text = std::fs::read_to_string(path);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.parse().unwrap()
    };
    let lock = table(&here.join("fuzz/Cargo.lock"));
    let packages = lock["package"].as_array().unwrap().iter();
    let ours = packages.filter(|package| package.get("source").is_none());
    let mut seen = 0;
    for package in ours {
        let name = package["name"].as_str().unwrap();
        // The targets' own, beside the lock file.
        let folder = match name {
            "granule-fuzz-targets" => here.join("fuzz"),
            other => {
                let root = here.ancestors().nth(2).unwrap();
                let places =
                    ["crates", "kernel", "tools"].map(|group| root.join(group).join(other));
                places.into_iter().find(|place| place.is_dir()).unwrap()
            }
        };
        let known = package.get("dependencies").and_then(|all| all.as_array());
        let known: BTreeSet<_> = known
            .into_iter()
            .flatten()
            .filter_map(|known| known.as_str()?.split(' ').next())
            .collect();
        let manifest = table(&folder.join("Cargo.toml"));
        let wanted = manifest.get("dependencies").and_then(|all| all.as_table());
        let wanted: Vec<_> = wanted.into_iter().flatten().collect();
        let all: BTreeSet<_> = wanted.iter().map(|(name, _)| name.as_str()).collect();
        // An optional one is there if another package needs it.
        let always = |one: &toml::Value| one.get("optional").is_none();
        let least = wanted.iter().filter(|(_, one)| always(one));
        let least: BTreeSet<_> = least.map(|(name, _)| name.as_str()).collect();
        assert!(
            least.is_subset(&known) && known.is_subset(&all),
            "{name} has the dependencies {all:?}, and tools/granule-fuzz/fuzz/Cargo.lock knows {known:?}; write it by \
             `cargo metadata --manifest-path tools/granule-fuzz/fuzz/Cargo.toml`"
        );
        seen += 1;
    }
    assert!(seen > 3, "{seen}");
}
