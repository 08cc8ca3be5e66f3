//! Hostile programs, beside one that checks itself all the time: no other program notices, the
//! kernel goes on, and every frame comes back. The programs are in `granule-user`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Initramfs, Outcome, Request};
use test_case::test_case;

use crate::hooked;
use crate::user::machine::{does, ends, machine, machine_at, program, well};

/// Each of these page sizes, on one CPU and on four, at either level.
#[test_case(&PageSize::ALL, "instructions", "undefined"; "instructions that are not a program's end it")]
#[test_case(&PageSize::ALL, "frames", "returned"; "a handler's frame chooses flags and nothing else")]
#[test_case(&PageSize::ALL, "every-pointer", "every pointer"; "every pointer of every call may be bad")]
#[test_case(&PageSize::ALL, "signal-storm", "stormed"; "signals come from everywhere")]
#[test_case(&PageSize::ALL, "pipe-storm", "piped"; "pipes, descriptors and arguments are used up")]
#[test_case(&[K4], "crowd", "crowded"; "fork bombs that take all memory end with 4K pages")]
#[test_case(&[K16], "crowd", "crowded"; "fork bombs that take all memory end with 16K pages")]
#[test_case(&[K64], "crowd", "crowded"; "fork bombs that take all memory end with 64K pages")]
fn everywhere(sizes: &[PageSize], words: &str, line: &str) {
    for &size in sizes {
        let levels = if size == K16 { [1, 2] } else { [2, 1] };
        for (cpus, el) in [1, 4].into_iter().zip(levels) {
            well(&machine_at(size, cpus, el), words, line);
        }
    }
}

/// Code that becomes data, on a CPU that must see it invalid in between.
#[test]
fn code_that_was_broken_first_is_no_code_any_more() {
    for size in PageSize::ALL {
        let erratum = "cortex-a715-2645198";
        let request = machine(size, 2).append(format!("arm64.errata={erratum}"));
        let ran = well(&request, "instructions", "undefined");
        let errata = ran.json["errata"].as_array().unwrap();
        assert!(errata.iter().any(|name| name == erratum), "{errata:?}");
    }
}

/// `GRANULE_HOSTILE_SEED` and `GRANULE_HOSTILE_CHILDREN` for longer runs.
#[test]
fn calls_of_every_number_with_anything() {
    let number = |name: &str, otherwise: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap(),
        Err(_) => otherwise,
    };
    let children = number("GRANULE_HOSTILE_CHILDREN", 60);
    let mut seed = number("GRANULE_HOSTILE_SEED", 1);
    for (size, cpus, el) in [
        (K4, 1, 1),
        (K4, 4, 2),
        (K16, 4, 1),
        (K16, 1, 2),
        (K64, 4, 2),
        (K64, 1, 1),
    ] {
        let request = machine_at(size, cpus, el).timeout(Duration::from_secs(60 + children));
        well(&request, &format!("random {seed} {children}"), "random");
        seed += children;
    }
}

/// The n-th allocation fails, for every n there is; and all from the n-th on.
#[test]
fn memory_may_run_out_anywhere() {
    for (size, cpus, el, program) in [
        (K4, 1, 2, "4k"),
        (K16, 4, 1, "16k"),
        (K64, 1, 1, "64k"),
        (K4, 1, 1, "64k"),
        (K16, 4, 1, "4k"),
        (K64, 1, 2, "4k"),
        (K64, 4, 1, "4k"),
    ] {
        let request = machine_at(size, cpus, el).append(format!(
            "granule.test=alloc-failure user_pagesize={program}"
        ));
        well(&request, "alloc-failure", "alloc-failure");
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) as usize % limit
    }
}

/// A program of a few instructions, which ends with 5: two segments, the second one data.
fn small() -> Vec<u8> {
    let mut file = vec![0; 0x200];
    file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    (file[16], file[18], file[20]) = (2, 183, 1);
    file[24..32].copy_from_slice(&0x20_0100_u64.to_le_bytes());
    (file[32], file[52], file[54], file[56], file[58]) = (64, 64, 56, 2, 64);
    let segments: [(u32, [u64; 6]); 2] = [
        (5, [0, 0x20_0000, 0x20_0000, 0x180, 0x180, 0x1_0000]),
        (6, [0x180, 0x21_0180, 0x21_0180, 0x80, 0x3_0000, 0x1_0000]),
    ];
    for (index, (flags, words)) in segments.into_iter().enumerate() {
        let at = 64 + 56 * index;
        file[at] = 1;
        file[at + 4..at + 8].copy_from_slice(&flags.to_le_bytes());
        for (word, value) in words.into_iter().enumerate() {
            file[at + 8 + 8 * word..][..8].copy_from_slice(&value.to_le_bytes());
        }
    }
    // mov x0, #5; mov x8, #94; svc #0.
    let code = [0xd280_00a0_u32, 0xd280_0bc8, 0xd400_0001].map(u32::to_le_bytes);
    file[0x100..0x10c].copy_from_slice(code.as_flattened());
    file
}

/// Damages a program: bytes of its headers or of all of it, whole words that overflow what they are
/// added to, or its end.
fn damaged(random: &mut Random, sound: &[u8]) -> Vec<u8> {
    const WORDS: [u64; 8] = [
        0,
        1,
        u64::MAX,
        1 << 63,
        1 << 48,
        (1 << 48) - 0x1_0000,
        0xffff_ffff_8000_0000,
        0x20_0000,
    ];
    let mut file = sound.to_vec();
    for _ in 0..=random.below(3) {
        let reach = if random.below(4) == 0 {
            file.len()
        } else {
            0xb0
        };
        match random.below(3) {
            0 => file[random.below(reach)] = random.below(256) as u8,
            1 => file[random.below(reach)] ^= 1 << random.below(8),
            _ => {
                let at = random.below(reach.min(file.len() - 8)) & !7;
                file[at..at + 8].copy_from_slice(&WORDS[random.below(8)].to_le_bytes());
            }
        }
    }
    if random.below(6) == 0 {
        file.truncate(random.below(file.len()));
    }
    file
}

#[test]
fn damaged_programs_are_refused_or_end_themselves() {
    let real = program();
    for (seed, (size, cpus)) in [(K4, 4), (K16, 1), (K64, 4)].into_iter().enumerate() {
        let mut random = Random(seed as u64 + 1);
        let mut archive = Initramfs::new()
            .program("/init", &real)
            .directory("/bad")
            .program("/bad/sound", &small());
        for index in 0..300 {
            let file = damaged(&mut random, &small());
            archive = archive.program(&format!("/bad/small{index}"), &file);
        }
        for index in 0..20 {
            let file = damaged(&mut random, &real);
            archive = archive.program(&format!("/bad/real{index}"), &file);
        }
        let request = machine(size, cpus).append("-- malformed");
        let ran = ends(&request, archive, Outcome::Ok);
        ran.prints_line("malformed");
        ran.frames_came_back();
        // Something of both kinds was tried.
        let counts = ran
            .console
            .lines()
            .find(|line| line.starts_with("programs: "));
        let counts: Vec<u32> = counts
            .unwrap()
            .split([' ', ','])
            .filter_map(|word| word.parse().ok())
            .collect();
        assert_eq!(counts.iter().sum::<u32>(), 321, "{counts:?}");
        assert!(counts[0] > 50 && counts[1] > 50, "{counts:?}");
    }
}

/// With FEAT_E0PD a read of the kernel's image faults at level 0, as where nothing is mapped; without it, at that of the
/// leaf. QEMU's log has the syndrome: a data abort from EL0, DFSC 0b0001LL (translation) or 0b0011LL (permission).
#[test]
fn timing_shows_nothing_of_the_kernel_half() {
    for (cpu, at_level_0) in [("max", true), ("cortex-a72", false)] {
        let folder = tempfile::tempdir().unwrap();
        let qemu = folder.path().join("qemu-with-log");
        let log = folder.path().join("log");
        let usual = hooked::qemu();
        let script = format!(
            "#!/bin/sh\nexec {} \"$@\" -d int -D {}\n",
            usual.display(),
            log.display()
        );
        std::fs::write(&qemu, script).unwrap();
        std::fs::set_permissions(&qemu, Permissions::from_mode(0o755)).unwrap();
        let request = Request {
            cpu: cpu.into(),
            qemu,
            ..machine(K4, 1)
        };
        does(&request, "fault 4", Outcome::GuestExit);
        let log = std::fs::read_to_string(&log).unwrap();
        // The syndrome comes some lines before the address.
        let (before, _) = log.split_once("with FAR 0xffffffff80000000").unwrap();
        let (_, syndrome) = before.rsplit_once("with ESR 0x24/0x920000").unwrap();
        assert_eq!(
            &syndrome[..2] == "04",
            at_level_0,
            "{cpu}: 0x920000{syndrome}"
        );
    }
}
