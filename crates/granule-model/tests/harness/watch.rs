//! Other CPUs in the middle of an operation: what they may see of it.

use crate::random::Random;
use granule_model::{Access, FaultKind, Model, Outcome};

/// An address, and what an access there results in before the operation and after it.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) va: u64,
    pub(crate) access: Access,
    pub(crate) before: Outcome,
    pub(crate) after: Outcome,
    /// The entry may be broken and made again meanwhile.
    pub(crate) breaks: bool,
}

/// Whether this is a TLB conflict abort where it may be taken: sizes change in place at levels 1
/// and 2 of FEAT_BBM, and software that enables that handles it.
pub(crate) fn conflict_allowed(model: &Model, outcome: &Outcome) -> bool {
    *outcome == Outcome::Conflict && matches!(model.config().bbm_level, 1 | 2)
}

/// Makes random accesses between the events of an operation.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) samples: Vec<Sample>,
    random: Random,
    /// The CPUs that look, a bit each.
    pub(crate) cpus: u64,
    /// Something may be broken before it is made anew: an access may fault in between.
    pub(crate) may_fault: bool,
    /// The first error.
    pub(crate) wrong: Option<String>,
    pub(crate) accesses: u64,
}

impl Watch {
    pub(crate) const fn new(seed: u64) -> Self {
        Self {
            samples: Vec::new(),
            random: Random::new(seed),
            cpus: u64::MAX,
            may_fault: false,
            wrong: None,
            accesses: 0,
        }
    }

    /// After an event. Whatever TLBs and walkers hold, an access has the old result or the new
    /// one, and no third: outside of the operation's range those are the same.
    pub(crate) fn look(&mut self, model: &Model) {
        if self.samples.is_empty() || !self.random.once_in(4) {
            return;
        }
        let sample = &self.samples[self.random.below(self.samples.len() as u64) as usize];
        let cpu = self.random.below(u64::from(model.config().cpus)) as u32;
        if self.cpus & (1 << cpu) == 0 {
            return;
        }
        let outcomes = model.outcomes(cpu, sample.va, sample.access);
        self.accesses += 1;
        let may_fault = self.may_fault;
        let known = |one: &Outcome| {
            if may_fault {
                // Rights may be wider or narrower meanwhile, but no other memory is found.
                return match (one, &sample.before, &sample.after) {
                    (Outcome::Fault(_), ..) => true,
                    (Outcome::Memory(found), Outcome::Memory(before), Outcome::Memory(after)) => {
                        found.address == before.address || found.address == after.address
                    }
                    _ => conflict_allowed(model, one),
                };
            }
            let broken = sample.breaks && *one == Outcome::Fault(FaultKind::Translation);
            *one == sample.before || *one == sample.after || broken || conflict_allowed(model, one)
        };
        if outcomes.is_empty() || !outcomes.iter().all(known) {
            self.wrong.get_or_insert_with(|| {
                format!("in the operation CPU {cpu} finds {outcomes:?} by {sample:?}")
            });
        }
    }
}
