//! Judges events, live or from a file, and groups what breaks a rule.

use std::collections::BTreeMap;

use granule_model::{
    BarrierKind, Config, Event, EventError, Miss, Model, Rule, Unchecked, Violation,
};

use super::example::{History, Step, mend};
use super::timeline::Timeline;

/// The violations that the model keeps until they are grouped and forgotten.
const MOST_UNGROUPED: usize = 1 << 10;

/// Why a lost update is not decided.
const NO_LOADS: &str = "the trace has no loads: hardware may have updated the entry before the guest loaded it for this store";
/// Why a violation is not decided that the next DSB of another CPU would prevent.
const NO_ORDER: &str = "the DSB that would prevent it comes next on another CPU, and the order of CPUs is not known that closely";
/// Why a violation is not decided where another CPU removed the entry than the one that invalidated it.
const NO_LOCKS: &str = "another CPU removed the entry; the DSB of the TLBI's CPU counts if a lock orders it after that \
    store, and the trace has no locks";

/// Violations of one rule that come from one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) rule: Rule,
    /// The address of the instruction whose event broke the rule; `None` at the end of the run and if unknown.
    pub(crate) pc: Option<u64>,
    pub(crate) count: u64,
    /// Why the trace does not decide whether the rule was broken, if it does not.
    pub(crate) undecided: Option<&'static str>,
    /// One of them in words, its events, and its fix: the first that has its cause among the events
    /// kept, or else the first.
    pub(crate) example: String,
    pub(crate) steps: Vec<Step>,
    pub(crate) mend: &'static str,
    /// Whether it has its cause there.
    pub(crate) has_cause: bool,
}

/// The rule, the instruction and why it is undecided.
type Key = (&'static str, Option<u64>, Option<&'static str>);

/// A violation that the next event of a CPU decides.
#[derive(Debug)]
struct Waiting {
    cpu: u32,
    violation: Violation,
    steps: Vec<Step>,
}

/// Why a violation is not decided, whatever comes next. A trace that has instructions was taken beside a guest, whose
/// loads and locks are not in it.
fn undecided(violation: &Violation) -> Option<&'static str> {
    violation.origin?;
    match (violation.missed, violation.rule) {
        (Some((_, Miss::StoreOfAnotherCpu)), _) => Some(NO_LOCKS),
        (_, Rule::LostUpdate) => Some(NO_LOADS),
        _ => None,
    }
}

/// The model and what it found.
#[derive(Debug)]
pub(crate) struct Judge {
    /// `None` if nothing is to be judged any more.
    pub(super) model: Option<Model>,
    cpus: u32,
    groups: BTreeMap<Key, Group>,
    /// The violations of the model that are in a group, or wait for one.
    grouped: usize,
    /// Violations that the next event of a CPU decides.
    waiting: Vec<Waiting>,
    most_kept: usize,
    /// The instruction of a group that is new.
    new_place: Option<u64>,
    history: History,
    timeline: Timeline,
    judged: Judged,
}

/// The verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// The page sizes of the tables that were walked, and that of the kernel's.
    pub(crate) page_sizes: Vec<u64>,
    pub(crate) page_size: Option<u64>,
    pub(crate) groups: Vec<Group>,
    /// The first violations one by one, and the number of all that are decided.
    pub(crate) kept: Vec<Violation>,
    pub(crate) violations: u64,
    /// The halves of address spaces that no rule was applied to.
    pub(crate) unchecked: Vec<Unchecked>,
    /// Why the judge stopped, if it did.
    pub(crate) stopped: Option<String>,
    pub(crate) timeline: Timeline,
}

impl Judge {
    /// A judge of this machine that keeps so many violations one by one.
    pub(crate) fn new(config: Config, most_kept: usize) -> Self {
        let model = Model::new(Config {
            // Each is put into its group at once.
            most_violations: usize::MAX,
            ..config
        });
        Self {
            cpus: model.config().cpus,
            model: Some(model),
            groups: BTreeMap::new(),
            grouped: 0,
            waiting: Vec::new(),
            most_kept,
            new_place: None,
            history: History::default(),
            timeline: Timeline::default(),
            judged: Judged::default(),
        }
    }

    /// The next event.
    /// Fails for an event that no machine makes; the judge is as it was.
    pub(crate) fn add(&mut self, cpu: u32, event: Event) -> Result<(), EventError> {
        let Some(model) = &mut self.model else {
            self.timeline.add(&event, 0);
            return Ok(());
        };
        let done = model.event(cpu, event);
        // The end of the run is not an event of it.
        if done.is_ok() && event != Event::Settled {
            self.history.add(cpu, event);
        }
        let found = model.violations().get(self.grouped..).unwrap_or_default();
        let found = found.to_vec();
        self.grouped += found.len();
        self.timeline.add(&event, found.len() as u64);
        self.decide(cpu, &event);
        for violation in found {
            match self.decided_by(cpu, &violation) {
                // A CPU that never does anything again decides nothing.
                Some(cpu) if self.waiting.len() < MOST_UNGROUPED => self.waiting.push(Waiting {
                    cpu,
                    steps: self.history.steps(&violation),
                    violation,
                }),
                _ => self.group(&violation, None, undecided(&violation)),
            }
        }
        if self.grouped > MOST_UNGROUPED {
            self.forget();
        }
        done
    }

    /// The other CPU whose DSB a violation misses, if the trace was taken beside a guest.
    fn decided_by(&self, cpu: u32, violation: &Violation) -> Option<u32> {
        violation.origin?;
        let event = match (violation.missed, violation.rule) {
            (Some((event, Miss::NotComplete)), _) => event,
            (_, Rule::StoreNotVisible) => violation.earlier?,
            _ => return None,
        };
        self.history.cpu_of(event).filter(|other| *other != cpu)
    }

    /// Decides what waits for an event of this CPU.
    fn decide(&mut self, cpu: u32, event: &Event) {
        if self.waiting.is_empty() || matches!(event, Event::At(_)) {
            return;
        }
        let is_dsb = matches!(event, Event::Barrier(barrier) if barrier.kind == BarrierKind::Dsb);
        let undecided = is_dsb.then_some(NO_ORDER);
        for one in std::mem::take(&mut self.waiting) {
            if one.cpu == cpu {
                self.group(&one.violation, Some(one.steps), undecided);
            } else {
                self.waiting.push(one);
            }
        }
    }

    /// Puts a violation into its group. Its steps are those to the last event if there are no others.
    fn group(
        &mut self,
        violation: &Violation,
        steps: Option<Vec<Step>>,
        undecided: Option<&'static str>,
    ) {
        if undecided.is_none() {
            self.judged.violations += 1;
            if self.judged.kept.len() < self.most_kept {
                self.judged.kept.push(violation.clone());
            }
        }
        let pc = violation.origin;
        let key = (violation.rule.name(), pc, undecided);
        let group = self.groups.entry(key).or_insert_with(|| {
            self.new_place = pc;
            Group {
                rule: violation.rule,
                pc,
                count: 0,
                undecided,
                example: String::new(),
                steps: Vec::new(),
                mend: "",
                has_cause: false,
            }
        });
        // Who made the change matters more than which use of the address was the first.
        let has_cause = self.history.has_cause(violation);
        if group.count == 0 || has_cause && !group.has_cause {
            group.example = violation.describe(|_| None);
            group.steps = steps.unwrap_or_else(|| self.history.steps(violation));
            group.mend = mend(violation);
            group.has_cause = has_cause;
        }
        group.count += 1;
    }

    /// Has the model forget its violations: what is needed of them is kept here.
    fn forget(&mut self) {
        if let Some(model) = &mut self.model {
            model.clear_violations();
        }
        self.grouped = 0;
    }

    /// The instruction of a group that is new since the last call.
    pub(crate) fn new_place(&mut self) -> Option<u64> {
        self.new_place.take()
    }

    /// From here on events are only counted.
    pub(crate) fn stop(&mut self, why: &str) {
        self.close();
        if self.model.take().is_some() {
            self.judged.stopped = Some(why.to_owned());
        }
    }

    /// The run ended; after a whole one every CPU relies on all tables.
    /// Fails if that is too much to look at.
    pub(crate) fn finish(mut self, whole: bool) -> (Judged, Result<(), EventError>) {
        let mut done = Ok(());
        if whole && self.model.is_some() {
            for cpu in 0..self.cpus {
                done = done.and(self.add(cpu, Event::Settled));
            }
        }
        self.close();
        self.judged.timeline = self.timeline;
        (self.judged, done)
    }

    /// Moves the findings of the model so far into the verdict.
    fn close(&mut self) {
        for one in std::mem::take(&mut self.waiting) {
            self.group(&one.violation, Some(one.steps), None);
        }
        self.forget();
        if let Some(model) = &self.model {
            self.judged.page_sizes = model.page_sizes();
            self.judged.page_size = model.page_size();
            self.judged.unchecked = model.unchecked().to_vec();
        }
        self.judged.kept.sort_by_key(|violation| violation.event);
        self.judged
            .groups
            .extend(std::mem::take(&mut self.groups).into_values());
    }

    /// The page sizes of the tables that were walked so far.
    pub(crate) fn page_sizes(&self) -> Vec<u64> {
        self.model.as_ref().map_or_else(Vec::new, Model::page_sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::example::KEPT;
    use super::*;
    use granule_model::{Barrier, System, Visibility};

    fn judge() -> Judge {
        let config = Config {
            cpus: 2,
            bbm_level: 0,
            ..Config::default()
        };
        Judge::new(config, 1)
    }

    const DSB: Event = Event::Barrier(Barrier::DSB_SY);
    const ISB: Event = Event::Barrier(Barrier::ISB);

    const fn place(number: u64) -> u64 {
        0x1000 + number * 8
    }

    /// A block of 1 GiB with 4K pages and 39-bit addresses, which programs write, so no kernel executes it.
    const fn block(number: u64) -> u64 {
        number << 30 | 1 | 1 << 6 | 1 << 10
    }

    fn store(address: u64, descriptor: u64) -> Event {
        Event::Store {
            address,
            count: 1,
            descriptor,
            step: 0,
            visibility: Visibility::Live,
        }
    }

    fn add(judge: &mut Judge, cpu: u32, pc: impl Into<Option<u64>>, event: Event) {
        if let Some(pc) = pc.into() {
            judge.add(cpu, Event::At(pc)).unwrap();
        }
        judge.add(cpu, event).unwrap();
    }

    /// A judge of two CPUs whose MMUs are on; `more` is set in TCR.
    fn running(entries: [u64; 2], more: u64) -> Judge {
        running_at(entries, more, Some(8))
    }

    /// The same, by an instruction at this address.
    fn running_at(entries: [u64; 2], more: u64, pc: Option<u64>) -> Judge {
        let mut judge = judge();
        for (number, entry) in (0..).zip(entries) {
            add(&mut judge, 0, pc.map(|_| 4), store(place(number), entry));
        }
        add(&mut judge, 0, pc, DSB);
        for cpu in 0..2 {
            let mut add = |event| add(&mut judge, cpu, pc, event);
            add(Event::System(System::VMALLE1, 0));
            for (register, value) in [
                (System::TCR_EL1, 25 | 1 << 23 | 0b101 << 32 | more),
                (System::TTBR0_EL1, 0x1000),
                (System::SCTLR_EL1, 1),
            ] {
                add(DSB);
                add(ISB);
                add(Event::System(register, value));
            }
            add(ISB);
        }
        judge
    }

    /// The groups of an instruction: rule, count, and whether they are undecided.
    fn groups(judge: Judge, pc: u64) -> (Vec<(&'static str, u64, bool)>, u64) {
        let (judged, done) = judge.finish(false);
        assert_eq!(done, Ok(()));
        let groups = judged.groups.iter().filter(|it| it.pc == Some(pc));
        let groups = groups.map(|it| (it.rule.name(), it.count, it.undecided.is_some()));
        assert_eq!(judged.kept.len() as u64, judged.violations.min(1));
        (groups.collect(), judged.violations)
    }

    #[test]
    fn violations_are_grouped_by_rule_and_instruction_with_their_events() {
        let mut judge = running([block(0), block(1)], 0);
        // Two blocks move while they may be cached, by one instruction.
        for number in 0..2 {
            add(&mut judge, 0, 0x40, store(place(number), block(number + 2)));
        }
        let (judged, done) = judge.finish(false);
        assert_eq!(done, Ok(()));
        let bbm: Vec<_> = judged
            .groups
            .iter()
            .filter(|it| it.pc == Some(0x40))
            .collect();
        assert_eq!(bbm.len(), 1, "{:?}", judged.groups);
        assert_eq!((bbm[0].rule.name(), bbm[0].count), ("RWHZWS", 2));
        assert!(bbm[0].mend.contains("invalid descriptors"));
        let steps: Vec<_> = bbm[0]
            .steps
            .iter()
            .map(|step| (step.address, step.role.as_str(), step.text.as_str()))
            .collect();
        let last = (Some(0x40), "breaks RWHZWS", "store cpu0 0x1000 0x80000441");
        assert_eq!(steps.last(), Some(&last), "{steps:?}");
        let earlier = (Some(4), "earlier store", "store cpu0 0x1000 0x441");
        assert!(steps.contains(&earlier), "{steps:?}");
        assert_eq!(judged.page_sizes, [4096]);
        assert_eq!(judged.kept.len(), 1);
        assert_eq!(judged.violations, 2);
        assert_eq!(judged.stopped, None);
    }

    #[test]
    fn an_example_is_the_first_whose_cause_is_still_kept() {
        let mut judge = running([block(0), block(1)], 0);
        add(&mut judge, 0, 0x20, store(place(0), 0));
        for _ in 0..KEPT {
            add(&mut judge, 0, 0x24, ISB);
        }
        add(&mut judge, 0, 0x28, store(place(1), 0));
        // Neither entry was invalidated. The cause of the first violation is forgotten.
        for number in 0..2 {
            add(&mut judge, 0, 0x40, store(place(number), block(number + 2)));
        }
        let (judged, done) = judge.finish(false);
        assert_eq!(done, Ok(()));
        let mut groups = judged.groups.iter().filter(|it| it.pc == Some(0x40));
        let group = groups.next().unwrap();
        assert_eq!((groups.next(), group.count), (None, 2));
        let cause = group.steps.iter().find(|it| it.role.contains("conflicts"));
        let cause = cause.map(|it| (it.address, it.role.as_str()));
        assert_eq!(cause, Some((Some(0x28), "conflicts with this")));
        assert!(group.example.contains("0x1008"), "{}", group.example);
    }

    #[test]
    fn violations_that_the_next_dsb_of_another_cpu_would_prevent_are_undecided() {
        for (next, undecided) in [(Some(DSB), true), (Some(ISB), false), (None, false)] {
            let mut judge = running([block(0), 0], 0);
            for event in [store(place(0), 0), DSB, Event::System(System::VAAE1IS, 0)] {
                add(&mut judge, 0, 0x20, event);
            }
            // CPU 1 maps another block there before the invalidation is complete, or right after it.
            add(&mut judge, 1, 0x40, store(place(0), block(2)));
            if let Some(event) = next {
                add(&mut judge, 0, 0x24, event);
            }
            let expected = vec![("RWHZWS", 1, undecided)];
            assert_eq!(groups(judge, 0x40), (expected, u64::from(!undecided)));
        }
        // The order on one CPU is known.
        let mut judge = running([block(0), 0], 0);
        for event in [store(place(0), 0), DSB, Event::System(System::VAAE1IS, 0)] {
            add(&mut judge, 0, 0x20, event);
        }
        add(&mut judge, 0, 0x40, store(place(0), block(2)));
        add(&mut judge, 0, 0x24, DSB);
        assert_eq!(groups(judge, 0x40), (vec![("RWHZWS", 1, false)], 1));
    }

    #[test]
    fn a_store_that_a_lock_may_have_ordered_before_a_dsb_of_another_cpu_is_undecided() {
        for (dsb, undecided) in [(true, true), (false, false)] {
            let mut judge = running([block(0), 0], 0);
            add(&mut judge, 0, 0x20, store(place(0), 0));
            if dsb {
                add(&mut judge, 1, 0x30, DSB);
            }
            add(&mut judge, 1, 0x34, Event::System(System::VMALLE1IS, 0));
            add(&mut judge, 1, 0x38, DSB);
            add(&mut judge, 1, 0x40, store(place(0), block(2)));
            let expected = vec![("RWHZWS", 1, undecided)];
            assert_eq!(groups(judge, 0x40), (expected, u64::from(!undecided)));
        }
    }

    #[test]
    fn a_trace_without_instructions_is_decided_without_locks() {
        let mut judge = running_at([block(0), 0], 0, None);
        let steps = [
            (0, store(place(0), 0)),
            (1, DSB),
            (1, Event::System(System::VMALLE1IS, 0)),
            (1, DSB),
            (1, store(place(0), block(2))),
        ];
        for (cpu, event) in steps {
            judge.add(cpu, event).unwrap();
        }
        let (judged, done) = judge.finish(false);
        assert_eq!(done, Ok(()));
        let groups = judged.groups.iter().map(|it| (it.pc, it.undecided));
        assert_eq!(groups.collect::<Vec<_>>(), [(None, None)]);
    }

    #[test]
    fn a_lost_update_is_undecided_where_no_loads_are_seen() {
        const HA: u64 = 1 << 39;
        let young = 1 << 30 | 1;
        // The store sets nothing that hardware may have set, or all of it.
        for (new, expected) in [
            (young | 1 << 54, vec![("RWLTNL", 1, true)]),
            (young | 1 << 54 | 1 << 10, Vec::new()),
        ] {
            let mut judge = running([young, 0], HA);
            add(&mut judge, 0, 0x40, store(place(0), new));
            assert_eq!(groups(judge, 0x40), (expected, 0));
        }
    }

    #[test]
    fn an_event_that_no_machine_makes_is_an_error_and_what_follows_only_counted() {
        let mut judge = judge();
        let isb = Event::Barrier(Barrier::ISB);
        assert!(judge.add(7, isb).is_err());
        judge.stop("that");
        assert_eq!(judge.add(7, isb), Ok(()));
        let (judged, done) = judge.finish(true);
        assert_eq!((judged.stopped.as_deref(), done), (Some("that"), Ok(())));
    }
}
