//! The trees of CPUs, by the values of their registers.

use super::*;

fn cpu(registers: &[(&str, u64)]) -> Registers {
    let mut cpu = Registers::default();
    for (name, value) in registers {
        cpu.set(name, *value);
    }
    cpu
}

/// 4K pages, 48 bits both halves, 40 bits of output.
const TCR: u64 = 16 | 16 << 16 | 0b10 << 30 | 0b010 << 32;

fn kernel(ttbr0: u64) -> Registers {
    cpu(&[
        ("SCTLR_EL1", 1),
        ("ttbr0_el1", ttbr0),
        ("ttbr1_el1", 0x4123_4000 | 7 << 48 | 1),
        ("tcr_el1", TCR),
        ("mair_el1", 0xff),
        ("sctlr_el2", 0),
        ("ttbr0_el2", 0x999),
        ("tcr_el2", 16),
    ])
}

/// Checks the owners and the roots of trees.
#[track_caller]
fn are(trees: &[Tree], expected: &[(&str, u64)]) {
    let found: Vec<_> = trees
        .iter()
        .map(|tree| (tree.owner.to_string(), tree.root.0))
        .collect();
    let expected = expected
        .iter()
        .map(|(name, root)| (name.to_string(), *root));
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[test]
fn a_kernel_at_el1_on_several_cpus() {
    let cpus = [kernel(0x5000), kernel(0x5000), kernel(0x6000)];
    let (trees, notes) = trees(&cpus, Origin::Registers);
    let expected = [
        ("kernel", 0x4123_4000),
        ("user half of CPU 0", 0x5000),
        ("user half of CPU 2", 0x6000),
    ];
    are(&trees, &expected);
    assert!(notes.is_empty() && trees[0].memory_types == Some(Mair(0xff)));
    let Shape::Stage1(shape) = trees[0].shape else {
        panic!("{:?}", trees[0]);
    };
    assert_eq!((shape.va_bits(), shape.pa_bits()), (48, 40));
}

#[test]
fn a_kernel_that_hides_from_programs_is_read_by_a_cpu_that_is_in_it() {
    let mut program = kernel(0x5000);
    program.set("ttbr1_el1", 0x9000);
    program.set("cpsr", 0x8000_0000);
    let mut inside = kernel(0x6000);
    inside.set("cpsr", 0x3c5);
    let expected = [
        ("kernel", 0x4123_4000),
        ("user half of CPU 1", 0x6000),
        ("kernel", 0x9000),
        ("user half of CPU 0", 0x5000),
    ];
    let (found, notes) = trees(&[program.clone(), inside.clone()], Origin::Registers);
    are(&found, &expected);
    assert!(notes.is_empty(), "{notes:?}");
    let (found, notes) = trees(&[program.clone(), program.clone()], Origin::Registers);
    assert_eq!(found[0].root.0, 0x9000);
    assert!(
        notes.len() == 1 && notes[0].starts_with("every CPU runs a program"),
        "{notes:?}"
    );
    // A CPU that has just left a program is in the kernel's vectors, with the tables of the program.
    let mut entering = program.clone();
    for (name, value) in [
        ("cpsr", 0x3c5),
        ("vbar_el1", 0xffff_ffff_ff3f_3800),
        ("pc", 0xffff_ffff_ff3f_3c80),
    ] {
        entering.set(name, value);
    }
    let (found, notes) = trees(&[entering.clone(), inside], Origin::Registers);
    assert_eq!(found[0].root.0, 0x4123_4000);
    assert!(notes.is_empty(), "{notes:?}");
    let (found, notes) = trees(&[program, entering.clone()], Origin::Registers);
    assert_eq!((found[0].root.0, notes.len()), (0x9000, 1), "{notes:?}");
    entering.set("pc", 0xffff_8000_8001_0000);
    assert!(trees(&[entering], Origin::Registers).1.is_empty());
    // A dump has a CPU's state without its tables.
    let mut state = Registers::default();
    state.set("cpsr", 0);
    assert!(trees(&[state], Origin::Registers).1.is_empty());
}

#[test]
fn register_fields_that_change_the_meaning_of_descriptors_are_reported() {
    let with = |name: &str, value: u64| {
        let mut cpu = kernel(0x5000);
        cpu.set(name, value);
        let (found, notes) = trees(&[cpu.clone(), cpu], Origin::Registers);
        (found.len(), notes.join("; "))
    };
    let (found, notes) = with("tcr2_el1", 0b11110);
    assert_eq!(
        (found, notes.matches("TCR2_EL1 has ").count()),
        (2, 4),
        "{notes}"
    );
    let (found, notes) = with("tcr2_el1", 0b10);
    assert!(
        found == 2 && notes.starts_with("TCR2_EL1 has PIE: "),
        "{notes}"
    );
    // HPD0 is for the lower half, which EPD0 (bit 7) switches off.
    for (bits, halves) in [
        (1 << 41, 1),
        (1 << 42, 1),
        (1 << 41 | 1 << 7, 0),
        (1 << 43, 0),
    ] {
        let (_, notes) = with("tcr_el1", TCR | bits);
        assert_eq!(
            notes.matches("has HPD").count(),
            halves,
            "{bits:#x}: {notes}"
        );
    }
    // Descriptors of 16 bytes read as two of 8 would be nonsense.
    let (found, notes) = with("tcr2_el1", 1 << 5);
    assert!(found == 0 && notes.contains("has D128"), "{notes}");
}

#[test]
fn a_kernel_at_el2_with_vhe_has_no_trees_at_el1() {
    let mut host = kernel(0x5000);
    for (name, value) in [
        ("hcr_el2", E2H | TGE),
        ("sctlr_el2", 1),
        ("tcr_el2", TCR),
        ("ttbr0_el2", 0x7000),
        ("ttbr1_el2", 0x8000),
    ] {
        host.set(name, value);
    }
    let (trees, _) = trees(&[host], Origin::Registers);
    let expected = [("kernel", 0x8000), ("user half of CPU 0", 0x7000)];
    are(&trees, &expected);
    assert_eq!(trees[0].memory_types, None);
}

#[test]
fn a_hypervisor_its_guest_and_firmware() {
    let mut host = kernel(0x5000);
    for (name, value) in [
        ("hcr_el2", 1),
        ("vtcr_el2", 1 << 31 | 24 | 1 << 6 | 0b010 << 16),
        ("vttbr_el2", 0x4444_0000 | 3 << 48),
        ("sctlr_el2", 1),
        ("tcr_el2", 16 | 0b010 << 16),
        ("ttbr0_el2", 0x9000),
        ("sctlr_el3", 1),
        ("tcr_el3", 32),
        ("ttbr0_el3", 0xa000),
    ] {
        host.set(name, value);
    }
    let (trees, notes) = trees(&[host.clone()], Origin::Registers);
    let expected = [
        ("kernel", 0x4123_4000),
        ("user half of CPU 0", 0x5000),
        ("guest of CPU 0", 0x4444_0000),
        ("hypervisor", 0x9000),
        ("firmware", 0xa000),
    ];
    are(&trees, &expected);
    assert!(notes.is_empty(), "{notes:?}");
    let through = trees[0].through.map(|through| through.root.0);
    assert_eq!((through, trees[3].through), (Some(0x4444_0000), None));
}

#[test]
fn registers_without_a_tree_say_what_is_off() {
    let reset = [
        ("sctlr_el1", 0x30c5_0830),
        ("sctlr_el3", 0),
        ("ttbr1_el1", 0),
        ("tcr_el1", 0),
    ];
    let both = TCR | 1 << 7 | 1 << 23;
    let unused = [
        ("sctlr_el1", 1),
        ("ttbr0_el1", 0),
        ("ttbr1_el1", 0),
        ("tcr_el1", both),
    ];
    for (registers, words) in [
        (reset, "the MMU is off on every CPU, as after a reset"),
        (
            unused,
            "TCR_EL1 of CPU 0 has EPD1, with which no CPU walks ttbr1",
        ),
    ] {
        let (trees, notes) = trees(&[cpu(&registers), cpu(&registers)], Origin::Registers);
        assert!(trees.is_empty() && notes.len() == 1, "{notes:?}");
        assert!(notes[0].starts_with(words), "{notes:?}");
    }
    // A dump that has no SCTLR says nothing of it.
    assert!(trees(&[cpu(&[("pc", 1)])], Origin::Registers).1.is_empty());
}

#[test]
fn a_guest_of_a_host_with_vhe_is_beside_its_kernel() {
    let mut guest = kernel(0x5000);
    for (name, value) in [
        ("hcr_el2", 1 | E2H),
        ("vtcr_el2", 1 << 31 | 24 | 1 << 6 | 0b010 << 16),
        ("vttbr_el2", 0x4444_0000),
        ("sctlr_el2", 1),
        ("tcr_el2", TCR | 1 << 38),
        ("ttbr0_el2", 0x9000),
        ("ttbr1_el2", 0x8000),
    ] {
        guest.set(name, value);
    }
    let (found, notes) = trees(&[guest.clone()], Origin::Registers);
    let expected = [
        ("kernel of the guest of CPU 0", 0x4123_4000),
        ("user half of CPU 0", 0x5000),
        ("guest of CPU 0", 0x4444_0000),
        ("kernel", 0x8000),
        ("user half of CPU 0", 0x9000),
    ];
    are(&found, &expected);
    let tags: Vec<_> = found.iter().map(|tree| tree.tags).collect();
    assert_eq!(
        tags,
        [Some(false), Some(false), None, Some(true), Some(false)]
    );
    assert!(notes.is_empty(), "{notes:?}");
    guest.set("vtcr_el2", 0b11 << 14);
    let (found, notes) = trees(&[guest], Origin::Registers);
    assert_eq!((found.len(), notes.len()), (2, 2), "{notes:?}");
    assert!(
        notes[0].contains("intermediate physical addresses, and VTCR_EL2"),
        "{notes:?}"
    );
}

#[test]
fn a_reserved_field_is_reported_and_the_rest_is_read() {
    let mut cpu = kernel(0x5000);
    cpu.set("tcr_el1", TCR & !(0b11 << 30));
    let (trees, notes) = trees(&[cpu], Origin::Options);
    assert_eq!(trees.len(), 1);
    assert_eq!(
        notes,
        ["TCR_EL1 of CPU 0 cannot be used: TCR.TG1 is 0x0, with which no walk is defined"]
    );
}
