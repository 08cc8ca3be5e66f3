//! Trees of page tables out of the values of system registers. This file reads no memory.

use crate::source::Registers;
use crate::tree::{Origin, Owner, Shape, Tree};
use granule::arch::registers::{Mair, Tcr, TcrSingle};
use granule::arch::{
    CpuFeatures, Geometry, GeometryError, PhysicalAddress, Regime, Sctlr, Stage2Geometry, VaRange,
    Vtcr,
};

/// HCR_EL2.E2H: EL2 runs an operating system's kernel (FEAT_VHE).
pub(crate) const E2H: u64 = 1 << 34;
/// HCR_EL2.TGE: EL0 belongs to EL2, and EL1 is not used.
pub(crate) const TGE: u64 = 1 << 27;

/// TCR.HPD0 and HPD1, and HPD of EL2 and EL3 with one half (FEAT_HPDS).
const HPD: [u64; 2] = [1 << 41, 1 << 42];
const HPD_SINGLE: u64 = 1 << 24;
/// TCR2.D128: descriptors have 128 bits (FEAT_D128).
const D128: u64 = 1 << 5;
/// Fields of TCR2 that change what attributes mean, and what they do to the words here.
const TCR2: [(u64, &str); 4] = [
    (
        1 << 1,
        "PIE: the permissions here are those of the same bits without it",
    ),
    (
        1 << 2,
        "E0POE: overlays may restrict the permissions of EL0 further",
    ),
    (
        1 << 3,
        "POE: overlays may restrict the permissions of the privileged level further",
    ),
    (
        1 << 4,
        "AIE: memory types with an index above 7 are read as those of the index less 8",
    ),
];

/// Returns the trees that these CPUs walk, and notes about them, a line each. A tree that several
/// CPUs walk is there once, with the first of them. A register that is missing reads as one that
/// is not used; SCTLR alone may be missing.
pub fn trees(cpus: &[Registers], origin: Origin) -> (Vec<Tree>, Vec<String>) {
    let mut found = Found {
        origin,
        trees: Vec::new(),
        notes: Vec::new(),
    };
    // A kernel may hide its tables from programs (Linux's page-table isolation): in EL0 TTBR1 has then little
    // more than the way into the kernel. So a CPU in the kernel comes first.
    let mut order: Vec<_> = cpus.iter().enumerate().collect();
    order.sort_by_key(|(_, cpu)| place(cpu));
    for &(number, cpu) in &order {
        found.cpu(number, cpu);
    }
    let has_kernel = found.trees.iter().any(|tree| tree.owner == Owner::Kernel);
    if has_kernel && cpus.iter().all(|cpu| place(cpu) != CpuPlace::Kernel) {
        found.say(
            "every CPU runs a program, or is on the way between one and the kernel: if the kernel \
             hides its tables from programs, its tree has little here; look again at another moment"
                .into(),
        );
    }
    (found.trees, found.notes)
}

struct Found {
    origin: Origin,
    trees: Vec<Tree>,
    notes: Vec<String>,
}

impl Found {
    fn cpu(&mut self, number: usize, cpu: &Registers) {
        let hcr = cpu.get("hcr_el2").unwrap_or(0);
        let on = |name| cpu.get(name).is_none_or(|sctlr| sctlr & Sctlr::M != 0);
        let guest = hcr & Stage2Geometry::HCR_VM != 0;
        if guest {
            self.stage2(number, cpu, hcr);
        }
        if on("sctlr_el1") && hcr & TGE == 0 {
            if guest && cpu.get("ttbr1_el1").is_some() {
                self.say(format!(
                    "CPU {number} runs a guest: the guest's own tables lie at intermediate physical addresses and are not read"
                ));
            } else {
                self.both_halves(number, cpu, 1);
            }
        }
        if on("sctlr_el2") {
            if hcr & E2H != 0 {
                self.both_halves(number, cpu, 2);
            } else {
                self.one_half(number, cpu, 2, Regime::El2);
            }
        }
        if on("sctlr_el3") {
            self.one_half(number, cpu, 3, Regime::El3);
        }
    }

    /// EL1&0, or EL2&0 under VHE.
    fn both_halves(&mut self, number: usize, cpu: &Registers, el: u8) {
        let register = |name: &str| cpu.get(&format!("{name}_el{el}"));
        let Some(tcr) = register("tcr") else { return };
        let mair = register("mair");
        let tcr2 = register("tcr2").unwrap_or(0);
        if tcr2 & D128 != 0 {
            self.say(format!(
                "the tables of EL{el} are not read: TCR2_EL{el} of CPU {number} has D128, and \
                 descriptors of 128 bits are not known"
            ));
            return;
        }
        for (_, what) in TCR2.iter().filter(|(bit, _)| tcr2 & bit != 0) {
            self.say(format!("TCR2_EL{el} has {what}"));
        }
        let halves = [
            ("ttbr1", VaRange::Upper, Owner::Kernel, "EPD1", Tcr::EPD1),
            (
                "ttbr0",
                VaRange::Lower,
                Owner::User(number),
                "EPD0",
                Tcr::EPD0,
            ),
        ];
        for (name, half, owner, epd, bit) in halves {
            let Some(ttbr) = register(name) else { continue };
            match Geometry::from_tcr(Tcr(tcr), half) {
                Ok(Some(shape)) => {
                    let hpd = HPD[usize::from(half == VaRange::Upper)];
                    self.hierarchical(&format!("TCR_EL{el}"), tcr & hpd != 0);
                    let root = shape.root_in(ttbr);
                    self.push(owner, root, Shape::Stage1(shape), mair);
                }
                // A CPU may well leave a half unused, but a root that the user names should be read.
                Ok(None) if self.origin == Origin::Options => self.say(format!(
                    "{}_EL{el} is not read: TCR_EL{el} is {tcr:#x}, and with its {epd} no CPU \
                     walks there; to read it all the same give the TCR {:#x}",
                    name.to_uppercase(),
                    tcr & !bit,
                )),
                Ok(None) => {}
                Err(error) => self.refuse(number, &format!("TCR_EL{el}"), error),
            }
        }
    }

    /// EL2 without VHE, or EL3.
    fn one_half(&mut self, number: usize, cpu: &Registers, el: u8, regime: Regime) {
        let register = |name: &str| cpu.get(&format!("{name}_el{el}"));
        let (Some(tcr), Some(ttbr)) = (register("tcr"), register("ttbr0")) else {
            return;
        };
        match Geometry::from_tcr_single(TcrSingle(tcr), regime) {
            Ok(shape) => {
                self.hierarchical(&format!("TCR_EL{el}"), tcr & HPD_SINGLE != 0);
                let root = shape.root_in(ttbr);
                self.push(Owner::Kernel, root, Shape::Stage1(shape), register("mair"));
            }
            Err(error) => self.refuse(number, &format!("TCR_EL{el}"), error),
        }
    }

    fn stage2(&mut self, number: usize, cpu: &Registers, hcr: u64) {
        let (Some(vtcr), Some(vttbr)) = (cpu.get("vtcr_el2"), cpu.get("vttbr_el2")) else {
            return;
        };
        let id = |name| cpu.get(name).unwrap_or(0);
        let features = CpuFeatures {
            mmfr0: id("id_aa64mmfr0_el1"),
            mmfr1: id("id_aa64mmfr1_el1"),
            mmfr2: id("id_aa64mmfr2_el1"),
            ..CpuFeatures::NONE
        };
        match Stage2Geometry::from_vtcr(Vtcr(vtcr), hcr, &features) {
            Ok(shape) => {
                let root = shape.shape().root_in(vttbr);
                self.push(Owner::Guest(number), root, Shape::Stage2(shape), None);
            }
            Err(error) => self.refuse(number, "VTCR_EL2", error),
        }
    }

    fn push(&mut self, owner: Owner, root: PhysicalAddress, shape: Shape, mair: Option<u64>) {
        let tree = Tree {
            owner,
            root,
            shape,
            memory_types: mair.map(Mair),
            origin: self.origin,
        };
        let is_there = |other: &Tree| {
            let same_owner =
                std::mem::discriminant(&other.owner) == std::mem::discriminant(&tree.owner);
            same_owner && other.root == tree.root && same_shape(&other.shape, &tree.shape)
        };
        if !self.trees.iter().any(is_there) {
            self.trees.push(tree);
        }
    }

    /// Says so if restrictions of tables are switched off for a tree.
    fn hierarchical(&mut self, register: &str, off: bool) {
        if off {
            self.say(format!(
                "{register} has HPD: no CPU obeys the restrictions of tables (APTable, PXNTable, \
                 UXNTable) there, and here leaves are shown as if it did"
            ));
        }
    }

    fn refuse(&mut self, number: usize, register: &str, error: GeometryError) {
        self.say(format!(
            "{register} of CPU {number} cannot be used: {error}"
        ));
    }

    fn say(&mut self, line: String) {
        if !self.notes.contains(&line) {
            self.notes.push(line);
        }
    }
}

/// Where a CPU is, the most likely to have all of the kernel's tables first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CpuPlace {
    /// In the kernel, or at a place that is not known.
    Kernel,
    /// In the kernel's exception vectors: TTBR1 may still be, or be again, that of the program.
    Vectors,
    /// At EL0.
    Program,
}

/// The bytes from VBAR on that count as vectors. The architecture gives them 2 KiB; Linux has its way out to a
/// program behind four sets of them.
const VECTORS: u64 = 16 << 10;

/// Where the CPU is, by PSTATE.M, PC and the VBAR of its exception level.
fn place(cpu: &Registers) -> CpuPlace {
    let pstate = cpu.get("cpsr").unwrap_or(0b0101);
    let vectors = match pstate >> 2 & 0b11 {
        0 => return CpuPlace::Program,
        1 => cpu.get("vbar_el1"),
        2 => cpu.get("vbar_el2"),
        _ => None,
    };
    let distance = vectors.and_then(|vectors| cpu.get("pc")?.checked_sub(vectors));
    if distance.is_some_and(|distance| distance < VECTORS) {
        CpuPlace::Vectors
    } else {
        CpuPlace::Kernel
    }
}

fn same_shape(one: &Shape, other: &Shape) -> bool {
    match (one, other) {
        (Shape::Stage1(one), Shape::Stage1(other)) => one == other,
        (Shape::Stage2(one), Shape::Stage2(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
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
        let (trees, notes) = trees(&[host], Origin::Registers);
        let expected = [
            ("guest of CPU 0", 0x4444_0000),
            ("kernel", 0x9000),
            ("kernel", 0xa000),
        ];
        are(&trees, &expected);
        assert!(notes[0].contains("intermediate"), "{notes:?}");
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
}
