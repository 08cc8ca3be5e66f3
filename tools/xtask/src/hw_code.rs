//! The check of the barriers, TLBIs and register writes that the kernel's wrappers record in traces by name: those
//! of `crates/granule/src/hw` and of `kernel/granule-kernel/src/arch/cpu.rs`. A trace reports what the wrapper calls; this check
//! compares it with the instructions of the finished kernel.
//!
//! These functions are in line wherever they are used, so no symbol leads to them. The kernel's
//! line table does: it has the file and the in-line function of each instruction. So every copy
//! that was linked is looked at, and the kernel needs no code for it. Which of several TLBIs an
//! operation becomes is tested with `for_constant_op!` on the host; here each of them must exist,
//! and no other. A copy that contains no such instruction at all is noticed only as part of a
//! sequence, or if no copy contains one.

use std::collections::{BTreeMap, BTreeSet};

use addr2line::gimli::{Dwarf, EndianSlice, LittleEndian, SectionId};
use anyhow::{Context, Result};
use granule::arch::Regime;
use granule::arch::tlbi::{TlbiOp, TlbiScope};
use granule_kcore::trace::entry_code::Step;
use granule_trace::{Barrier, System};
use object::{Object, ObjectSection};

use crate::elf::Program;
use crate::{a64, entry};

const BARRIERS: &str = "crates/granule/src/hw/barriers.rs";
const TLB: &str = "crates/granule/src/hw/tlb.rs";
const CPU: &str = "kernel/granule-kernel/src/arch/cpu.rs";

/// A function, and the sequences of which each of its copies is one.
struct Function {
    file: &'static str,
    name: &'static str,
    sequences: Vec<Vec<u16>>,
}

/// The functions, with the events that the wrappers record for them.
fn functions() -> Vec<Function> {
    let barrier = Step::Barrier;
    let system = Step::System;
    let one = |file, name, steps: &[Step]| Function {
        file,
        name,
        sequences: vec![steps.iter().copied().map(entry::number).collect()],
    };
    let tlbis = |name, numbers: BTreeSet<u16>| Function {
        file: TLB,
        name,
        sequences: numbers.into_iter().map(|number| vec![number]).collect(),
    };
    let isb = barrier(Barrier::ISB);
    let vmalle1 = system(System::VMALLE1);
    let local = [
        barrier(Barrier::DSB_NSHST),
        vmalle1,
        barrier(Barrier::DSB_NSH),
        isb,
    ];
    vec![
        one(BARRIERS, "dsb_ishst", &[barrier(Barrier::DSB_ISHST)]),
        one(BARRIERS, "dsb_ish", &[barrier(Barrier::DSB_ISH)]),
        one(BARRIERS, "dsb_nsh", &[barrier(Barrier::DSB_NSH)]),
        one(BARRIERS, "dsb_sy", &[barrier(Barrier::DSB_SY)]),
        one(BARRIERS, "isb", &[isb]),
        one(TLB, "invalidate_local", &local),
        tlbis("issue", leaves_of_el1()),
        tlbis("issue_any", broadcast()),
        one(CPU, "tlbi_all_local", &[vmalle1]),
        one(CPU, "write_tcr", &[system(System::TCR_EL1)]),
        one(CPU, "write_ttbr0", &[system(System::TTBR0_EL1)]),
        one(CPU, "set_ttbr0_el1", &[system(System::TTBR0_EL1), isb]),
        one(CPU, "set_sctlr_el1", &[system(System::SCTLR_EL1), isb]),
    ]
}

/// The TLBIs of leaves of EL1&0, by address and by range.
fn leaves_of_el1() -> BTreeSet<u16> {
    let by_address = [System::VALE1IS, System::VAALE1IS];
    let by_range = [System::RVALE1IS, System::RVAALE1IS];
    by_address
        .into_iter()
        .chain(by_range)
        .map(|one| one.0)
        .collect()
}

/// Every TLBI of every regime, as `Recorded::invalidate` reports it.
fn broadcast() -> BTreeSet<u16> {
    let operand = 0;
    let mut operations = vec![TlbiOp::All, TlbiOp::AllVmids, TlbiOp::Asid { operand }];
    for scope in [TlbiScope::LastLevel, TlbiScope::AllLevels] {
        for all_asids in [false, true] {
            operations.push(TlbiOp::Address {
                operand,
                scope,
                all_asids,
            });
            operations.push(TlbiOp::Range {
                operand,
                scope,
                all_asids,
            });
        }
    }
    let regimes = [Regime::El1And0, Regime::El2, Regime::El3, Regime::Stage2];
    let numbers = regimes.iter().flat_map(|regime| {
        let of_regime = |operation: &TlbiOp| operation.instruction(*regime).0;
        operations.iter().map(of_regime)
    });
    numbers.collect()
}

pub(crate) fn check(bytes: &[u8], program: &Program) -> Result<Vec<String>> {
    let elf = object::File::parse(bytes)?;
    let section = |id: SectionId| -> Result<_> {
        let data = elf.section_by_name(id.name()).map(|section| section.data());
        Ok(EndianSlice::new(
            data.transpose()?.unwrap_or_default(),
            LittleEndian,
        ))
    };
    let lines = addr2line::Context::from_dwarf(Dwarf::load(section)?)
        .context("the kernel's line table cannot be read")?;
    // The innermost function and its file. One that is not in line has a symbol alone.
    let place = |address: u64| -> Option<(String, String)> {
        let frame = lines
            .find_frames(address)
            .skip_all_loads()
            .ok()?
            .next()
            .ok()??;
        let name = match &frame.function {
            Some(function) => function.raw_name().ok()?.into_owned(),
            None => program.owner(address)?.0.rsplit("::").next()?.to_owned(),
        };
        Some((frame.location?.file?.to_owned(), name))
    };
    Ok(differences(program, place))
}

fn differences(program: &Program, place: impl Fn(u64) -> Option<(String, String)>) -> Vec<String> {
    let functions = functions();
    // For each function its runs of neighbouring instructions: where each begins, and the numbers.
    let mut runs: BTreeMap<usize, Vec<(u64, Vec<u16>)>> = BTreeMap::new();
    for (address, word) in program.instructions() {
        let Some(number) = a64::maintenance(word) else {
            continue;
        };
        let Some((file, name)) = place(address) else {
            continue;
        };
        let is_there = |one: &Function| file.ends_with(one.file) && name == one.name;
        let Some(function) = functions.iter().position(is_there) else {
            continue;
        };
        let runs = runs.entry(function).or_default();
        match runs.last_mut() {
            Some((start, run)) if *start + 4 * run.len() as u64 == address => run.push(number),
            _ => runs.push((address, vec![number])),
        }
    }
    let of = |index| runs.get(&index).map_or(&[][..], |runs| runs);
    let each = functions.iter().enumerate();
    each.filter_map(|(index, function)| difference(function, of(index)))
        .collect()
}

fn difference(function: &Function, runs: &[(u64, Vec<u16>)]) -> Option<String> {
    let Function {
        file,
        name,
        sequences,
    } = function;
    let mut missing: BTreeSet<&[u16]> = sequences.iter().map(Vec::as_slice).collect();
    let mut wrong = Vec::new();
    for (start, run) in runs {
        // Copies may be neighbours.
        let mut rest = run.as_slice();
        while let Some(next) = sequences.iter().find(|next| rest.starts_with(next)) {
            missing.remove(next.as_slice());
            rest = &rest[next.len()..];
        }
        if !rest.is_empty() {
            wrong.push((start + 4 * (run.len() - rest.len()) as u64, rest));
        }
    }
    let head = format!("traces: {name} of {file}");
    if let Some((start, run)) = wrong.first() {
        let expected = match sequences.as_slice() {
            [one] => format!("[{}]", entry::names(one)),
            many => format!("one of {} others", many.len()),
        };
        return Some(format!(
            "{head} is [{}] in the kernel at {} place(s), the first at {start:#x}; a trace would report {expected}",
            entry::names(run),
            wrong.len()
        ));
    }
    let absent = missing.first()?;
    Some(format!(
        "{head} is [{}] nowhere in the kernel, by its line table; a trace would report it",
        entry::names(absent)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOP: u32 = 0xd503_201f;

    /// The findings in a program that has every function twice, after a change of its words.
    fn findings(change: impl FnOnce(&mut Vec<u32>)) -> Vec<String> {
        let mut words = Vec::new();
        let mut places = Vec::new();
        for function in functions() {
            let numbers = function.sequences.concat();
            for number in numbers.iter().chain(&numbers) {
                words.push(0xd500_001f | u32::from(*number) << 5);
                places.push((format!("/root/{}", function.file), function.name.to_owned()));
            }
        }
        change(&mut words);
        let mut program = Program::default();
        program.add_code(0, words);
        differences(&program, |address| {
            places.get(address as usize / 4).cloned()
        })
    }

    #[test]
    fn each_instruction_matters() {
        assert_eq!(findings(|_| ()), Vec::<String>::new());
        let mut count = 0;
        findings(|words| count = words.len());
        for at in 0..count {
            let found = findings(|words| words[at] = 0xd503_3e9f); // DSB ST
            assert_eq!(found.len(), 1, "word {at}: {found:#?}");
        }
    }

    #[test]
    fn a_weaker_barrier_is_named_once_with_its_places() {
        let replace = |from: u32, to: u32| {
            findings(|words| {
                words
                    .iter_mut()
                    .filter(|word| **word == from)
                    .for_each(|word| *word = to)
            })
        };
        // DSB ISH, in `dsb_ish` alone, as DSB NSH.
        let found = replace(0xd503_3b9f, 0xd503_379f);
        assert_eq!(found.len(), 1, "{found:#?}");
        let expected = "dsb_ish of crates/granule/src/hw/barriers.rs is [dsb nsh, dsb nsh] in the kernel at 1 place(s)";
        assert!(found[0].contains(expected), "{found:#?}");
        assert!(
            found[0].ends_with("a trace would report [dsb ish]"),
            "{found:#?}"
        );
        // TLBI RVAE3IS, in `issue_any` alone, left out.
        let found = replace(0xd50e_823f, NOP);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(
            found[0].contains("issue_any of crates/granule/src/hw/tlb.rs is [rvae3is] nowhere"),
            "{found:#?}"
        );
        // ISB, alone and within others.
        assert_eq!(replace(0xd503_3fdf, NOP).len(), 4);
    }
}
