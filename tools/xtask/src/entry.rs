//! The check of the entry code in traces. The kernel cannot record actions before its command line is read,
//! so it records a list of them afterwards (`kernel/granule-kcore/src/trace/entry_code.rs`). This check compares
//! the list with the instructions of the finished kernel.
//!
//! Only the order by address is compared; which branch is taken when is for people to review.

use granule_trace::{Barrier, BarrierKind, System};

use crate::a64;
use crate::elf::Program;
use granule_kcore::trace::entry_code::{Routine, Step};

pub(crate) fn check(program: &Program, routines: &[Routine]) -> Vec<String> {
    routines
        .iter()
        .filter_map(|routine| difference(program, routine))
        .collect()
}

fn difference(program: &Program, routine: &Routine) -> Option<String> {
    let symbol = routine.symbol;
    let range = program
        .named(symbol)
        .and_then(|found| Some(program.owner(found.address)?.1));
    let Some(range) = range else {
        return Some(format!(
            "entry code: symbol {symbol} is not in the ELF file, but \
             kernel/granule-kcore/src/trace/entry_code.rs has a list for it"
        ));
    };
    let there: Vec<u16> = range
        .step_by(4)
        .filter(|pc| !program.is_data(*pc))
        .filter_map(|pc| a64::maintenance(program.word(pc)?))
        .collect();
    let steps = routine.parts.iter().flat_map(|(_, steps)| *steps);
    let recorded: Vec<u16> = steps.map(|step| number(*step)).collect();
    (there != recorded).then(|| {
        format!(
            "entry code: {symbol} has [{}], a trace would report [{}]: bring \
             kernel/granule-kcore/src/trace/entry_code.rs to what the assembly does",
            names(&there),
            names(&recorded)
        )
    })
}

/// op0 0, op1 3, CRn 3: barriers, with CRm the option and op2 the kind.
const BARRIERS: u16 = 3 << 11 | 3 << 7;

pub(crate) fn number(step: Step) -> u16 {
    match step {
        Step::System(system) => system.0,
        Step::Barrier(barrier) => number_of(barrier),
    }
}

fn number_of(barrier: Barrier) -> u16 {
    let kind = match barrier.kind {
        BarrierKind::Dsb => 4,
        BarrierKind::Dmb => 5,
        BarrierKind::Isb => 6,
        // No list has an unknown word; 0 is not a barrier's number and differs from all.
        _ => 0,
    };
    BARRIERS | u16::from(barrier.option) << 3 | kind
}

const NAMED: [(Barrier, &str); 7] = [
    (Barrier::ISB, "isb"),
    (Barrier::DSB_SY, "dsb sy"),
    (Barrier::DSB_NSH, "dsb nsh"),
    (Barrier::DSB_NSHST, "dsb nshst"),
    (Barrier::DSB_ISH, "dsb ish"),
    (Barrier::DSB_ISHST, "dsb ishst"),
    (Barrier::DMB_SY, "dmb sy"),
];

pub(crate) fn names(numbers: &[u16]) -> String {
    let name = |number: &u16| {
        let barriers = NAMED
            .iter()
            .map(|(barrier, name)| (number_of(*barrier), *name));
        let systems = System::NAMED.iter().map(|(system, name)| (system.0, *name));
        let mut all = barriers.chain(systems);
        match all.find(|(other, _)| other == number) {
            Some((_, name)) => name.to_owned(),
            None => format!("system {number:#06x}"),
        }
    };
    numbers.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_kcore::trace::entry_code::{ALL, ENABLE_MMU};

    const ISB: u32 = 0xd503_3fdf;
    const RET: u32 = 0xd65f_03c0;

    /// A program with the steps of the lists, and a `ret` after each routine.
    fn faithful() -> (Program, Vec<u32>) {
        let mut words = Vec::new();
        let mut program = Program::default();
        for routine in ALL {
            program.add_symbol(routine.symbol, 4 * words.len() as u64, 0, false);
            let steps = routine.parts.iter().flat_map(|(_, steps)| *steps);
            words.extend(steps.map(|step| 0xd500_001f | u32::from(number(*step)) << 5));
            words.push(RET);
        }
        (program, words)
    }

    fn findings(change: impl FnOnce(&mut Vec<u32>)) -> Vec<String> {
        let (mut program, mut words) = faithful();
        change(&mut words);
        program.add_code(0, words);
        check(&program, ALL)
    }

    #[test]
    fn a_faithful_list_passes_and_a_barrier_less_does_not() {
        assert_eq!(findings(|_| ()), Vec::<String>::new());
        let (_, words) = faithful();
        let tracked = words.iter().enumerate().filter(|(_, word)| **word != RET);
        for (at, _) in tracked {
            // Replaces the instruction by one without effect.
            let found = findings(|words| words[at] = 0xd503_201f);
            assert_eq!(found.len(), 1, "word {at}: {found:#?}");
        }
    }

    #[test]
    fn additional_or_misplaced_steps_are_named() {
        let more = findings(|words| *words.last_mut().unwrap() = ISB);
        assert_eq!(more.len(), 1);
        let expected = [
            "enable_mmu_and_jump has [dsb sy, vmalle1, dsb nsh,",
            "entry_code.rs",
        ];
        assert!(
            expected.iter().all(|part| more[0].contains(part)),
            "{more:#?}"
        );
        let last = findings(|words| {
            let end = words.len() - 1;
            words.swap(end - 2, end - 1);
        });
        assert!(last[0].contains("isb, dsb nsh], a trace"), "{last:#?}");
        let missing = check(
            &faithful().0,
            &[Routine {
                symbol: "x",
                ..ENABLE_MMU
            }],
        );
        assert!(missing[0].contains("symbol x is not in"), "{missing:#?}");
    }
}
