//! Trees of page tables out of the values of system registers. This file reads no memory.

use crate::source::Registers;
use crate::tree::{Origin, Owner, Shape, Through, Tree};
use granule::arch::registers::{Mair, Tcr, TcrSingle};
use granule::arch::{
    CpuFeatures, Geometry, GeometryError, Regime, Sctlr, Stage2Geometry, VaRange, Vtcr,
};

/// HCR_EL2.E2H: EL2 runs an operating system's kernel (FEAT_VHE).
pub(crate) const E2H: u64 = 1 << 34;
/// HCR_EL2.TGE: EL0 belongs to EL2, and EL1 is not used.
pub(crate) const TGE: u64 = 1 << 27;

/// TCR.HPD0 and HPD1, and HPD of EL2 and EL3 with one half (FEAT_HPDS).
const HPD: [u64; 2] = [1 << 41, 1 << 42];
const HPD_SINGLE: u64 = 1 << 24;
/// TCR.TBI0 and TBI1, and TBI of EL2 and EL3 with one half: bits 63:56 of an address are a tag.
const TBI: [u64; 2] = [1 << 37, 1 << 38];
const TBI_SINGLE: u64 = 1 << 20;
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
        unused: None,
    };
    // A kernel may hide its tables from programs (Linux's page-table isolation): in EL0 TTBR1 has then little
    // more than the way into the kernel. So a CPU in the kernel comes first.
    let mut order: Vec<_> = cpus.iter().enumerate().collect();
    order.sort_by_key(|(_, cpu)| place(cpu));
    for &(number, cpu) in &order {
        found.cpu(number, cpu);
    }
    found.name_owners();
    if found.trees.is_empty() {
        let why = found.unused.take().or_else(|| mmu_off(cpus));
        why.into_iter().for_each(|why| found.say(why));
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

/// The line for CPUs whose MMU is off at every exception level of which SCTLR is known.
fn mmu_off(cpus: &[Registers]) -> Option<String> {
    let names = ["sctlr_el1", "sctlr_el2", "sctlr_el3"];
    let known = || {
        cpus.iter()
            .flat_map(|cpu| names.iter().filter_map(|name| cpu.get(name)))
    };
    let off = known().next().is_some() && known().all(|sctlr| sctlr & Sctlr::M == 0);
    off.then(|| {
        "the MMU is off on every CPU, as after a reset: SCTLR.M is 0 at each exception level".into()
    })
}

struct Found {
    origin: Origin,
    trees: Vec<Tree>,
    notes: Vec<String>,
    /// A half that no CPU walks, though its MMU is on.
    unused: Option<String>,
}

impl Found {
    fn cpu(&mut self, number: usize, cpu: &Registers) {
        let hcr = cpu.get("hcr_el2").unwrap_or(0);
        let on = |name| cpu.get(name).is_none_or(|sctlr| sctlr & Sctlr::M != 0);
        let stage2 = (hcr & Stage2Geometry::HCR_VM != 0).then(|| self.stage2(cpu, hcr));
        if on("sctlr_el1") && hcr & TGE == 0 {
            // With VHE the host is at EL2, so EL1 is a guest's. Without, it may be a host's under a hypervisor.
            let kernel = match &stage2 {
                Some(_) if hcr & E2H != 0 => Owner::GuestKernel(number),
                _ => Owner::Kernel,
            };
            match &stage2 {
                Some(Err(error)) if cpu.get("ttbr1_el1").is_some() => self.say(format!(
                    "the tables of EL1 of CPU {number} are not read: they lie at intermediate physical \
                     addresses, and VTCR_EL2 cannot be used: {error}"
                )),
                Some(Err(_)) => {}
                Some(Ok(through)) => self.both_halves(number, cpu, 1, kernel, Some(*through)),
                None => self.both_halves(number, cpu, 1, kernel, None),
            }
        }
        match stage2 {
            Some(Ok(Through { root, shape })) => {
                self.push(Tree::new(
                    Owner::Guest(number),
                    root,
                    Shape::Stage2(shape),
                    self.origin,
                ));
            }
            Some(Err(error)) => self.say(format!("stage 2 of CPU {number} is not read: {error}")),
            None => {}
        }
        if on("sctlr_el2") {
            if hcr & E2H != 0 {
                self.both_halves(number, cpu, 2, Owner::Kernel, None);
            } else {
                self.one_half(number, cpu, 2, Regime::El2, Owner::Hypervisor);
            }
        }
        if on("sctlr_el3") {
            self.one_half(number, cpu, 3, Regime::El3, Owner::Firmware);
        }
    }

    /// A CPU under a hypervisor has the tree of EL2 beside that of its kernel, and firmware that of EL3. Where only
    /// one of them is on, a kernel runs there.
    fn name_owners(&mut self) {
        for alone in [Owner::Hypervisor, Owner::Firmware] {
            if self
                .trees
                .iter()
                .all(|tree| matches!(tree.owner, Owner::Hypervisor | Owner::Firmware))
            {
                let alone = self.trees.iter_mut().filter(|tree| tree.owner == alone);
                alone.for_each(|tree| tree.owner = Owner::Kernel);
            }
        }
    }

    /// EL1&0, or EL2&0 under VHE.
    fn both_halves(
        &mut self,
        number: usize,
        cpu: &Registers,
        el: u8,
        kernel: Owner,
        through: Option<Through>,
    ) {
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
            ("ttbr1", VaRange::Upper, kernel, "EPD1", Tcr::EPD1),
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
                    let upper = usize::from(half == VaRange::Upper);
                    self.hierarchical(&format!("TCR_EL{el}"), tcr & HPD[upper] != 0);
                    let root = shape.root_in(ttbr);
                    self.push(Tree {
                        memory_types: mair.map(Mair),
                        tags: Some(tcr & TBI[upper] != 0),
                        through,
                        ..Tree::new(owner, root, Shape::Stage1(shape), self.origin)
                    });
                }
                // A CPU may well leave a half unused, but a root that the user names should be read.
                Ok(None) if self.origin == Origin::Options => self.say(format!(
                    "ignoring {}_EL{el}: {epd} in TCR_EL{el}, {tcr:#x}, disables its walks; to read \
                     it all the same, give TCR {:#x}",
                    name.to_uppercase(),
                    tcr & !bit,
                )),
                Ok(None) => {
                    let line = format!(
                        "TCR_EL{el} of CPU {number} has {epd}, with which no CPU walks {name}"
                    );
                    self.unused.get_or_insert(line);
                }
                Err(error) => self.refuse(number, &format!("TCR_EL{el}"), error),
            }
        }
    }

    /// EL2 without VHE, or EL3.
    fn one_half(&mut self, number: usize, cpu: &Registers, el: u8, regime: Regime, owner: Owner) {
        let register = |name: &str| cpu.get(&format!("{name}_el{el}"));
        let (Some(tcr), Some(ttbr)) = (register("tcr"), register("ttbr0")) else {
            return;
        };
        match Geometry::from_tcr_single(TcrSingle(tcr), regime) {
            Ok(shape) => {
                self.hierarchical(&format!("TCR_EL{el}"), tcr & HPD_SINGLE != 0);
                let root = shape.root_in(ttbr);
                self.push(Tree {
                    memory_types: register("mair").map(Mair),
                    tags: Some(tcr & TBI_SINGLE != 0),
                    ..Tree::new(owner, root, Shape::Stage1(shape), self.origin)
                });
            }
            Err(error) => self.refuse(number, &format!("TCR_EL{el}"), error),
        }
    }

    /// The tables of stage 2. An error is one line: why they cannot be read.
    fn stage2(&self, cpu: &Registers, hcr: u64) -> Result<Through, String> {
        let (Some(vtcr), Some(vttbr)) = (cpu.get("vtcr_el2"), cpu.get("vttbr_el2")) else {
            return Err("VTCR_EL2 or VTTBR_EL2 is not known".into());
        };
        let id = |name| cpu.get(name).unwrap_or(0);
        let features = CpuFeatures {
            mmfr0: id("id_aa64mmfr0_el1"),
            mmfr1: id("id_aa64mmfr1_el1"),
            mmfr2: id("id_aa64mmfr2_el1"),
            ..CpuFeatures::NONE
        };
        let shape = Stage2Geometry::from_vtcr(Vtcr(vtcr), hcr, &features);
        let shape = shape.map_err(|error| error.to_string())?;
        let root = shape.shape().root_in(vttbr);
        Ok(Through { root, shape })
    }

    fn push(&mut self, tree: Tree) {
        let is_there = |other: &Tree| {
            let same_owner =
                std::mem::discriminant(&other.owner) == std::mem::discriminant(&tree.owner);
            same_owner
                && other.root == tree.root
                && other.through == tree.through
                && other.shape == tree.shape
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

#[cfg(test)]
mod tests;
