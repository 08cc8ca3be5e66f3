//! Findings that somebody accepted, with a reason. This module reads text, not files.
//!
//! A line is `RULE START-END REASON`, with the addresses in hexadecimal; END is the last address.
//! Lines that begin with `#` and empty lines are comments.

use super::rule::Rule;
use std::fmt;

/// The accepted findings of a file.
#[derive(Clone, Debug, Default)]
pub struct Accepted {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    line: usize,
    rule: Rule,
    first: u64,
    last: u64,
    reason: String,
    uses: u64,
}

/// A line that is not an accepted finding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: {what}; a line is RULE START-END REASON, as in `loop 0x0-0xfff recursive map`"
)]
pub struct BadLine {
    /// Its number, from 1 on.
    pub line: usize,
    what: String,
}

impl Accepted {
    /// The entries of `text`, and the lines that are none.
    pub fn parse(text: &str) -> (Self, Vec<BadLine>) {
        let (mut entries, mut bad) = (Vec::new(), Vec::new());
        for (at, text) in text.lines().enumerate() {
            let (line, text) = (at + 1, text.trim());
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            match entry(line, text) {
                Ok(entry) => entries.push(entry),
                Err(what) => bad.push(BadLine { line, what }),
            }
        }
        (Self { entries }, bad)
    }

    /// Whether a finding from `first` to `last` is accepted.
    pub(super) fn accepts(&mut self, rule: Rule, first: u64, last: u64) -> bool {
        let found = self
            .entries
            .iter_mut()
            .find(|entry| entry.rule == rule && entry.first <= first && last <= entry.last);
        if let Some(entry) = found {
            entry.uses += 1;
            return true;
        }
        false
    }

    /// The number of findings that were accepted.
    pub fn uses(&self) -> u64 {
        self.entries.iter().map(|entry| entry.uses).sum()
    }

    /// The entries of these rules that accepted nothing; of all rules, if none is named.
    pub fn unused(&self, rules: &[Rule]) -> impl Iterator<Item = Unused<'_>> {
        let looked_for = |entry: &&Entry| rules.is_empty() || rules.contains(&entry.rule);
        self.entries
            .iter()
            .filter(|entry| entry.uses == 0)
            .filter(looked_for)
            .map(Unused)
    }
}

/// An entry that accepted nothing.
#[derive(Clone, Copy, Debug)]
pub struct Unused<'a>(&'a Entry);

impl fmt::Display for Unused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry {
            line,
            rule,
            first,
            last,
            reason,
            ..
        } = self.0;
        let name = rule.name();
        write!(
            f,
            "line {line}: no {name} from {first:#x} to {last:#x} ({reason}): remove the line"
        )
    }
}

fn entry(line: usize, text: &str) -> Result<Entry, String> {
    let mut words = text.splitn(3, char::is_whitespace);
    let name = words.next().unwrap_or_default();
    let rule = Rule::named(name).ok_or_else(|| format!("no rule is called {name:?}"))?;
    let range = words.next().unwrap_or_default();
    let (first, last) = range
        .split_once('-')
        .and_then(|(first, last)| Some((hex(first)?, hex(last)?)))
        .filter(|(first, last)| first <= last)
        .ok_or_else(|| format!("{range:?} is not a range of addresses"))?;
    let reason = words.next().map(str::trim).unwrap_or_default();
    if reason.is_empty() {
        return Err("there is no reason".to_owned());
    }
    Ok(Entry {
        line,
        rule,
        first,
        last,
        reason: reason.to_owned(),
        uses: 0,
    })
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_not_entries_are_reported_one_by_one() {
        let text = "\
# a comment

loop 0x1000-0x1fff recursive map
lop 0-1 x
loop 5 x
loop 2-1 x
loop 0-1";
        let (accepted, bad) = Accepted::parse(text);
        assert_eq!(accepted.entries.len(), 1);
        let bad: Vec<_> = bad
            .iter()
            .map(|bad| (bad.line, bad.what.as_str()))
            .collect();
        assert_eq!(
            bad,
            [
                (4, "no rule is called \"lop\""),
                (5, "\"5\" is not a range of addresses"),
                (6, "\"2-1\" is not a range of addresses"),
                (7, "there is no reason"),
            ]
        );
    }
}
