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
    segments: Vec<(u64, u64, u64, Clean, Vec<PhysRange>)>,
    pub list: BTreeSet<u64>,
}

fn load(segments: Vec<(u64, u64, u64, Clean, Vec<PhysRange>)>, way: &Way) -> Loaded {
    let views: Vec<Segment<'_>> = segments
        .iter()
        .map(|(destination, bytes, memory, clean, pages)| Segment {
            name: "segment",
            destination: *destination,
            bytes: *bytes,
            memory: *memory,
            pages,
            clean: *clean,
        })
        .collect();
    let mut memory = Memory::default();
    let mut pages = Pages::new(PageSize::K4, BASE + 30 * MIB, 100);
    let memory_map = MemoryMap {
        kept: &[],
        ..memory_map()
    };
    let mut list = write(&mut memory, &mut pages, &views, &memory_map).unwrap();
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

/// An image in runs of pages, some of it in place, a tree, an initramfs: a bit of everything, in
/// more than one page of the list.
pub fn everything(way: &Way, pages: u64) -> Loaded {
    let far = RAM[1].start;
    let image = (0..pages).map(|index| match index % 4 {
        // In place.
        3 => PhysRange::new(BASE + index * PAGE, PAGE),
        _ => PhysRange::new(far + (2 * index + u64::from(index % 4 == 1)) * PAGE, PAGE),
    });
    let image: Vec<PhysRange> = image.collect();
    let tree = vec![PhysRange::new(far + 8 * MIB, PAGE)];
    let initramfs = vec![
        PhysRange::new(far + 9 * MIB, 2 * PAGE),
        PhysRange::new(BASE + 16 * MIB + 2 * PAGE, PAGE),
    ];
    load(
        vec![
            (
                BASE,
                pages * PAGE - 100,
                (pages + 2) * PAGE,
                Clean::All,
                image,
            ),
            (BASE + 8 * MIB, 77, PAGE, Clean::Moved, tree),
            (
                BASE + 16 * MIB,
                3 * PAGE,
                3 * PAGE,
                Clean::Nothing,
                initramfs,
            ),
        ],
        way,
    )
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

/// Runs the assembly; returns the number of instructions too.
pub fn in_assembly(
    program: &Program,
    loaded: &Loaded,
    line: u32,
) -> Result<(Begin, Cpu, u64), String> {
    at_most(2_000_000, program, loaded, line)
}

fn at_most(
    most: u64,
    program: &Program,
    loaded: &Loaded,
    line: u32,
) -> Result<(Begin, Cpu, u64), String> {
    let mut cpu = cpu(loaded, line);
    let mut run = Run::new(program, &mut cpu, way().code.0);
    run.most = most;
    let begin = run.execute(loaded.at)?;
    let executed = run.executed;
    Ok((begin, cpu, executed))
}

pub fn ways() -> Vec<Way> {
    [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .map(|(uncached, el2)| Way {
            uncached,
            el2,
            ..way()
        })
        .collect()
}

/// 16, 32, 64, 128 and 4096 bytes.
pub const LINES: [u32; 5] = [2, 3, 4, 5, 10];

pub fn program() -> Program {
    Program::parse(TEXT).unwrap()
}

#[test]
#[cfg_attr(
    miri,
    ignore = "interpreted instructions take Miri minutes; nothing unsafe is in it"
)]
fn assembly_and_rust_do_the_same_steps_in_the_same_order() {
    let program = program();
    for way in ways() {
        let loaded = everything(&way, if cfg!(miri) { 4 } else { 180 });
        assert!(cfg!(miri) || loaded.list.len() > 1, "no link is followed");
        let lines = if cfg!(miri) { &LINES[2..3] } else { &LINES[..] };
        for &line in lines {
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
#[cfg_attr(
    miri,
    ignore = "interpreted instructions take Miri minutes; nothing unsafe is in it"
)]
fn no_instruction_is_idle() {
    let program = program();
    let ways = ways();
    let some = if cfg!(miri) { 1 } else { ways.len() };
    let loaded: Vec<Loaded> = ways[..some]
        .iter()
        .map(|way| with_a_link(everything(way, 4)))
        .collect();
    let mut expected = Vec::new();
    for one in &loaded {
        for line in [4, 2, 10].into_iter().take(if cfg!(miri) { 1 } else { 3 }) {
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
        .step_by(if cfg!(miri) { 60 } else { 1 })
        .filter(|&index| !differs(&program.without(index)))
        .map(|index| program.instructions[index].text.as_str())
        .collect();
    let stop = "b       .Lkexec_stop_here";
    let mut expected = vec![stop; 15];
    // The list's end leaves zeros there, which is not relied on.
    expected.extend(["mov     x1, xzr", "mov     x2, xzr"]);
    // The loop of a CPU that takes an unexpected exception, as the vectors above.
    expected.extend(["wfi", stop]);
    if !cfg!(miri) {
        assert_eq!(idle, expected);
    }
}

#[test]
#[cfg_attr(
    miri,
    ignore = "pages word by word take Miri minutes; nothing unsafe is in it"
)]
fn the_wanted_bytes_are_there_and_nothing_else_is_written() {
    for way in ways() {
        let loaded = everything(&way, if cfg!(miri) { 4 } else { 150 });
        let (begin, cpu) = in_rust(&loaded, 4);
        assert_eq!(
            begin,
            Begin {
                address: way.entry.0,
                arguments: [way.tree.0, 0, 0, 0],
                el2: way.el2,
            }
        );
        assert_eq!(cpu.count(|did| matches!(did, Did::Fault(_))), 0);
        let mut wanted = loaded.memory.clone();
        for (destination, _, _, _, pages) in &loaded.segments {
            let mut at = *destination;
            for run in pages {
                for offset in (0..run.bytes).step_by(8) {
                    if run.start != at {
                        wanted.write(at + offset, untouched(run.start + offset));
                    }
                }
                at += run.bytes;
            }
        }
        assert!(cpu.memory == wanted);
    }
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
#[cfg_attr(
    miri,
    ignore = "pages word by word take Miri minutes; nothing unsafe is in it"
)]
fn every_line_is_cleaned_after_it_is_stored_and_waited_for_before_the_mmu_goes_off() {
    for el2 in [false, true] {
        let way = Way { el2, ..way() };
        let loaded = everything(&way, if cfg!(miri) { 4 } else { 20 });
        for line in [3, 4, 5] {
            let (_, cpu) = in_rust(&loaded, line);
            let off = cpu.did.iter().position(
                |did| matches!(did, Did::System(System::SCTLR_EL1, value) if value & 1 == 0),
            );
            let off = off.unwrap();
            let waits = cpu
                .did
                .iter()
                .rposition(|did| *did == Did::Barrier(Barrier::DSB_SY));
            let waits = waits.unwrap();
            assert!(waits < off);
            let mut cleaned = 0;
            let stores = last(&cpu, stored);
            let whole_line = |at: u64| at & !((4 << line) - 1);
            let cleans = last(&cpu, |did| operated(System::DC_CVAC)(did).map(whole_line));
            for (destination, bytes, memory, clean, pages) in &loaded.segments {
                let whole = bytes.next_multiple_of(PAGE);
                for offset in (0..*memory).step_by(4 << line) {
                    let at = destination + offset;
                    let behind = offset >= whole;
                    let (mut from, mut moved) = (*destination, false);
                    for run in pages {
                        moved |= (from..from + run.bytes).contains(&at) && run.start != from;
                        from += run.bytes;
                    }
                    let must = match clean {
                        Clean::Nothing => false,
                        Clean::Moved => moved || behind,
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
    load(
        vec![(BASE, pages * PAGE, pages * PAGE, clean, source)],
        &way,
    )
}

/// Instructions for 64 bytes of one more page, from the difference, in hundredths.
fn per_line(clean: Clean) -> u64 {
    let program = program();
    let count = |pages| {
        in_assembly(&program, &one_run(pages, clean, false), 4)
            .unwrap()
            .2
    };
    let (few, many) = (count(1), count(9));
    (many - few) * 100 / (8 * PAGE / 64)
}

#[test]
#[cfg_attr(
    miri,
    ignore = "interpreted instructions take Miri minutes; nothing unsafe is in it"
)]
fn a_line_takes_so_many_instructions() {
    // The yardstick is 9.5 for the copy, and 1 for each line cleaned; 1.1 times that is the limit.
    assert_eq!(per_line(Clean::Nothing), 850);
    assert_eq!(per_line(Clean::All), 950);
}

#[test]
#[cfg_attr(
    miri,
    ignore = "interpreted instructions take Miri minutes; nothing unsafe is in it"
)]
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
        let only_cleaned = 2.5
            * lines(
                loaded.segments[0].2 - loaded.segments[0].1.next_multiple_of(PAGE)
                    + pages / 4 * PAGE,
            );
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
#[cfg_attr(
    miri,
    ignore = "pages word by word take Miri minutes; nothing unsafe is in it"
)]
fn without_the_mmu_nothing_is_left_in_caches() {
    let loaded = everything(
        &Way {
            uncached: true,
            ..way()
        },
        if cfg!(miri) { 4 } else { 20 },
    );
    let (_, cpu) = in_rust(&loaded, 4);
    let off = cpu
        .did
        .iter()
        .position(|did| matches!(did, Did::System(System::SCTLR_EL1, _)))
        .unwrap();
    let copies = |did: &Did| matches!(did, Did::Store(_));
    let begins = cpu.did.iter().position(copies).unwrap();
    let cleans = first(&cpu, operated(System::DC_CIVAC));
    let drops = first(&cpu, operated(System::DC_IVAC));
    assert!(off < begins, "something is copied with the MMU on");
    let last_store = cpu.did.iter().rposition(copies).unwrap();
    for (destination, _, _, _, pages) in &loaded.segments {
        let mut at = *destination;
        for run in pages {
            for offset in (0..run.bytes).step_by(64) {
                if run.start != at {
                    // Read past the caches, so cleaned before; written past them, so neither
                    // written back over nor found as it was.
                    for line in [run.start + offset, at + offset] {
                        let line = line.wrapping_add(cpu.distance);
                        assert!(cleans[&line] < off);
                    }
                    assert!(drops[&(at + offset)] > last_store);
                }
            }
            at += run.bytes;
        }
    }
}

#[test]
#[cfg_attr(
    miri,
    ignore = "interpreted instructions take Miri minutes; nothing unsafe is in it"
)]
fn the_code_fits_its_page_and_begins_where_it_is_jumped_to() {
    let program = program();
    assert_eq!(program.bytes, CODE_BYTES as u64);
    assert!(
        PageSize::ALL
            .iter()
            .all(|size| size.bytes() >= CODE_BYTES as u64)
    );
    assert!(Program::parse("frobnicate: bad {nothing}").is_err());
    assert!(Program::parse("    .align 3").is_err());
    let broken = Program::parse(&TEXT.replace("dsb     sy", "dsb     st")).unwrap();
    let loaded = everything(&way(), 4);
    assert!(in_assembly(&broken, &loaded, 4).is_err());
}

#[test]
#[cfg_attr(
    miri,
    ignore = "pages word by word take Miri minutes; nothing unsafe is in it"
)]
fn the_recorded_events_are_the_executed_steps() {
    for way in ways() {
        let loaded = everything(&way, if cfg!(miri) { 4 } else { 30 });
        let (begin, cpu) = in_rust(&loaded, 4);
        let segments = &loaded.segments;
        let is_emitted = |at: u64| {
            segments.iter().any(|(destination, _, memory, clean, _)| {
                (*destination..destination + memory).contains(&at)
                    && (way.uncached || *clean != Clean::Nothing)
            })
        };
        let mut events = Vec::new();
        let emit = |event| events.push(event);
        let mut recorder = Recorder::new(
            &loaded.memory,
            loaded.header.distance,
            cpu.tcr,
            64,
            is_emitted,
            emit,
        );
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
                } => found.extend(
                    (start..start + bytes)
                        .step_by(64)
                        .map(|at| Did::System(instruction, at)),
                ),
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
        assert!(
            events.len() < 40 + 8 * loaded.header.records as usize,
            "{}",
            events.len()
        );
    }
}
