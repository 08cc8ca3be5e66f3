//! The list of violations: each violation that a rule reports, with the current event.
//!
//! Neighbouring violations of one event are joined, and violations beyond a bound are only counted,
//! so that a trace that breaks a rule with every event costs no more than a correct one.

use super::{Rule, Violation};
use std::collections::VecDeque;

// A violation as a rule finds it: events are counted from 1, as they are in all of the state.
// `Report::add` adds the current event, and counts from 0.
impl Violation {
    /// A violation that concerns virtual addresses.
    pub(crate) fn at(rule: Rule, cpu: u32, range: (u64, u64), text: impl Into<String>) -> Self {
        Self {
            rule,
            event: 0,
            origin: None,
            earlier: None,
            missed: None,
            cpu,
            range,
            is_virtual: true,
            is_intermediate: false,
            location: None,
            observation: text.into(),
            times: 1,
        }
    }

    /// A violation that concerns physical addresses.
    pub(crate) fn in_memory(
        rule: Rule,
        cpu: u32,
        range: (u64, u64),
        text: impl Into<String>,
    ) -> Self {
        Self {
            is_virtual: false,
            ..Self::at(rule, cpu, range, text)
        }
    }

    /// Adds the earlier event that the violation conflicts with; 0 for none.
    pub(crate) const fn because_of(mut self, event: u64) -> Self {
        self.earlier = if event == 0 { None } else { Some(event) };
        self
    }

    /// Adds the physical address of the descriptor.
    pub(crate) const fn located(mut self, address: u64) -> Self {
        self.location = Some(address);
        self
    }
}

/// The number of the last violations that a new one may join.
const RECENT: usize = 16;

/// The current event, and the violations found so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// The current event, counted from 1, and its CPU; `None` for an event that no instruction makes.
    now: u64,
    cpu: Option<u32>,
    /// The instruction that the events of each CPU come from, where it is known.
    origins: Vec<Option<u64>>,
    kept: Vec<Violation>,
    /// The last few violations, with the place of each one that is kept: joining does not depend on
    /// how many are kept.
    recent: VecDeque<(Violation, Option<usize>)>,
    most: usize,
    count: u64,
}

impl Report {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Goes on to the next event.
    pub(crate) const fn next_event(&mut self, cpu: Option<u32>) {
        self.now += 1;
        self.cpu = cpu;
    }

    /// The next events of a CPU come from the instruction at this address.
    pub(crate) fn set_origin(&mut self, cpu: u32, address: u64) {
        let index = cpu as usize;
        if self.origins.len() <= index {
            self.origins.resize(index + 1, None);
        }
        self.origins[index] = Some(address);
    }

    /// The current event, counted from 1.
    pub(crate) const fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn kept(&self) -> &[Violation] {
        &self.kept
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Whether further violations are only counted.
    pub(crate) const fn is_full(&self) -> bool {
        self.kept.len() >= self.most
    }

    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        self.recent.clear();
        self.count = 0;
    }

    /// Adds what a rule found as a violation of the current event.
    pub(crate) fn add(&mut self, found: Violation) {
        // Outside of the model events are counted from 0.
        let outside = |event: u64| event.saturating_sub(1);
        self.join(Violation {
            event: outside(self.now),
            origin: self.cpu.and_then(|cpu| *self.origins.get(cpu as usize)?),
            earlier: found.earlier.map(outside),
            missed: found.missed.map(|(event, miss)| (outside(event), miss)),
            ..found
        });
    }

    /// Keeps a violation. It joins an earlier one that has the same rule, events, CPU and
    /// observation and neighbouring addresses.
    fn join(&mut self, violation: Violation) {
        let joins = |other: &Violation| {
            other.rule == violation.rule
                && other.event == violation.event
                && other.earlier == violation.earlier
                && other.cpu == violation.cpu
                && other.is_virtual == violation.is_virtual
                && other.is_intermediate == violation.is_intermediate
                && other.observation == violation.observation
                && violation.range.0 <= other.range.1.saturating_add(1)
                && other.range.0 <= violation.range.1.saturating_add(1)
        };
        let same = self.recent.iter_mut().rev().find(|(other, _)| joins(other));
        if let Some((same, kept)) = same {
            same.range.0 = same.range.0.min(violation.range.0);
            same.range.1 = same.range.1.max(violation.range.1);
            same.times += 1;
            if let Some(kept) = kept.and_then(|at| self.kept.get_mut(at)) {
                (kept.range, kept.times) = (same.range, same.times);
            }
            return;
        }
        self.count += 1;
        let at = (self.kept.len() < self.most).then_some(self.kept.len());
        if at.is_some() {
            self.kept.push(violation.clone());
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((violation, at));
    }
}
