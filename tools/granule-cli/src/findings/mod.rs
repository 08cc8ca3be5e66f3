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

use granule_model::{Lacks, Policies, Policy};

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

/// Reads a list of features that CPUs lack.
pub(crate) fn parse_lacks(names: &str) -> Result<Lacks, String> {
    Lacks::from_names(names).ok_or_else(|| {
        "expected some of ttl, single-tlbi, lva, lpa2, ttst, hafdbs, xnx with commas".into()
    })
}

/// Reads two addresses with a hyphen between.
pub(crate) fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let address = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    text.split_once('-')
        .and_then(|(first, last)| Some((address(first)?, address(last)?)))
        .filter(|(first, last)| first <= last)
        .ok_or_else(|| {
            "expected FIRST-LAST, two addresses: 0xffff800080000000-0xffffffffffffffff".into()
        })
}

impl Judge {
    /// Sets the addresses for which lazy unmapping holds from here on.
    pub(crate) fn bound_lazy_unmap(&mut self, range: Option<(u64, u64)>) {
        if let Some(model) = &mut self.model {
            model.bound_lazy_unmap(range);
        }
    }
}

/// The policies in words, and where lazy unmapping holds.
pub(crate) fn allowed(policies: Policies, lazy: Option<(u64, u64)>) -> String {
    match lazy {
        _ if !policies.has(Policy::LazyUnmap) => policies.to_string(),
        Some((first, last)) => format!("{policies} (from {first:#x} to {last:#x})"),
        None => format!("{policies} (in the second half of a kernel's addresses)"),
    }
}

/// Mistakes that no run is checked for, whatever the system. `granule-model` has all of it in its documentation.
pub(crate) const LIMITS: [&str; 7] = [
    "TLBs that CPUs share (CnP) although their roots, T1SZ or MAIR differ",
    "memory that is mapped Device and Write-Back at once, and RAM that is mapped Device",
    "translations that devices cache (SMMU)",
    "which memory should not be mapped at all, and dirty states that software loses",
    "a CPU that takes a page for unmapped before the CPU that unmapped it has invalidated it, unless the page is reused",
    "loads and stores by an entry that the CPU made valid since its last DSB and ISB (instructions are checked)",
    "whether a system knew what its CPUs permit before it relied on that",
];

/// The exit code of a check or a watched run, of which something was judged, or the whole.
pub(crate) fn exit_code(findings: &[Finding], any: bool, whole: bool) -> u8 {
    match (any, whole) {
        _ if findings.iter().any(Finding::fails) => 1,
        (false, _) => 2,
        (true, false) => 3,
        (true, true) => 0,
    }
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

#[cfg(test)]
mod tests {
    use super::LIMITS;

    #[test]
    fn what_no_rule_is_about_is_named_by_each_run() {
        let text = include_str!("../../../../docs/rules.md");
        let mut rows = 0;
        for row in text.lines().filter(|line| line.starts_with('|')) {
            if let Some((_, limit)) = row.split_once("not checked: ") {
                let limit = limit.trim_end_matches(" |");
                assert!(LIMITS.iter().any(|one| one.contains(limit)), "{row}");
                rows += 1;
            }
        }
        assert_eq!(rows, 5);
    }
}
