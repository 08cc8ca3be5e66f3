//! The granule and the size of a half (TGx, TxSZ), changed while the MMU is on.
//!
//! Strictly read: walks of the half are disabled (EPD) and that is in effect; then the fields change,
//! an ISB puts them in effect, a TLBI of all of the regime completes, and an ISB comes; then walks
//! begin. The size alone may change while the root is empty, as kernels do before they first use
//! the half: no walk goes anywhere then.

use crate::arch::context::{Registers, RootKey, Space};
use crate::config::Config;
use crate::state::cpu::Cpu;
use crate::state::reshape::{Reshape, Step};
use crate::state::stale_range::Settle;
use crate::violation::report::Report;
use crate::violation::{Rule, Violation};

const WHOLE: (u64, u64) = (0, u64::MAX);
const IN_USE: &str = "may read the tables with the granule or size of others";
const NOT_OFF: &str = "may still walk the half, whose granule or size changes (no ISB after EPD)";
const CACHED: &str = "begins to walk a half whose granule or size its TLB may hold from before \
                      (no TLBI between the change and the first walk)";
const UNDER_WAY: &str = "begins to walk a half before the invalidation of its granule and size is \
                         in effect (no ISB after the TLBI)";
const OLD_ROOT: &str = "begins to walk a half with register values from before (no ISB)";

/// A write of a translation register of EL1&0 with the MMU on, as far as it concerns one half.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    pub(crate) space: Space,
    pub(crate) old: &'a Registers,
    pub(crate) new: &'a Registers,
    /// The first register write before this one that no ISB followed.
    pub(crate) before: Option<u64>,
}

impl Change<'_> {
    /// Checks the write. `holds` returns whether a root has valid entries.
    pub(crate) fn check(
        self,
        config: &Config,
        (cpu, state): (u32, &mut Cpu),
        holds: impl Fn(&RootKey) -> bool,
        report: &mut Report,
    ) {
        let Self {
            space, old, new, ..
        } = self;
        let at = space.index();
        let (from, to) = (old.root(space, config), new.root(space, config));
        let (was_off, is_off) = (old.walks_disabled(space), new.walks_disabled(space));
        let moved = old.shape(space) != new.shape(space);
        if moved && state.walked[at] {
            let used = match (&from, &to) {
                // Another granule under walks that go on is `check_fields_in_use`'s.
                (Some(a), Some(b)) if a.context.format.granule != b.context.format.granule => None,
                (Some(a), Some(b)) => (holds(a) || holds(b)).then_some(IN_USE),
                (Some(a), None) => {
                    let granule = old.granule(space) != new.granule(space);
                    (granule || holds(a)).then_some(IN_USE)
                }
                (None, _) => matches!(state.ceased[at], Settle::Isb(_)).then_some(NOT_OFF),
            };
            if let Some(text) = used {
                report.add(Violation::at(Rule::FieldInUse, cpu, WHOLE, text));
            }
        }
        let changed = moved && state.walked[at] && (was_off || is_off);
        let reshape = if changed {
            Some(Reshape {
                event: report.now(),
                step: Step::default(),
            })
        } else {
            state.reshaped[at]
        };
        state.reshaped[at] = reshape.filter(|_| is_off);
        let (Some(reshape), true) = (reshape, was_off && !is_off) else {
            return;
        };
        let found = match (reshape.step, self.before) {
            (Step::Written | Step::InEffect(_), _) => {
                Violation::at(Rule::CachedField, cpu, WHOLE, CACHED).because_of(reshape.event)
            }
            (Step::Invalidated, _) => {
                Violation::at(Rule::MissingIsb, cpu, WHOLE, UNDER_WAY).because_of(reshape.event)
            }
            (Step::Done, Some(event)) => {
                Violation::at(Rule::MissingIsb, cpu, WHOLE, OLD_ROOT).because_of(event)
            }
            (Step::Done, None) => return,
        };
        report.add(found);
    }
}
