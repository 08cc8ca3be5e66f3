//! Stores that caches may undo: stores past the caches to lines that a cache may write back, and
//! invalidations of lines that were never cleaned.

use crate::violation::report::Report;
use crate::violation::{Rule, Violation};

/// Reports a store past the caches to lines that `event` stored through the caches: a cache may
/// write them back over the new store.
pub(crate) fn behind(cpu: u32, range: (u64, u64), event: u64, report: &mut Report) {
    let text = "stores past the caches to a line that a cache may write back over it";
    let found = Violation::in_memory(Rule::DirtyLineBehind, cpu, range, text);
    report.add(found.because_of(event));
}

/// Reports a store past the caches to lines that were not maintained since before the trace.
pub(crate) fn unsettled(cpu: u32, range: (u64, u64), report: &mut Report) {
    let text = "stores past the caches to a line that was never cleaned or invalidated: what \
                ran before may have left it dirty";
    report.add(Violation::in_memory(
        Rule::DirtyLineBehind,
        cpu,
        range,
        text,
    ));
}

/// Reports an invalidation of lines that `event` stored through the caches.
pub(crate) fn lost(cpu: u32, range: (u64, u64), event: u64, report: &mut Report) {
    let text = "invalidates a line that was stored to and not cleaned: the store may be lost";
    let found = Violation::in_memory(Rule::StoreLost, cpu, range, text);
    report.add(found.because_of(event));
}
