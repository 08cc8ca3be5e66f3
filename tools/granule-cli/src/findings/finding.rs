//! The findings of a run: the violations of each rule in each function, and the reason if somebody
//! accepted them. This module reads text, not files.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::example::Step;
use super::judge::Group;
use super::names::Names;
use crate::json::{Hex, hex};

/// The word of a file of accepted findings for the end of the run.
const END: &str = "end";

/// Violations of one rule in one function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Finding {
    /// Rule (docs/rules.md).
    pub(crate) rule: &'static str,
    /// Function that broke it; null where no name is known, and for the end of the run.
    pub(crate) function: Option<String>,
    /// The instructions, the one with the most violations first; none for the end of the run.
    pub(crate) places: Vec<NamedAddress>,
    /// Violations.
    pub(crate) count: u64,
    /// Reason in the file of `--accept`, or null.
    pub(crate) accepted: Option<String>,
    /// Why the trace does not decide whether the rule was broken, or null.
    pub(crate) undecided: Option<&'static str>,
    /// A violation by one of the `places` in words: the first there that conflicts with no event further back
    /// than the last 65536, or else the first.
    pub(crate) example: String,
    /// Events of the example. The memory that this takes is bounded: an event that is further back than the last
    /// 65536 is there by its number alone.
    pub(crate) steps: Vec<Step>,
    /// Change that would have prevented it.
    pub(crate) mend: &'static str,
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct NamedAddress {
    /// Virtual address.
    #[serde(serialize_with = "hex")]
    #[schemars(with = "Hex")]
    pub(crate) address: u64,
    /// Name, such as `ptep_clear_flush+0x2c`, with its module in brackets; null where none is known.
    pub(crate) name: Option<String>,
    #[serde(skip)]
    count: u64,
}

impl Finding {
    /// The function, the instruction or the end.
    pub(crate) fn site(&self) -> String {
        match (&self.function, self.places.first()) {
            (Some(function), _) => function.clone(),
            (None, Some(place)) => format!("{:#x}", place.address),
            (None, None) => END.into(),
        }
    }

    /// Whether the run fails by it.
    pub(crate) const fn fails(&self) -> bool {
        self.accepted.is_none() && self.undecided.is_none()
    }

    /// The lines for people.
    pub(crate) fn text(&self) -> String {
        let times = match self.count {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        let kind = match (&self.accepted, self.undecided) {
            (Some(_), _) => "accepted: ",
            (None, Some(_)) => "undecided: ",
            (None, None) => "",
        };
        let mut text = format!(
            "{kind}{} in {}, {times}: {}\n",
            self.rule,
            self.site(),
            self.example
        );
        let places: Vec<_> = self
            .places
            .iter()
            .filter_map(|place| Some(format!("{} ({:#x})", place.name.as_ref()?, place.address)))
            .collect();
        if !places.is_empty() {
            text += &format!("  from {}\n", places.join(", "));
        }
        for step in &self.steps {
            text += &format!("  {}\n", step.line());
        }
        match self.accepted.as_deref().or(self.undecided) {
            Some(reason) => text += &format!("  because {reason}\n"),
            None => text += &format!("  fix: {}\n", self.mend),
        }
        text
    }
}

/// The findings, those with the most violations first.
pub(super) fn findings(
    mut groups: Vec<Group>,
    names: &Names,
    accepted: &mut Accepted,
) -> Vec<Finding> {
    // The example of a function is that of its first group.
    groups.sort_by_key(|group| !group.has_cause);
    let mut found = BTreeMap::<_, Finding>::new();
    for group in groups {
        let named = group.pc.and_then(|pc| names.place(pc));
        let mut steps = group.steps;
        for step in &mut steps {
            let place = step.address.and_then(|pc| names.place(pc));
            step.name = place.map(|(_, place)| place);
        }
        let mut finding = Finding {
            rule: group.rule.name(),
            function: named.as_ref().map(|(function, _)| (*function).to_owned()),
            places: Vec::new(),
            count: 0,
            example: group.example,
            steps,
            mend: group.mend,
            undecided: group.undecided,
            accepted: None,
        };
        finding.places.extend(group.pc.map(|address| NamedAddress {
            address,
            name: named.map(|(_, place)| place),
            count: group.count,
        }));
        finding.count = group.count;
        let key = (finding.rule, finding.site(), finding.undecided);
        match found.get_mut(&key) {
            Some(same) => {
                same.count += finding.count;
                same.places.extend(finding.places);
            }
            None => drop(found.insert(key, finding)),
        }
    }
    let mut found: Vec<_> = found.into_values().collect();
    for finding in &mut found {
        finding
            .places
            .sort_by_key(|place| std::cmp::Reverse(place.count));
        finding.accepted = accepted.reason(finding.rule, &finding.site());
    }
    found.sort_by_key(|finding| std::cmp::Reverse(finding.count));
    found
}

/// The accepted findings of a file. A line is `RULE PLACE REASON`; PLACE is a function, the address of
/// an instruction (`0x...`) or `end`. Lines that begin with `#` and empty lines are comments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accepted(Vec<Entry>);

#[derive(Clone, Debug)]
struct Entry {
    line: usize,
    rule: String,
    place: String,
    reason: String,
    used: bool,
}

impl Accepted {
    /// The entries of `text`.
    /// Fails with one line: the first line that is not an entry.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for (at, text) in text.lines().enumerate() {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let mut words = text.splitn(3, char::is_whitespace).map(str::trim);
            let (rule, place, reason) = (words.next(), words.next(), words.next());
            let (Some(rule), Some(place), Some(reason)) =
                (rule, place, reason.filter(|reason| !reason.is_empty()))
            else {
                return Err(format!(
                    "line {}: a line is RULE PLACE REASON, as in `RJQQTC mark_linear_text_alias_ro the \
                     alias is not used before`",
                    at + 1
                ));
            };
            entries.push(Entry {
                line: at + 1,
                rule: rule.into(),
                place: place.into(),
                reason: reason.into(),
                used: false,
            });
        }
        Ok(Self(entries))
    }

    fn reason(&mut self, rule: &str, site: &str) -> Option<String> {
        let entry = self
            .0
            .iter_mut()
            .find(|entry| entry.rule == rule && entry.place == site)?;
        entry.used = true;
        Some(entry.reason.clone())
    }

    /// Returns the number of entries that accepted nothing, in words; `None` if there are none.
    pub(crate) fn unused(&self) -> Option<String> {
        let unused = self.0.iter().filter(|entry| !entry.used);
        let lines: Vec<_> = unused.map(|entry| entry.line.to_string()).collect();
        let (count, all) = (lines.len(), self.0.len());
        let lines = lines.join(", ");
        (count > 0).then(|| format!("{count} of {all} accepted findings not found (lines {lines})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_model::Rule;
    use granule_model::trace::Function;
    use granule_testing::text::assert_ends_with;

    fn group(rule: Rule, pc: Option<u64>, count: u64) -> Group {
        Group {
            rule,
            pc,
            count,
            undecided: None,
            example: format!("at {pc:x?}"),
            steps: Vec::new(),
            mend: "nothing",
            has_cause: true,
        }
    }

    #[test]
    fn a_finding_has_all_places_of_its_function() {
        let groups = vec![
            group(Rule::MissingIsb, None, 1),
            Group {
                has_cause: false,
                ..group(Rule::MissingIsb, Some(0x10), 2)
            },
            group(Rule::MissingIsb, Some(0x14), 3),
            group(Rule::UnorderedLink, Some(0x10), 9),
            group(Rule::MissingIsb, Some(0x80), 4),
        ];
        let mut names = Names::default();
        names.add([Function {
            start: 0x10,
            bytes: 0x10,
            name: "near".into(),
            module: None,
        }]);
        let text = "# known\n\nmissing-isb near it is taken\nmissing-isb 0x80 so is this\n\
                    missing-isb far nobody is there\n";
        let mut accepted = Accepted::parse(text).unwrap();
        let found = findings(groups, &names, &mut accepted);
        let listed: Vec<_> = found
            .iter()
            .map(|it| (it.rule, it.site(), it.count, it.accepted.as_deref()))
            .collect();
        let expected = [
            ("unordered-link", "near".into(), 9, None),
            ("missing-isb", "near".into(), 5, Some("it is taken")),
            ("missing-isb", "0x80".into(), 4, Some("so is this")),
            ("missing-isb", "end".into(), 1, None),
        ];
        assert_eq!(listed, expected);
        let places: Vec<_> = found[1].places.iter().map(|it| it.name.clone()).collect();
        assert_eq!(places, [Some("near+0x4".into()), Some("near+0x0".into())]);
        assert_eq!(found[1].example, "at Some(14)");
        let unused = accepted.unused().unwrap();
        assert_ends_with(&unused, "accepted findings not found (lines 5)");
    }

    #[test]
    fn accepted_findings_of_linux_are_written_up() {
        let accepted = include_str!("../../../../docs/accepted-findings.txt");
        let document = include_str!("../../../../docs/findings.md");
        let accepted = Accepted::parse(accepted).unwrap();
        assert!(!accepted.0.is_empty());
        for Entry { rule, place, .. } in accepted.0 {
            let section = document
                .split("\n## ")
                .find(|text| text.starts_with(&format!("`{rule}` in ")))
                .unwrap_or_else(|| panic!("no section on {rule}"));
            let head = section.lines().next().unwrap();
            assert!(head.contains(&format!("`{place}`")), "{place}: {head}");
            assert!(section.contains("    granule watch "), "{place}");
        }
    }

    #[test]
    fn a_line_without_a_reason_is_refused() {
        for text in ["RWHZWS", "RWHZWS here", "\n#\nRWHZWS here  "] {
            let error = Accepted::parse(text).unwrap_err();
            assert!(error.contains("RULE PLACE REASON"), "{error}");
        }
    }
}
