//! Compares the predicted counts of the relocation code with its assembly, which is interpreted
//! here: DSBs, TLBIs, operations on lines, loads and stores.

use crate::machine::{Cpu, Did};
use crate::routine::{LINES, Loaded, everything, in_assembly, one_run, program, ways};
use granule::arch::PhysicalAddress;
use granule_kexec::{Clean, InstructionCounts, RECORD_BYTES, UNCACHED, Way, copy_accesses};
use granule_trace::{BarrierKind, System};

/// Returns the counts that are computed without executing anything.
fn counted(loaded: &Loaded, line: u32) -> InstructionCounts {
    let head = PhysicalAddress(loaded.at.wrapping_sub(loaded.header.distance));
    InstructionCounts::of(&loaded.memory, head, &loaded.header, 4 << line)
}

/// Returns the counts of what the assembly executed.
fn executed(cpu: &Cpu) -> InstructionCounts {
    let of = |which: fn(&Did) -> bool| cpu.count(which) as u64;
    InstructionCounts {
        dsb: of(|did| matches!(did, Did::Barrier(it) if it.kind == BarrierKind::Dsb)),
        tlbi: of(|did| matches!(did, Did::System(it, _) if it.is_tlbi())),
        lines: of(|did| {
            let all = [System::DC_CVAC, System::DC_CIVAC, System::DC_IVAC];
            matches!(did, Did::System(it, _) if all.contains(it))
        }),
    }
}

/// One record of each kind, two, and more than a page of the list has room for; with lines of 64
/// bytes, and for few pages of all lengths.
fn loads(way: &Way) -> Vec<(Loaded, &'static [u32])> {
    let few = [1, 2, 4].map(|pages| (everything(way, pages), &LINES[..]));
    let more = [(everything(way, 180), &LINES[2..3])];
    few.into_iter().chain(more).collect()
}

#[test]
fn predicted_counts_are_the_executed_ones() {
    let program = program();
    for way in ways() {
        for (loaded, lines) in loads(&way) {
            for &line in lines {
                let (_, cpu, _) = in_assembly(&program, &loaded, line).unwrap();
                let found = counted(&loaded, line);
                assert_eq!(found, executed(&cpu), "{way:?}, line {line}");
                // Two changes of tables, the last TLBI, the end of the copy twice; past the caches
                // the end of the lines behind the copy twice: however many records there are.
                let dsb = if way.uncached { 7 } else { 5 };
                let records = loaded.header.records;
                assert_eq!(
                    (found.dsb, found.tlbi),
                    (dsb, 3),
                    "{way:?}, {records} records"
                );
            }
        }
    }
}

/// Loads of the header: two before the jump to its page, five there.
const HEADER: u64 = 7;

/// Loads each time that the list is gone through: two a record, and two for what leads on or ends
/// it.
fn of_list(loaded: &Loaded) -> u64 {
    2 * (loaded.header.records + loaded.list.len() as u64)
}

#[test]
fn copying_takes_the_predicted_loads_and_stores() {
    let program = program();
    let mut seen = 0;
    for way in ways() {
        let mut all = loads(&way);
        all.push((one_run(300, Clean::All, way.uncached), &LINES[2..3]));
        for (loaded, lines) in all {
            assert_eq!(loaded.header.flags & UNCACHED != 0, way.uncached);
            let copied = loaded.header.bytes_copied;
            let list = of_list(&loaded);
            for &line in lines {
                let (_, cpu, _) = in_assembly(&program, &loaded, line).unwrap();
                let expected = if way.uncached {
                    // Cleaned with the MMU on, copied and cleaned again without.
                    [HEADER + list, copy_accesses(copied) + 2 * list]
                } else {
                    [HEADER + list + copy_accesses(copied), 0]
                };
                assert_eq!(cpu.accesses, expected, "{way:?}, line {line}");
                seen += copied;
            }
        }
    }
    assert!(
        seen > 0 && RECORD_BYTES == 2 * 16,
        "two loads of a pair a record"
    );
}
