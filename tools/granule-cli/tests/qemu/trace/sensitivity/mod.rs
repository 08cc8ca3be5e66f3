//! The sensitivity of the checker: one event is taken out of a good trace, and two judges check the
//! rest.
//!
//! `granule check`'s model, in its default mode, *notices* or does not.
//! `granule_testing::mattering` decides whether the removal *matters*. The two share the reader of
//! traces, and no code of the judgement. docs/reliability.md has the last result.
//!
//! A trace of another kernel is long, and does not record what the kernel relies on. So both judges
//! check a window of the events that follow, and neither checks the end of the trace.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};

use flate2::read::MultiGzDecoder;
use granule_cli::PageSize::{K4, K16, K64};
use granule_model::trace::Reader;
use granule_model::{BarrierKind, Config, Event, Model, Policy, Rule};

use crate::trace::programs::runs;
use crate::trace::traces::Recorded;
use granule_testing::mattering::{Machine, matters};

/// Removals of each kind, from one trace. The soak runs more, from all.
const REMOVALS: usize = 3;
/// The most removals of like events with like events before them: a loop would be most of the sample.
const ALIKE: u64 = 4;
/// The events after a removal that are looked at in a trace of another kernel.
const WINDOW: usize = 200_000;
/// Removals of one instruction's events.
const OF_ONE_PLACE: usize = 160;

fn asked(name: &str) -> Option<usize> {
    let asked = std::env::var(format!("GRANULE_SENSITIVITY_{name}")).ok();
    asked.map(|number| number.parse().unwrap())
}

fn removals() -> Option<usize> {
    asked("REMOVALS")
}

fn seed() -> u64 {
    asked("SEED").map_or(1, |seed| seed as u64)
}

struct Trace {
    config: Config,
    events: Vec<(u32, Event)>,
    /// The model's reports on the whole trace: the rule and the event.
    known: HashSet<(Rule, u64)>,
    /// The events after a removal that are looked at; `None`: all of them, and the end.
    window: Option<usize>,
}

impl Trace {
    fn read(text: impl BufRead, window: Option<usize>) -> Self {
        let mut reader = Reader::new(text).unwrap();
        let config = reader.header().lacks.of(Config {
            cpus: reader.header().cpus,
            bbm_level: reader.header().bbm_level,
            policies: reader.header().policies,
            lazy: reader.header().lazy,
            ..Config::default()
        });
        assert!(reader.header().complete);
        let mut events = Vec::new();
        while let Some((_, cpu, event)) = reader.next_event().unwrap() {
            events.push((cpu, event));
        }
        let mut trace = Self {
            config,
            events,
            known: HashSet::new(),
            window,
        };
        let mut model = Model::new(config);
        let mut known = HashSet::new();
        trace.replay(&mut model, 0, usize::MAX, &mut |found| {
            known.insert(found);
            false
        });
        trace.known = known;
        trace
    }

    /// Goes on with the events from `from` to `to`, and at the end of the trace with what is relied
    /// on there. Returns whether `found` stopped at a report of the model.
    fn replay(
        &self,
        model: &mut Model,
        from: usize,
        to: usize,
        found: &mut dyn FnMut((Rule, u64)) -> bool,
    ) -> bool {
        let end = (0..self.config.cpus).map(|cpu| (cpu, Event::Settled));
        let all = self.events.iter().copied().chain(end);
        for (cpu, event) in all.skip(from).take(to.saturating_sub(from)) {
            model.event(cpu, event).unwrap();
            let stop = model
                .violations()
                .iter()
                .any(|one| found((one.rule, one.event)));
            model.clear_violations();
            if stop {
                return true;
            }
        }
        false
    }

    /// Whether the model reports anything new, as `granule check` does without options, if it is without
    /// an event. `before` is the model before the event.
    fn is_noticed(&self, before: &Model, left_out: usize) -> bool {
        let mut model = before.clone();
        let to = self.window.map_or(usize::MAX, |window| {
            self.events.len().min(left_out + 1 + window)
        });
        self.replay(&mut model, left_out + 1, to, &mut |(rule, event)| {
            // The events after the one that is left out have other numbers.
            let event = event + u64::from(event >= left_out as u64);
            !self.known.contains(&(rule, event))
        })
    }

    /// Whether the removal of an event matters. `before` is the machine before the event.
    fn matters(&self, before: &Machine, left_out: usize) -> bool {
        let rest = &self.events[left_out + 1..];
        let rest = self
            .window
            .map_or(rest, |window| &rest[..rest.len().min(window)]);
        matters(before, &self.events[left_out], rest, self.window.is_none())
    }

    /// The machine of the judge, at the beginning.
    fn machine(&self) -> Machine {
        let mut machine = Machine::new(self.config.cpus);
        machine.lazy = self.config.policies.has(Policy::LazyUnmap);
        machine.spurious = self.config.policies.has(Policy::SpuriousFaults);
        machine
    }

    /// The kind of an event, if its removal is judged.
    fn kind(&self, at: usize) -> Option<String> {
        let (cpu, event) = &self.events[at];
        let of_cpu = |event: &&(u32, Event)| event.0 == *cpu;
        let is_tlbi = |event: &Event| matches!(event, Event::System(system, _) if system.is_tlbi());
        let is_dsb =
            |event: &Event| matches!(event, Event::Barrier(one) if one.kind == BarrierKind::Dsb);
        Some(match event {
            Event::System(system, _) if system.is_tlbi() => format!("tlbi {}", system.name()?),
            Event::System(system, _) if system.is_register() => {
                format!("msr {}", system.name()?)
            }
            Event::Barrier(one) => match one.kind {
                BarrierKind::Isb => "isb".into(),
                BarrierKind::Dsb => {
                    let near = |(_, event): &&(u32, Event)| is_tlbi(event) || is_dsb(event);
                    let before = self.events[..at].iter().rev().filter(of_cpu).find(near);
                    let after = self.events[at + 1..].iter().filter(of_cpu).find(near);
                    let tlbi = |one: Option<&(u32, Event)>| one.is_some_and(|one| is_tlbi(&one.1));
                    match (tlbi(before), tlbi(after)) {
                        (true, _) => "dsb after a TLBI".into(),
                        (false, true) => "dsb before a TLBI".into(),
                        (false, false) => "dsb after stores".into(),
                    }
                }
                _ => "dmb".into(),
            },
            Event::Store { descriptor, .. } if descriptor & 1 == 0 => "store, invalid".into(),
            Event::Store { .. } => "store, valid".into(),
            Event::Update { .. } => "update".into(),
            _ => return None,
        })
    }

    /// Of traces that are long, only what this is about.
    fn is_sampled(&self, kind: &str) -> bool {
        let kinds = std::env::var("GRANULE_SENSITIVITY_KINDS");
        let kinds = kinds.unwrap_or_else(|_| "tlbi,dsb".into());
        self.window.is_none() || kinds.split(',').any(|one| kind.starts_with(one))
    }

    /// The events whose removal is tried, by kind.
    fn sample(&self, most: usize, seed: u64) -> Vec<(String, usize)> {
        let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for at in 0..self.events.len() {
            if let Some(kind) = self.kind(at).filter(|kind| self.is_sampled(kind)) {
                kinds.entry(kind).or_default().push(at);
            }
        }
        let mut state = seed;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 33
        };
        let mut sample = Vec::new();
        for (kind, mut places) in kinds {
            let mut alike: HashMap<_, u64> = HashMap::new();
            let mut taken = 0;
            while taken < most && !places.is_empty() {
                let at = places.swap_remove(random() as usize % places.len());
                let near = &self.events[at.saturating_sub(3)..=at];
                let seen = alike.entry(format!("{near:?}")).or_default();
                *seen += 1;
                if *seen <= ALIKE {
                    sample.push((kind.clone(), at));
                    taken += 1;
                }
            }
        }
        sample.sort_by_key(|(_, at)| *at);
        sample
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    removed: u64,
    mattered: u64,
    noticed: u64,
    /// Noticed, though the judge finds no use of it.
    harmless: u64,
}

/// Takes events out of a trace, one at a time.
fn measure(trace: &Trace, rows: &mut BTreeMap<String, Row>) {
    let (mut model, mut machine) = (Model::new(trace.config), trace.machine());
    let mut done = 0;
    for (kind, at) in trace.sample(removals().unwrap_or(REMOVALS), seed()) {
        for (cpu, event) in &trace.events[done..at] {
            machine.apply(*cpu, event);
        }
        trace.replay(&mut model, done, at, &mut |_| false);
        done = at;
        let row = rows.entry(kind.clone()).or_default();
        let (matters, noticed) = (trace.matters(&machine, at), trace.is_noticed(&model, at));
        row.removed += 1;
        row.mattered += u64::from(matters);
        row.noticed += u64::from(matters && noticed);
        row.harmless += u64::from(!matters && noticed);
        if matters && !noticed {
            println!(
                "not noticed: {kind}, line {}: {:x?}",
                at + 2,
                trace.events[at]
            );
        }
    }
}

fn own(recorded: &Recorded) -> Trace {
    let trace = Trace::read(recorded.text().as_bytes(), None);
    assert!(trace.known.is_empty(), "the whole trace is good");
    trace
}

#[test]
fn mattering_removals_from_traces_are_noticed() {
    let mut rows = BTreeMap::new();
    let copies = runs("copies", |request| {
        request.page_size = Some(K4);
        request.smp = 2;
    });
    measure(&own(&copies), &mut rows);
    if removals().is_some() {
        let copies = runs("copies", |request| {
            request.page_size = Some(K16);
            request.smp = 3;
        });
        measure(&own(&copies), &mut rows);
        let areas = runs("areas", |request| request.page_size = Some(K64));
        measure(&own(&areas), &mut rows);
        let sizes = runs("beside copies areas", |request| {
            request.page_size = Some(K4);
            request.smp = 4;
            request.memory = 1 << 30;
        });
        measure(&own(&sizes), &mut rows);
    }
    judge(&rows);
}

/// The traces of other kernels that `GRANULE_SENSITIVITY_TRACES` names, with commas: one that is missing is
/// a failure.
fn named() -> impl Iterator<Item = Trace> {
    let files = std::env::var("GRANULE_SENSITIVITY_TRACES").expect("GRANULE_SENSITIVITY_TRACES");
    let files: Vec<String> = files.split(',').map(str::to_owned).collect();
    files.into_iter().map(|file| {
        let text = File::open(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let text = BufReader::with_capacity(1 << 20, MultiGzDecoder::new(text));
        Trace::read(text, Some(asked("WINDOW").unwrap_or(WINDOW)))
    })
}

/// As above, with traces that `granule watch --record` made of other kernels: TLBIs and DSBs.
#[test]
#[ignore = "GRANULE_SENSITIVITY_TRACES names the traces"]
fn mattering_removals_from_recordings_of_linux_are_noticed() {
    let mut rows = BTreeMap::new();
    for trace in named() {
        measure(&trace, &mut rows);
    }
    judge(&rows);
    // Fewer would prove little.
    if removals().is_some_and(|number| number >= 100) {
        for family in ["tlbi", "dsb"] {
            let (mattered, _) = family_of(&rows, family);
            assert!(
                mattered >= 100,
                "{family}: {mattered} removals mattered, and 100 are needed"
            );
        }
    }
}

/// The events that a fault leaves out matter in one trace of another kernel, which was recorded
/// without faults: some effects of its instructions are used. `GRANULE_SENSITIVITY_PLACES` has the
/// addresses of each fault's instructions with commas, and semicolons between faults. `all`: every
/// TLBI and barrier, with what the checker notices, and none needs to matter.
#[test]
#[ignore = "GRANULE_SENSITIVITY_TRACES and GRANULE_SENSITIVITY_PLACES name trace and instructions"]
fn planted_faults_matter() {
    let trace = named().next().unwrap();
    let places = std::env::var("GRANULE_SENSITIVITY_PLACES").expect("GRANULE_SENSITIVITY_PLACES");
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let all = places == "all";
    let faults: Vec<Vec<u64>> = match all {
        true => Vec::new(),
        false => places
            .split(';')
            .map(|fault| fault.split(',').map(number).collect())
            .collect(),
    };
    let wanted = faults.iter().flatten();
    let mut found: BTreeMap<u64, Vec<usize>> = wanted.map(|at| (*at, Vec::new())).collect();
    let mut origins = HashMap::new();
    // Faults are planted once the first program runs.
    let mut there = all;
    for (at, (cpu, event)) in trace.events.iter().enumerate() {
        let is_kind = match event {
            Event::User => {
                there = true;
                false
            }
            Event::At(origin) => {
                origins.insert(*cpu, *origin);
                false
            }
            Event::Barrier(_) => true,
            Event::System(system, _) => system.is_tlbi(),
            _ => false,
        };
        if is_kind
            && there
            && let Some(origin) = origins.get(cpu)
        {
            match found.get_mut(origin) {
                Some(events) => events.push(at),
                None if all => drop(found.insert(*origin, vec![at])),
                None => (),
            }
        }
    }
    let sampled = found.iter().flat_map(|(place, events)| {
        let step = events
            .len()
            .div_ceil(asked("REMOVALS").unwrap_or(OF_ONE_PLACE));
        events.iter().step_by(step.max(1)).map(|at| (*at, *place))
    });
    let (mut model, mut machine) = (Model::new(trace.config), trace.machine());
    let (mut done, mut rows) = (0, BTreeMap::new());
    for (at, place) in BTreeMap::from_iter(sampled) {
        for (cpu, event) in &trace.events[done..at] {
            machine.apply(*cpu, event);
        }
        trace.replay(&mut model, done, at, &mut |_| false);
        done = at;
        let row: &mut Row = rows.entry(place).or_default();
        row.removed += 1;
        let matters = trace.matters(&machine, at);
        row.mattered += u64::from(matters);
        if all && matters {
            let noticed = trace.is_noticed(&model, at);
            row.noticed += u64::from(noticed);
            if !noticed {
                let event = trace.events[at];
                println!("not noticed: {place:#x}, line {}: {event:x?}", at + 2);
            }
        }
    }
    for (place, row) in rows.iter().filter(|_| all) {
        let Row {
            removed,
            mattered,
            noticed,
            ..
        } = row;
        let did = found[place].first().map(|at| trace.events[*at].1);
        println!("{place:#x}: {removed} removed, {mattered} mattered, {noticed} noticed, {did:x?}");
    }
    let mut idle = Vec::new();
    for (number, fault) in faults.iter().enumerate() {
        let of_fault = || fault.iter().filter_map(|place| rows.get(place));
        let removed: u64 = of_fault().map(|row| row.removed).sum();
        let mattered: u64 = of_fault().map(|row| row.mattered).sum();
        println!("fault {number}: {mattered} of {removed} removals mattered");
        if mattered == 0 {
            idle.push(number);
        }
    }
    assert!(idle.is_empty(), "faults that do not matter: {idle:?}");
    assert!(!rows.is_empty(), "the trace has none of these instructions");
}

/// Prints the table, and holds it against the aim.
fn judge(rows: &BTreeMap<String, Row>) {
    println!("| event left out | removals | mattered | noticed of these | noticed of the others |");
    println!("| --- | --- | --- | --- | --- |");
    for (kind, row) in rows {
        let Row {
            removed,
            mattered,
            noticed,
            harmless,
        } = row;
        println!("| `{kind}` | {removed} | {mattered} | {noticed} | {harmless} |");
    }
    for family in ["tlbi", "dsb"] {
        let (mattered, noticed) = family_of(rows, family);
        assert!(mattered > 5, "{family}: {mattered} removals mattered");
        assert!(
            noticed * 10 >= mattered * 9,
            "{family}: {noticed} noticed of {mattered} that mattered"
        );
    }
}

/// The removals of a family of kinds that mattered, and those of them that were noticed.
fn family_of(rows: &BTreeMap<String, Row>, family: &str) -> (u64, u64) {
    let of_family = || rows.iter().filter(|(kind, _)| kind.starts_with(family));
    let mattered = of_family().map(|(_, row)| row.mattered).sum();
    (mattered, of_family().map(|(_, row)| row.noticed).sum())
}
