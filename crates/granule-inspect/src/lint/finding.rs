//! Findings, and the list of them. Rules by name are in `rule`, and no rule's code lives here.

use super::LintOptions;
use super::accepted::Accepted;
use super::rule::{Rule, Severity};
use crate::tree::Owner;
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub rule: Rule,
    /// Whose tables they are.
    pub owner: Owner,
    /// The first address.
    pub address: u64,
    pub bytes: u64,
    pub severity: Severity,
    /// The fault and its consequence, in words.
    pub text: String,
}

impl Finding {
    pub const fn last(&self) -> u64 {
        self.address.wrapping_add(self.bytes.wrapping_sub(1))
    }
}

/// `error contiguous 0x…+64K kernel: text`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = crate::fields::size(self.bytes);
        write!(
            f,
            "{} {} {:#018x}+{size} {}: {}",
            self.severity,
            self.rule.name(),
            self.address,
            self.owner,
            self.text
        )
    }
}

/// Findings that were requested and not accepted, of each rule and severity at most a given number; more
/// are counted.
#[derive(Clone, Debug)]
pub struct Findings {
    most: usize,
    rules: Vec<Rule>,
    /// The accepted findings, each with the number that were found.
    pub accepted: Accepted,
    /// Those that are kept, in the order in which they were found.
    pub list: Vec<Finding>,
    kept: BTreeMap<(Rule, Severity), usize>,
    /// The number of those that are not kept.
    pub more: BTreeMap<(Rule, Severity), u64>,
}

impl Findings {
    /// Returns an empty list for the findings that `options` request.
    pub(super) fn new(options: &LintOptions) -> Self {
        Self {
            most: options.most,
            rules: options.rules.clone(),
            accepted: options.accepted.clone(),
            list: Vec::new(),
            kept: BTreeMap::new(),
            more: BTreeMap::new(),
        }
    }

    /// Adds a finding, whose consequence is the rule's.
    pub(super) fn add(
        &mut self,
        (rule, severity): (Rule, Severity),
        owner: &Owner,
        (address, bytes): (u64, u64),
        what: impl FnOnce() -> String,
    ) {
        // Before any is counted: a finding that was not requested takes no other's place in the list.
        let last = address.wrapping_add(bytes.wrapping_sub(1));
        if !self.rules.is_empty() && !self.rules.contains(&rule)
            || self.accepted.accepts(rule, address, last)
        {
            return;
        }
        let kept = self.kept.entry((rule, severity)).or_default();
        if *kept == self.most {
            *self.more.entry((rule, severity)).or_default() += 1;
            return;
        }
        *kept += 1;
        self.list.push(Finding {
            rule,
            owner: owner.clone(),
            address,
            bytes,
            severity,
            text: format!("{}: {}", what(), rule.consequence()),
        });
    }

    /// The worst severity, of those that are not kept too.
    pub fn worst(&self) -> Option<Severity> {
        let kept = self.list.iter().map(|finding| finding.severity);
        kept.chain(self.more.keys().map(|key| key.1)).max()
    }

    /// The worst first, then by address.
    pub(super) fn sort(&mut self) {
        self.list.sort_by_key(|finding| {
            (
                std::cmp::Reverse(finding.severity),
                finding.rule,
                finding.address,
            )
        });
    }
}
