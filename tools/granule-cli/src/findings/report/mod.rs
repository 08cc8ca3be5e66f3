//! The page of `--report`: findings with their events, counts, events by kind over the run, and what went
//! unchecked. How it looks is in `page.html` and `findings.js` here, and in the files of `granule report`.

use std::fs;
use std::path::Path;

use granule_model::{Policies, Policy};
use serde::Serialize;
use serde_json::Value;

use super::timeline::Drawn;
use super::{Finding, Timeline};
use crate::json::value;
use crate::page::{CHARTS, COMMON, fill, visible};

const PAGE: &str = include_str!("page.html");
const SCRIPTS: [&str; 3] = [COMMON, CHARTS, include_str!("findings.js")];

/// The content of a page.
pub(crate) struct Page<'a> {
    /// The run or the file that was read.
    pub(crate) title: &'a str,
    /// The verdict in one line.
    pub(crate) result: &'a str,
    /// Names and values of the system and the run.
    pub(crate) facts: Vec<(&'static str, String)>,
    pub(crate) findings: &'a [Finding],
    pub(crate) timeline: &'a Timeline,
    pub(crate) policies: Policies,
    pub(crate) notes: &'a [String],
    pub(crate) unchecked: &'a [String],
}

impl Page<'_> {
    /// The page.
    pub(crate) fn html(&self) -> String {
        let policy = |policy: Policy| Allowed {
            name: policy.name(),
            allowed: self.policies.has(policy),
        };
        let finding = |finding| Shown {
            finding,
            site: Finding::site(finding),
        };
        let data = value(Data {
            title: self.title,
            result: self.result,
            facts: &self.facts,
            findings: self.findings.iter().map(finding).collect(),
            timeline: self.timeline.object(),
            policies: Policy::ALL.into_iter().map(policy).collect(),
            notes: self.notes,
            unchecked: self.unchecked,
        });
        fill(PAGE, &SCRIPTS, &shown(data))
    }
}

/// The data of the page.
#[derive(Serialize)]
struct Data<'a> {
    title: &'a str,
    result: &'a str,
    facts: &'a [(&'static str, String)],
    findings: Vec<Shown<'a>>,
    timeline: Drawn<'a>,
    policies: Vec<Allowed>,
    notes: &'a [String],
    unchecked: &'a [String],
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    site: String,
}

#[derive(Serialize)]
struct Allowed {
    name: &'static str,
    allowed: bool,
}

/// Writes a page, or makes its file, so that a run does not end without.
/// Fails with one line with the file.
pub(crate) fn write(path: &Path, html: &str) -> Result<(), String> {
    fs::write(path, html).map_err(|error| format!("--report {}: {error}", path.display()))
}

/// Page sizes in words.
pub(crate) fn sizes(bytes: &[u64]) -> String {
    let words: Vec<_> = bytes.iter().map(|one| format!("{}K", one >> 10)).collect();
    words.join(", ")
}

/// Names come from the guest's memory and from files: nothing in them is hidden.
fn shown(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(visible(&text)),
        Value::Array(list) => list.into_iter().map(shown).collect(),
        Value::Object(map) => {
            let map = map.into_iter().map(|(key, value)| (key, shown(value)));
            Value::Object(map.collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::{Accepted, Judge, Names};
    use granule_model::{Config, Event};
    use granule_testing::text::assert_starts_with;

    #[test]
    fn foreign_names_stay_text_and_the_page_needs_nothing_else() {
        let hostile = "</script><script>alert(1)</script>\u{202e}";
        let mut judge = Judge::new(Config::default(), 0);
        judge.add(0, Event::At(0x40)).unwrap();
        let (mut judged, _) = judge.finish(false);
        let (mut names, mut accepted) = (Names::default(), Accepted::default());
        let (findings, _) = crate::findings::of(&mut judged, &mut names, &mut accepted, None);
        let page = Page {
            title: hostile,
            result: "clean",
            facts: vec![("file", hostile.into())],
            findings: &findings,
            timeline: &judged.timeline,
            policies: Policies::all(),
            notes: &[],
            unchecked: &[hostile.into()],
        };
        let html = page.html();
        assert!(!html.contains("alert(1)</script>") && !html.contains('\u{202e}'));
        assert_eq!(html.matches("<script").count(), 2);
        assert!(html.contains("default-src 'none'"));
        for word in [
            "innerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "src=",
        ] {
            assert!(!html.contains(word), "{word}");
        }
        let error = write(Path::new("/nowhere/page.html"), &html).unwrap_err();
        assert_starts_with(&error, "--report /nowhere/page.html: ");
    }
}
