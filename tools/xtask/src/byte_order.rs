//! The check that no CPU accesses memory before its SCTLR has a known value.
//!
//! This register sets the byte order of data accesses, and whether their alignment is checked. The
//! previous owner of the CPU may have left any value there. Every way from an entry is followed to
//! the first write of SCTLR; the entries and the ways that are excused are in the tables. The rest
//! of the MMU-off code is for `mmu_off`.

use std::collections::BTreeSet;

use crate::a64::{self, Flow};
use crate::elf::Program;

/// Where a CPU comes from firmware, a boot loader or another kernel.
const ENTRIES: [&str; 2] = ["_start", "secondary_entry"];
/// Code that is not followed, and why: it only reports why the CPU stops.
const EXCUSED: [&str; 1] = ["park_with"];

pub(crate) fn check(program: &Program) -> Vec<String> {
    ENTRIES
        .iter()
        .flat_map(|entry| match program.named(entry) {
            Some(symbol) => follow(program, entry, symbol.address),
            None => vec![format!("byte order: symbol {entry} is not in the ELF file")],
        })
        .collect()
}

fn follow(program: &Program, entry: &str, start: u64) -> Vec<String> {
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    let mut ways = vec![start];
    let mut is_written = false;
    while let Some(pc) = ways.pop() {
        let is_excused = EXCUSED.iter().any(|name| program.is_named_at(pc, name));
        if is_excused || !seen.insert(pc) {
            continue;
        }
        let Some(word) = program.word(pc) else {
            findings.push(format!(
                "byte order: {entry} runs out of the code at {pc:#x}"
            ));
            continue;
        };
        if a64::writes_sctlr(word) {
            is_written = true;
            continue;
        }
        if a64::accesses_memory(word) {
            findings.push(format!(
                "byte order: {} at {pc:#x}, word {word:#010x}, accesses memory on the way from {entry} \
                 before SCTLR has a known value",
                program.describe(pc)
            ));
        }
        match a64::flow(pc, word) {
            Flow::Next => ways.push(pc + 4),
            Flow::Jump(target) => ways.push(target),
            Flow::Branch(target) | Flow::Call(target) => ways.extend([target, pc + 4]),
            Flow::IndirectJump(_) | Flow::IndirectCall(_) | Flow::End => {}
        }
    }
    if !is_written {
        findings.push(format!("byte order: no way from {entry} writes SCTLR"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOP: u32 = 0xd503_201f;
    const RET: u32 = 0xd65f_03c0;
    /// `ldr x2, [x1]`, and `ldr x1, .+8`.
    const LOAD: u32 = 0xf940_0022;
    const LITERAL: u32 = 0x5800_0041;
    /// `msr sctlr_el1, x1`, and of EL2 and EL3.
    const SCTLR: [u32; 3] = [0xd518_1001, 0xd51c_1001, 0xd51e_1001];
    /// `tbnz x2, #0, .+8`.
    const TEST: u32 = 0x3700_0042;

    fn findings(secondary: &[u32]) -> Vec<String> {
        let mut program = Program::default();
        program.add_symbol("_start", 0, 0, false);
        program.add_code(0, vec![SCTLR[0], LOAD, RET]);
        program.add_symbol("secondary_entry", 0x1000, 0, false);
        program.add_code(0x1000, secondary.to_vec());
        check(&program)
    }

    #[test]
    fn memory_comes_after_the_register_on_every_way() {
        for sctlr in SCTLR {
            assert_eq!(findings(&[NOP, sctlr, LOAD, RET]), [""; 0]);
            assert_eq!(findings(&[TEST, sctlr, sctlr, LOAD, RET]), [""; 0]);
        }
        for access in [LOAD, LITERAL] {
            let found = findings(&[NOP, access, SCTLR[1], RET]);
            assert_eq!(found.len(), 1);
            assert!(
                found[0].contains("secondary_entry+0x4 at 0x1004"),
                "{found:?}"
            );
        }
        // One way leaves the register out.
        let found = findings(&[TEST, SCTLR[0], LOAD, RET]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(findings(&[NOP, RET])[0].contains("no way from secondary_entry"));
        assert!(findings(&[NOP])[0].contains("runs out of the code"));
    }
}
