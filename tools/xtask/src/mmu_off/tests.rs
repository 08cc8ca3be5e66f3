//! Synthetic call graphs for the check of MMU-off code: each rule fails on the smallest program that breaks
//! it, and passes on one that does not.

use super::*;
use xtask::test_elf::{TestElf, sym};

const RET: u32 = 0xd65f_03c0;
const NOP: u32 = 0xd503_201f;
const BLR_X8: u32 = 0xd63f_0100;
const BR_X10: u32 = 0xd61f_0140;
const ADD_X10: u32 = 0x8b0b_094a; // add x10, x10, x11, lsl #2
const ERET: u32 = 0xd69f_03e0;
const LDXR: u32 = 0xc85f_7c20;
const ZVA: u32 = 0xd50b_7420;
const FMOV: u32 = 0x9e67_0000;

const RULES: Rules = Rules {
    roots: &[("_start", "test")],
    stops: &[("enable_mmu_and_jump", "test")],
    indirect: &[],
    calls_firmware: false,
    bounds: &[],
    relocated: true,
};

const WITHOUT_STOPS: Rules = Rules {
    stops: &[],
    ..RULES
};

fn bl(from: u64, to: u64) -> u32 {
    0x9400_0000 | ((to.wrapping_sub(from) / 4) as u32 & 0x03ff_ffff)
}

fn b(from: u64, to: u64) -> u32 {
    0x1400_0000 | ((to.wrapping_sub(from) / 4) as u32 & 0x03ff_ffff)
}

fn adr(rd: u32, from: u64, to: u64) -> u32 {
    let offset = to.wrapping_sub(from) as u32;
    0x1000_0000 | (offset & 3) << 29 | (offset >> 2 & 0x7_ffff) << 5 | rd
}

fn adrp(rd: u32, from: u64, to: u64) -> u32 {
    let pages = ((to >> 12).wrapping_sub(from >> 12)) as u32;
    0x9000_0000 | (pages & 3) << 29 | (pages >> 2 & 0x7_ffff) << 5 | rd
}

fn add(rd: u32, rn: u32, imm: u32) -> u32 {
    0x9100_0000 | imm << 10 | rn << 5 | rd
}

/// `_start` calls `mmu_off_main`, which calls `helper` and ends in `enable_mmu_and_jump`. A test supplies
/// `helper`. Unreachable code is full of hazards.
fn program(helper: &[u32]) -> Program {
    let mut words = vec![NOP; 0x80];
    words[0] = b(0, 0x40);
    words[1..16].fill(LDXR);
    words[16] = bl(0x40, 0x80);
    // The check cannot know that the call does not return.
    words[17] = RET;
    words[18..32].fill(LDXR);
    words[32] = bl(0x80, 0x100);
    words[33] = b(0x84, 0xc0);
    words[34..64].fill(LDXR);
    words[64..64 + helper.len()].copy_from_slice(helper);
    let mut program = Program::default();
    program.add_code(0, words);
    program.add_symbol("_start", 0, 0, false);
    program.add_symbol("primary_entry", 0x40, 0, false);
    program.add_symbol("kernel::mmu_off_main", 0x80, 8, true);
    program.add_symbol("enable_mmu_and_jump", 0xc0, 0x40, true);
    program.add_symbol("helper", 0x100, 4 * helper.len() as u64, true);
    program.add_symbol("core::fmt::write", 0x180, 0x10, true);
    program.add_symbol("other", 0x190, 0x10, true);
    program
}

/// The program with other words at these addresses of its code.
fn patched(helper: &[u32], patches: &[(u64, u32)]) -> Program {
    let program = program(helper);
    let mut words: Vec<u32> = (0..0x80).map(|i| program.word(i * 4).unwrap()).collect();
    for (address, word) in patches {
        words[(address / 4) as usize] = *word;
    }
    let mut fresh = Program::default();
    fresh.add_code(0, words);
    for s in (0..0x200).step_by(4).flat_map(|at| program.symbols_at(at)) {
        fresh.add_symbol(&s.name, s.address, s.size, s.function);
    }
    fresh
}

/// Checks that there is no finding, or one with this text.
fn expect(program: &Program, rules: &Rules, expected: &str) {
    let found = check(program, rules).findings;
    match found.as_slice() {
        [] => assert_eq!("", expected),
        [one] if !expected.is_empty() => assert!(one.contains(expected), "{expected}: {one}"),
        _ => panic!("expected {expected:?}: {found:#?}"),
    }
}

#[test]
fn clean_code_is_counted() {
    let report = check(&program(&[NOP, RET]), &RULES);
    assert_eq!(report.findings, Vec::<String>::new());
    assert_eq!(report.functions, 4);
    assert_eq!(report.instructions, 1 + 2 + 2 + 2);
}

const EXCLUSIVE: &str = "load/store exclusive: helper+0x4 at 0x104, word 0xc85f7c20, path _start > primary_entry > \
                         kernel::mmu_off_main > helper";

#[test]
fn each_helper_is_judged_by_the_rules() {
    let helpers: &[(&[u32], &str)] = &[
        (&[NOP, LDXR, RET], EXCLUSIVE),
        (&[ZVA, RET], "DC ZVA"),
        (&[FMOV, RET], "SIMD"),
        // Code after a return is not judged, but targets of branches are: cbz x0, .+8.
        (&[RET, LDXR], ""),
        (&[0xb400_0040, RET, LDXR, RET], "helper+0x8"),
        // Panics and formatting: called, jumped to, and by their address.
        (&[bl(0x100, 0x180), RET], "core::fmt::write"),
        (&[b(0x100, 0x180)], "panic or formatting"),
        (
            &[adr(0, 0x100, 0x180), RET],
            "takes the address of panic or formatting",
        ),
        (
            &[adrp(3, 0x100, 0x180), NOP, add(0, 3, 0x180), RET],
            "takes the address of",
        ),
        // A local label is followed past ERET.
        (&[adr(0, 0x100, 0x108), ERET, LDXR, RET], "helper+0x8"),
        (&[BLR_X8, RET], "calls through x8"),
        (&[BR_X10], "jumps through x10"),
        // A jump table: the whole function is checked.
        (&[adr(10, 0x100, 0x10c), ADD_X10, BR_X10, RET, NOP, RET], ""),
        (
            &[adr(10, 0x100, 0x10c), ADD_X10, BR_X10, RET, LDXR, RET],
            "helper+0x10",
        ),
    ];
    for (helper, expected) in helpers {
        expect(&program(helper), &RULES, expected);
    }
    let allowed = Rules {
        indirect: &[("helper", "test")],
        ..RULES
    };
    expect(&program(&[BLR_X8, RET]), &allowed, "");
    let firmware = Rules {
        calls_firmware: true,
        ..RULES
    };
    expect(&program(&[BLR_X8, RET]), &firmware, "");
    // A jump is not a call, and the code after the call is checked.
    expect(&program(&[BR_X10]), &firmware, "jumps through x10");
    expect(&program(&[BLR_X8, LDXR, RET]), &firmware, "helper+0x4");
}

#[test]
fn taken_addresses_are_followed() {
    let with_other = patched(&[adr(0, 0x100, 0x190), RET], &[(0x190, LDXR), (0x194, RET)]);
    expect(&with_other, &RULES, "helper > other");
    let bounded = Rules {
        bounds: &[("other", "a section's end")],
        ..RULES
    };
    expect(&with_other, &bounded, "");
}

/// Data at 0x3000 was relocated: a load of it is reported under the rule, and only then.
#[test]
fn relocated_data_is_out_of_reach_once_it_is_relocated_for_another_address() {
    let secondary = Rules {
        relocated: false,
        ..RULES
    };
    let judge = |helper: &[u32], relocated: Range<u64>, rules: &Rules, expected: &str| {
        let mut program = program(helper);
        program.add_relocated(relocated);
        expect(&program, rules, expected);
    };
    let (data, elsewhere) = (0x3000..0x3010, 0x5000..0x5008);
    let found = "reaches for relocated data, which holds virtual addresses by now: helper at 0x100";
    // ldr x0, [x3, #8] behind the page; an address whole; a word of the literal pool.
    let by_page = [adrp(3, 0x100, 0x3000), 0xf940_0460, RET];
    let whole = [adr(0, 0x100, 0x3008), RET];
    let literal = [0x5800_0041, RET, 0, 0];
    for (helper, range) in [
        (&by_page[..], data.clone()),
        (&whole, data.clone()),
        (&literal, 0x108..0x110),
    ] {
        judge(helper, range.clone(), &secondary, found);
        judge(helper, range, &RULES, "");
        judge(helper, elsewhere.clone(), &secondary, "");
    }
    // Data beside the relocated words, and code.
    let beside = [adrp(3, 0x100, 0x4000), adr(0, 0x100, 0x3010), RET];
    judge(&beside, data, &secondary, "");
}

#[test]
fn tables_must_earn_their_entries() {
    let stale = Rules {
        indirect: &[("other", "test")],
        ..RULES
    };
    expect(&program(&[RET]), &stale, "`indirect` names other");
    let missing = Rules {
        roots: &[("_start", "x"), ("no_such_root", "x")],
        ..RULES
    };
    expect(&program(&[RET]), &missing, "no_such_root");
    // The MMU is never switched on: no path was followed to its end.
    expect(
        &patched(&[RET], &[(0x84, RET)]),
        &RULES,
        "enable_mmu_and_jump",
    );
    let mut endless = Program::default();
    endless.add_code(0, vec![NOP, NOP]);
    endless.add_symbol("_start", 0, 0, false);
    expect(&endless, &WITHOUT_STOPS, "outside the code");
}

#[test]
fn vectors_are_followed_slot_by_slot() {
    let mut words = vec![NOP; 0x1000 / 4];
    words[0] = adr(0, 0, 0x800);
    words[1] = 0xd518_c000; // msr vbar_el1, x0
    words[2] = RET;
    for slot in 0..16 {
        words[(0x800 + slot * 0x80) / 4] = RET;
    }
    words[(0x800 + 5 * 0x80) / 4] = FMOV;
    words[(0x800 + 5 * 0x80) / 4 + 1] = RET;
    let mut program = Program::default();
    program.add_code(0, words);
    program.add_symbol("_start", 0, 12, true);
    program.add_symbol("vectors", 0x800, 0, false);
    expect(&program, &WITHOUT_STOPS, "vectors+0x280");
}

#[test]
fn the_check_reads_a_real_file() {
    let words = [b(0, 8), LDXR, bl(8, 0x10), RET, ZVA, RET];
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let elf = TestElf::new()
        .segment(0, &bytes, bytes.len() as u64)
        .text(0, &bytes)
        .symbol(sym("_start", 0, 0, false))
        .symbol(sym("_RNvCs1234_6kernel6helper", 0x10, 8, true))
        .build();
    let program = Program::parse(&elf).unwrap();
    expect(&program, &WITHOUT_STOPS, "DC ZVA: kernel::helper at 0x10");
}

/// UEFI's binding gives x18 to the platform.
#[test]
fn code_that_calls_firmware_leaves_x18_alone() {
    let stub = Rules {
        calls_firmware: true,
        ..RULES
    };
    let count = |helper: u32| {
        let program = program(&[helper, RET]);
        [&stub, &RULES].map(|rules| check(&program, rules).findings.len())
    };
    // mov x18, x0; add x18, x1, #1; ldr x18, [x0]; ldp x0, x18, [x1]; str x18, [x0]; mrs x18, CurrentEL.
    let used = [0xaa00_03f2, 0x9100_0432, 0xf940_0012, 0xa940_4820];
    for word in used.into_iter().chain([0xf900_0012, 0xd538_4252]) {
        assert_eq!(count(word), [1, 0], "{word:#x}");
    }
    // mov x17, x0; cmp x18, #0, which changes nothing; ldp x17, x19, [x0]; msr daifset, #0xf.
    for word in [0xaa00_03f1, 0xf100_025f, 0xa940_4c11, 0xd503_4fdf] {
        assert_eq!(count(word), [0, 0], "{word:#x}");
    }
}
