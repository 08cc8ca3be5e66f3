//! Hostile programs, beside one that checks itself all the time: no other program notices, the
//! kernel goes on, and every frame comes back. The programs are in `granule-user`.

use std::time::Duration;

use granule_cli::{Initramfs, Outcome, PageSize, Request};

use crate::user::machine::{ends, machine, program, well};

/// Every page size, on one CPU and on four, at either level.
fn everywhere(words: &str, line: &str) {
    for size in [PageSize::K4, PageSize::K16, PageSize::K64] {
        with_pages_of(size, words, line);
    }
}

fn with_pages_of(size: PageSize, words: &str, line: &str) {
    let levels = if size == PageSize::K16 {
        [1, 2]
    } else {
        [2, 1]
    };
    for (cpus, el) in [1, 4].into_iter().zip(levels) {
        let request = Request {
            el,
            ..machine(size, cpus)
        };
        well(&request, words, line);
    }
}

#[test]
fn instructions_that_are_not_a_program_s_end_it() {
    everywhere("instructions", "undefined");
}

/// Code that becomes data, on a CPU that must see it invalid in between.
#[test]
fn code_that_was_broken_first_is_no_code_any_more() {
    for size in [PageSize::K4, PageSize::K16, PageSize::K64] {
        let erratum = "cortex-a715-2645198";
        let request = Request {
            append: Some(format!("arm64.errata={erratum}")),
            ..machine(size, 2)
        };
        let ran = well(&request, "instructions", "undefined");
        let errata = ran.json["errata"].as_array().unwrap();
        assert!(errata.iter().any(|name| name == erratum), "{errata:?}");
    }
}

#[test]
fn a_handler_s_frame_chooses_flags_and_nothing_else() {
    everywhere("frames", "returned");
}

#[test]
fn every_pointer_of_every_call_may_be_bad() {
    everywhere("every-pointer", "every pointer");
}

#[test]
fn fork_bombs_that_take_all_memory_end_with_4k_pages() {
    with_pages_of(PageSize::K4, "crowd", "crowded");
}

#[test]
fn fork_bombs_that_take_all_memory_end_with_16k_pages() {
    with_pages_of(PageSize::K16, "crowd", "crowded");
}

#[test]
fn fork_bombs_that_take_all_memory_end_with_64k_pages() {
    with_pages_of(PageSize::K64, "crowd", "crowded");
}

#[test]
fn signals_come_from_everywhere() {
    everywhere("signal-storm", "stormed");
}

#[test]
fn pipes_descriptors_and_arguments_are_used_up() {
    everywhere("pipe-storm", "piped");
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
        (PageSize::K4, 1, 1),
        (PageSize::K4, 4, 2),
        (PageSize::K16, 4, 1),
        (PageSize::K16, 1, 2),
        (PageSize::K64, 4, 2),
        (PageSize::K64, 1, 1),
    ] {
        let request = Request {
            el,
            timeout: Duration::from_secs(60 + children),
            ..machine(size, cpus)
        };
        well(&request, &format!("random {seed} {children}"), "random");
        seed += children;
    }
}

/// The n-th allocation fails, for every n there is; and all from the n-th on.
#[test]
fn memory_may_run_out_anywhere() {
    for (size, cpus, el, program) in [
        (PageSize::K4, 1, 2, "4k"),
        (PageSize::K16, 4, 1, "16k"),
        (PageSize::K64, 1, 1, "64k"),
        (PageSize::K4, 1, 1, "64k"),
        (PageSize::K16, 4, 1, "4k"),
        (PageSize::K64, 1, 2, "4k"),
        (PageSize::K64, 4, 1, "4k"),
    ] {
        let request = Request {
            el,
            append: Some(format!(
                "granule.test=alloc-failure user_pagesize={program}"
            )),
            ..machine(size, cpus)
        };
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
    for (index, word) in [0xd280_00a0_u32, 0xd280_0bc8, 0xd400_0001]
        .iter()
        .enumerate()
    {
        file[0x100 + 4 * index..][..4].copy_from_slice(&word.to_le_bytes());
    }
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
    for (seed, (size, cpus)) in [(PageSize::K4, 4), (PageSize::K16, 1), (PageSize::K64, 4)]
        .into_iter()
        .enumerate()
    {
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
        let request = Request {
            append: Some("-- malformed".into()),
            ..machine(size, cpus)
        };
        let ran = ends(&request, archive, Outcome::Ok);
        assert!(ran.prints("malformed"), "{}", ran.console);
        let frames = |when| ran.number(&format!("user.frames_{when}"));
        assert_eq!(frames("before"), frames("after"));
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
