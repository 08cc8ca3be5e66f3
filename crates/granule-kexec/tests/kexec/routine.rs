//! The relocation code, in Rust and in assembly: both do the same and follow the list, no
//! instruction is idle, and the number of instructions is fixed.

use crate::assembly::{Program, Run, TEXT};
use crate::list::way;
use crate::machine::{Cpu, Did};
use crate::scene::{Memory, Pages, RAM, seal, untouched, write};
use crate::segments::{BASE, memory_map};
use crate::tables::transition;
use granule::arch::PageSize;
use granule_kexec::steps::{Begin, leave};
use granule_kexec::{CODE_BYTES, Clean, ListHeader, MemoryMap, PhysRange, Recorder, Segment, Way};
use granule_trace::{Barrier, Event, System};
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// Something to relocate, loaded.
pub struct Loaded {
    pub memory: Memory,
    pub header: ListHeader,
    pub at: u64,
    segments: Vec<Segment<'static>>,
    pub list: BTreeSet<u64>,
}

fn load(segments: Vec<Segment<'static>>, way: &Way) -> Loaded {
    let mut memory = Memory::default();
    let mut pages = Pages::new(PageSize::K4, BASE + 30 * MIB, 100);
    let memory_map = MemoryMap {
        kept: &[],
        ..memory_map()
    };
    let mut list = write(&mut memory, &mut pages, &segments, &memory_map).unwrap();
    let transition = transition();
    let header = seal(&mut list, &mut memory, way, transition, 1 << 39).unwrap();
    Loaded {
        memory,
        header,
        at: list.head().0.wrapping_add(transition.distance()),
        segments,
        list: pages.out,
    }
}

fn segment(
    destination: u64,
    bytes: u64,
    memory: u64,
    clean: Clean,
    pages: Vec<PhysRange>,
) -> Segment<'static> {
    Segment {
        name: "segment",
        destination,
        bytes,
        memory,
        pages: pages.leak(),
        clean,
    }
}

/// The runs of pages of a segment, each with the address where it is to be.
fn runs(segment: &Segment<'static>) -> impl Iterator<Item = (u64, PhysRange)> {
    let mut at = segment.destination;
    segment.pages.iter().map(move |run| {
        at += run.bytes;
        (at - run.bytes, *run)
    })
}

/// An image in runs of pages, some of it in place, a tree, an initramfs: a bit of everything, in
/// more than one page of the list.
pub fn everything(way: &Way, pages: u64) -> Loaded {
    let far = RAM[1].start;
    let image = (0..pages).map(|index| match index % 4 {
        // In place.
        3 => PhysRange::new(BASE + index * PAGE, PAGE),
        _ => PhysRange::new(far + (2 * index + u64::from(index % 4 == 1)) * PAGE, PAGE),
    });
    let (bytes, memory) = (pages * PAGE - 100, (pages + 2) * PAGE);
    let image = segment(BASE, bytes, memory, Clean::All, image.collect());
    let source = vec![PhysRange::new(far + 8 * MIB, PAGE)];
    let tree = segment(BASE + 8 * MIB, 77, PAGE, Clean::Moved, source);
    let at = BASE + 16 * MIB;
    let sources = vec![
        PhysRange::new(far + 9 * MIB, 2 * PAGE),
        PhysRange::new(at + 2 * PAGE, PAGE),
    ];
    let initramfs = segment(at, 3 * PAGE, 3 * PAGE, Clean::Nothing, sources);
    load(vec![image, tree, initramfs], way)
}

fn cpu(loaded: &Loaded, line: u32) -> Cpu {
    let mut cpu = Cpu::new(
        loaded.memory.clone(),
        loaded.header.distance,
        0x1234_0000_0000_0025,
    );
    cpu.line = line;
    cpu
}

/// Runs the steps in Rust.
fn in_rust(loaded: &Loaded, line: u32) -> (Begin, Cpu) {
    let mut cpu = cpu(loaded, line);
    let begin = leave(&mut cpu, loaded.at);
    (begin, cpu)
}

/// The begin of the next kernel, the CPU, and the number of instructions.
type Executed = Result<(Begin, Cpu, u64), String>;

/// Runs the assembly.
pub fn in_assembly(program: &Program, loaded: &Loaded, line: u32) -> Executed {
    at_most(2_000_000, program, loaded, line)
}

fn at_most(most: u64, program: &Program, loaded: &Loaded, line: u32) -> Executed {
    let mut cpu = cpu(loaded, line);
    let mut run = Run::new(program, &mut cpu, way().code.0);
    run.most = most;
    let begin = run.execute(loaded.at)?;
    let executed = run.executed;
    Ok((begin, cpu, executed))
}

pub fn ways() -> Vec<Way> {
    let all = [(false, false), (false, true), (true, false), (true, true)];
    let all = all.map(|(uncached, el2)| Way {
        uncached,
        el2,
        ..way()
    });
    all.into()
}

/// 16, 32, 64, 128 and 4096 bytes.
pub const LINES: [u32; 5] = [2, 3, 4, 5, 10];

pub fn program() -> Program {
    Program::parse(TEXT).unwrap()
}

#[test]
fn assembly_and_rust_do_the_same_steps_in_the_same_order() {
    let program = program();
    for way in ways() {
        let loaded = everything(&way, 180);
        assert!(loaded.list.len() > 1, "no link is followed");
        for line in LINES {
            let (begin, rust) = in_rust(&loaded, line);
            let (other, assembly, _) = in_assembly(&program, &loaded, line).unwrap();
            assert_eq!(begin, other);
            assert!(rust.did.len() > 1000);
            let difference = rust.did.iter().zip(&assembly.did).position(|(a, b)| a != b);
            if let Some(at) = difference {
                panic!(
                    "{way:?}, lines of {}: step {at}: {:x?} in Rust, {:x?} in assembly",
                    4 << line,
                    &rust.did[at..at + 3],
                    &assembly.did[at..at + 3]
                );
            }
            assert_eq!(rust.did.len(), assembly.did.len());
            assert!(rust.memory == assembly.memory);
        }
    }
}

/// All records in another page than the header, which leads there: what a longer list has.
fn with_a_link(mut loaded: Loaded) -> Loaded {
    let page = BASE + 28 * MIB;
    for at in (0..PAGE - 128).step_by(8) {
        let word = loaded.memory.read(loaded.header.first + at);
        loaded.memory.write(page + at, word);
    }
    for (index, word) in [page, 0, 0, 4].into_iter().enumerate() {
        loaded
            .memory
            .write(loaded.header.first + 8 * index as u64, word);
    }
    loaded
}

#[test]
fn no_instruction_is_idle() {
    let program = program();
    let loaded: Vec<Loaded> = ways()
        .iter()
        .map(|way| with_a_link(everything(way, 4)))
        .collect();
    let mut expected = Vec::new();
    for one in &loaded {
        for line in [4, 2, 10] {
            expected.push((one, line, in_rust(one, line)));
        }
    }
    let differs = |program: &Program| {
        expected.iter().any(|(loaded, line, (begin, cpu))| {
            match at_most(80_000, program, loaded, *line) {
                Ok((other, found, _)) => {
                    other != *begin || found.did != cpu.did || found.memory != cpu.memory
                }
                Err(_) => true,
            }
        })
    };
    assert!(!differs(&program));
    let idle: Vec<&str> = (0..program.instructions.len())
        .filter(|&index| !differs(&program.without(index)))
        .map(|index| program.instructions[index].text.as_str())
        .collect();
    let stop = "b       .Lkexec_stop_here";
    let mut expected = vec![stop; 15];
    // The list's end leaves zeros there, which is not relied on.
    expected.extend(["mov     x1, xzr", "mov     x2, xzr"]);
    // The loop of a CPU that takes an unexpected exception, as the vectors above.
    expected.extend(["wfi", stop]);
    assert_eq!(idle, expected);
}

#[test]
fn the_wanted_bytes_are_there_and_nothing_else_is_written() {
    for way in ways() {
        let loaded = everything(&way, 150);
        let (begin, cpu) = in_rust(&loaded, 4);
        let (address, arguments, el2) = (way.entry.0, [way.tree.0, 0, 0, 0], way.el2);
        assert_eq!(
            begin,
            Begin {
                address,
                arguments,
                el2
            }
        );
        assert_eq!(cpu.count(|did| matches!(did, Did::Fault(_))), 0);
        let mut wanted = loaded.memory.clone();
        let moved = loaded.segments.iter().flat_map(runs);
        for (at, run) in moved.filter(|(at, run)| run.start != *at) {
            for offset in (0..run.bytes).step_by(8) {
                wanted.write(at + offset, untouched(run.start + offset));
            }
        }
        assert!(cpu.memory == wanted);
    }
}

/// When the MMU was switched off.
fn mmu_off(cpu: &Cpu) -> usize {
    let off = |did: &Did| matches!(did, Did::System(System::SCTLR_EL1, value) if value & 1 == 0);
    cpu.did.iter().position(off).unwrap()
}

/// When something was done last, by the address that it was done to.
fn last(cpu: &Cpu, which: impl Fn(&Did) -> Option<u64>) -> BTreeMap<u64, usize> {
    let all = cpu.did.iter().enumerate();
    all.filter_map(|(at, did)| Some((which(did)?, at)))
        .collect()
}

/// And when it was done first.
fn first(cpu: &Cpu, which: impl Fn(&Did) -> Option<u64>) -> BTreeMap<u64, usize> {
    let all = cpu.did.iter().enumerate().rev();
    all.filter_map(|(at, did)| Some((which(did)?, at)))
        .collect()
}

const fn stored(did: &Did) -> Option<u64> {
    match did {
        Did::Store(at) => Some(*at),
        _ => None,
    }
}

/// The address that a cache operation is for.
fn operated(system: System) -> impl Fn(&Did) -> Option<u64> {
    move |did| match did {
        Did::System(found, at) if *found == system => Some(*at),
        _ => None,
    }
}

#[test]
fn every_line_is_cleaned_after_it_is_stored_and_waited_for_before_the_mmu_goes_off() {
    for el2 in [false, true] {
        let way = Way { el2, ..way() };
        let loaded = everything(&way, 20);
        for line in [3, 4, 5] {
            let (_, cpu) = in_rust(&loaded, line);
            let wait = Did::Barrier(Barrier::DSB_SY);
            let waits = cpu.did.iter().rposition(|did| *did == wait).unwrap();
            assert!(waits < mmu_off(&cpu));
            let mut cleaned = 0;
            let stores = last(&cpu, stored);
            let whole_line = |at: u64| at & !((4 << line) - 1);
            let cleans = last(&cpu, |did| operated(System::DC_CVAC)(did).map(whole_line));
            for segment in &loaded.segments {
                let whole = segment.bytes.next_multiple_of(PAGE);
                for offset in (0..segment.memory).step_by(4 << line) {
                    let at = segment.destination + offset;
                    let moved = runs(segment)
                        .any(|(to, run)| (to..to + run.bytes).contains(&at) && run.start != to);
                    let must = match segment.clean {
                        Clean::Nothing => false,
                        Clean::Moved => moved || offset >= whole,
                        _ => true,
                    };
                    let at = at.wrapping_add(cpu.distance);
                    let clean = cleans.get(&at);
                    assert_eq!(clean.is_some(), must, "{at:#x}");
                    let Some(clean) = clean else { continue };
                    cleaned += 1;
                    assert!(*clean < waits);
                    for word in (0..4 << line).step_by(8) {
                        let stored = stores.get(&(at + word));
                        assert_eq!(stored.is_some(), moved);
                        assert!(stored.is_none_or(|stored| stored < clean));
                    }
                }
            }
            assert_eq!(cleaned << (line + 2), loaded.header.bytes_cleaned);
            if line == 4 {
                let lines = cpu.count(|did| matches!(did, Did::System(System::DC_CVAC, _)));
                assert_eq!(lines as u64, cleaned, "each line once");
            }
        }
    }
}

/// One segment in one run.
pub fn one_run(pages: u64, clean: Clean, uncached: bool) -> Loaded {
    let way = Way { uncached, ..way() };
    let source = vec![PhysRange::new(RAM[1].start, pages * PAGE)];
    let bytes = pages * PAGE;
    load(vec![segment(BASE, bytes, bytes, clean, source)], &way)
}

/// Instructions for 64 bytes of one more page, from the difference, in hundredths.
fn per_line(clean: Clean) -> u64 {
    let program = program();
    let count = |pages| {
        let loaded = one_run(pages, clean, false);
        in_assembly(&program, &loaded, 4).unwrap().2
    };
    let (few, many) = (count(1), count(9));
    (many - few) * 100 / (8 * PAGE / 64)
}

#[test]
fn a_line_takes_so_many_instructions() {
    // The yardstick is 9.5 for the copy, and 1 for each line cleaned; 1.1 times that is the limit.
    assert_eq!(per_line(Clean::Nothing), 850);
    assert_eq!(per_line(Clean::All), 950);
}

#[test]
fn all_but_lines_that_are_only_cleaned_is_below_the_limit_and_barriers_do_not_grow() {
    let program = program();
    let mut barriers = BTreeSet::new();
    for pages in [1, 16, 400] {
        let loaded = everything(&way(), pages);
        let (_, cpu, executed) = in_assembly(&program, &loaded, 4).unwrap();
        let dsb = |did: &Did| matches!(did, Did::Barrier(it) if it.kind == Barrier::DSB_SY.kind);
        barriers.insert(cpu.count(dsb));
        let lines = |bytes: u64| bytes as f64 / 64.0;
        let limit =
            1.1 * (9.5 * lines(loaded.header.bytes_copied) + lines(loaded.header.bytes_cleaned));
        // The code's beginning and end, and three instructions for each record and each page.
        let fixed = 150.0 + 12.0 * loaded.header.records as f64;
        // Memory that is cleaned and not copied takes two and a half instructions a line.
        let image = &loaded.segments[0];
        let behind = image.memory - image.bytes.next_multiple_of(PAGE);
        let only_cleaned = 2.5 * lines(behind + pages / 4 * PAGE);
        assert!(
            (executed as f64) < limit + fixed + only_cleaned,
            "{executed} instructions, limit {limit}"
        );
    }
    // One for all the bytes, and those of the TLBIs and the IC.
    assert_eq!(barriers, BTreeSet::from([5]));
    // As large as 4 MiB, in one piece: below the limit as it stands.
    for clean in [Clean::All, Clean::Nothing] {
        let loaded = one_run(1024, clean, false);
        let (_, _, executed) = in_assembly(&program, &loaded, 4).unwrap();
        let lines = 1024 * PAGE / 64;
        let cleaned = if clean == Clean::All { lines } else { 0 };
        let limit = 1.1 * (9.5 * lines as f64 + cleaned as f64);
        assert!((executed as f64) < limit, "{executed}, limit {limit}");
    }
}

#[test]
fn without_the_mmu_nothing_is_left_in_caches() {
    let loaded = everything(
        &Way {
            uncached: true,
            ..way()
        },
        20,
    );
    let (_, cpu) = in_rust(&loaded, 4);
    let off = mmu_off(&cpu);
    let copies = |did: &Did| matches!(did, Did::Store(_));
    let begins = cpu.did.iter().position(copies).unwrap();
    let cleans = first(&cpu, operated(System::DC_CIVAC));
    let drops = first(&cpu, operated(System::DC_IVAC));
    assert!(off < begins, "something is copied with the MMU on");
    let last_store = cpu.did.iter().rposition(copies).unwrap();
    let moved = loaded.segments.iter().flat_map(runs);
    for (at, run) in moved.filter(|(at, run)| run.start != *at) {
        for offset in (0..run.bytes).step_by(64) {
            // Read past the caches, so cleaned before; written past them, so neither
            // written back over nor found as it was.
            for line in [run.start + offset, at + offset] {
                assert!(cleans[&line.wrapping_add(cpu.distance)] < off);
            }
            assert!(drops[&(at + offset)] > last_store);
        }
    }
}

#[test]
fn the_code_fits_its_page_and_begins_where_it_is_jumped_to() {
    let program = program();
    assert_eq!(program.bytes, CODE_BYTES as u64);
    assert!(PageSize::MIN.bytes() >= CODE_BYTES as u64);
    assert!(Program::parse("frobnicate: bad {nothing}").is_err());
    assert!(Program::parse("    .align 3").is_err());
    let broken = Program::parse(&TEXT.replace("dsb     sy", "dsb     st")).unwrap();
    let loaded = everything(&way(), 4);
    assert!(in_assembly(&broken, &loaded, 4).is_err());
}

#[test]
fn the_recorded_events_are_the_executed_steps() {
    for way in ways() {
        let loaded = everything(&way, 30);
        let (begin, cpu) = in_rust(&loaded, 4);
        let segments = &loaded.segments;
        let is_emitted = |at: u64| {
            segments.iter().any(|segment| {
                let place = segment.destination..segment.destination + segment.memory;
                place.contains(&at) && (way.uncached || segment.clean != Clean::Nothing)
            })
        };
        let mut events = Vec::new();
        let emit = |event| events.push(event);
        let (memory, distance) = (&loaded.memory, loaded.header.distance);
        let mut recorder = Recorder::new(memory, distance, cpu.tcr, 64, is_emitted, emit);
        assert_eq!(leave(&mut recorder, loaded.at), begin);
        // Line by line again, and stores word by word.
        let mut found = Vec::new();
        let mut written = BTreeSet::new();
        for event in &events {
            match *event {
                Event::System(system, operand) => found.push(Did::System(system, operand)),
                Event::Barrier(barrier) => found.push(Did::Barrier(barrier)),
                Event::Lines {
                    instruction,
                    start,
                    bytes,
                } => {
                    let lines = (start..start + bytes).step_by(64);
                    found.extend(lines.map(|at| Did::System(instruction, at)));
                }
                Event::Data { start, bytes } => {
                    written.extend((start..start + bytes).step_by(8));
                }
                other => panic!("{other:?}"),
            }
        }
        // Lines are emitted by physical address, whether the MMU is on or off.
        let mut mmu_off = false;
        let done = cpu.did.iter().filter_map(|did| match *did {
            Did::System(system, operand) => {
                mmu_off |= system == System::SCTLR_EL1;
                let is_line =
                    [System::DC_CVAC, System::DC_CIVAC, System::DC_IVAC].contains(&system);
                let distance = if is_line && !mmu_off { cpu.distance } else { 0 };
                Some(Did::System(system, operand.wrapping_sub(distance)))
            }
            Did::Barrier(_) => Some(*did),
            Did::SctlrEl2(value) => Some(Did::System(System::SCTLR_EL2, value)),
            _ => None,
        });
        assert!(found == done.collect::<Vec<Did>>());
        let distance = if way.uncached { 0 } else { cpu.distance };
        let stores = cpu
            .did
            .iter()
            .filter_map(stored)
            .map(|at| at.wrapping_sub(distance));
        assert!(written == stores.filter(|at| is_emitted(*at)).collect());
        // Runs, not lines: far fewer events than steps.
        let most = 40 + 8 * loaded.header.records as usize;
        assert!(events.len() < most, "{}", events.len());
    }
}
