//! The findings in the events of a system, live or from a file: violations by rule and function, an example
//! of each, and the reasons of those that somebody accepted. `granule watch` and `granule check` have the same
//! findings because both have them from here.
//!
//! The model decides what breaks a rule; the two commands decide where events come from.

mod example;
mod finding;
mod judge;
mod names;
pub(crate) mod report;
mod timeline;

use std::fs;
use std::path::Path;

use granule_model::Policies;

pub(crate) use finding::{Accepted, Finding};
pub(crate) use judge::{Judge, Judged};
pub(crate) use names::Names;
pub(crate) use timeline::Timeline;

/// Reads a list of policies.
pub(crate) fn parse_policies(names: &str) -> Result<Policies, String> {
    Policies::from_names(names).ok_or_else(|| {
        let all: Vec<_> = granule_model::Policy::ALL
            .into_iter()
            .map(granule_model::Policy::name)
            .collect();
        format!("expected none, or some of {} with commas", all.join(", "))
    })
}

/// The accepted findings of the file of `--accept`.
pub(crate) fn accepted(path: Option<&Path>) -> Result<Accepted, String> {
    let Some(path) = path else {
        return Ok(Accepted::default());
    };
    let failed = |why: String| format!("--accept {}: {why}", path.display());
    let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    Accepted::parse(&text).map_err(failed)
}

/// Returns the findings, and the notes on them, a line each.
pub(crate) fn of(
    judged: &mut Judged,
    names: &mut Names,
    accepted: &mut Accepted,
    accept: Option<&Path>,
) -> (Vec<Finding>, Vec<String>) {
    let groups = std::mem::take(&mut judged.groups);
    for pc in groups.iter().filter_map(|group| group.pc) {
        names.look_up(pc);
    }
    let findings = finding::findings(groups, names, accepted);
    let mut notes: Vec<String> = names.notes().to_vec();
    if let (Some(path), Some(unused)) = (accept, accepted.unused()) {
        notes.push(format!("--accept {}: {unused}", path.display()));
    }
    (findings, notes)
}
