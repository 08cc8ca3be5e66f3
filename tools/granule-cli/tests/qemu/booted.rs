//! A boot that has ended, and what tests ask of it: code that all rooms share.

use granule_cli::{Boot, Outcome, Request};
use serde_json::Value;

use crate::hooked::run;

/// A boot that has ended. Its checks print the request, which names the case.
pub(crate) struct Booted {
    request: Request,
    pub(crate) boot: Boot,
    pub(crate) json: Value,
    pub(crate) console: String,
}

impl Booted {
    /// Boots as requested.
    pub(crate) fn by(request: &Request) -> Self {
        let boot = run(request);
        Self {
            request: request.clone(),
            json: boot.json(),
            console: boot.console_text(),
            boot,
        }
    }

    /// Returns the value at that place of the JSON object; null if there is none.
    pub(crate) fn value(&self, path: &str) -> &Value {
        path.split('.')
            .fold(&self.json, |value, key| match key.parse::<usize>() {
                Ok(index) if value.is_array() => &value[index],
                _ => &value[key],
            })
    }

    /// The value at that place, which must be there and of the type that `typed` takes.
    #[track_caller]
    fn typed<'a, T>(&'a self, path: &str, typed: impl FnOnce(&'a Value) -> Option<T>) -> T {
        typed(self.value(path))
            .unwrap_or_else(|| panic!("{path}: {} in {}", self.value(path), self.json))
    }

    #[track_caller]
    pub(crate) fn number(&self, path: &str) -> u64 {
        self.typed(path, Value::as_u64)
    }

    #[track_caller]
    pub(crate) fn text(&self, path: &str) -> &str {
        self.typed(path, Value::as_str)
    }

    #[track_caller]
    pub(crate) fn flag(&self, path: &str) -> bool {
        self.typed(path, Value::as_bool)
    }

    #[track_caller]
    pub(crate) fn texts(&self, path: &str) -> Vec<&str> {
        let texts = self.typed(path, Value::as_array);
        texts.iter().map(|text| text.as_str().unwrap()).collect()
    }

    /// The JSON object must have this value at that place.
    #[track_caller]
    pub(crate) fn has(&self, path: &str, expected: impl Into<Value>) {
        let (found, expected) = (self.value(path), expected.into());
        assert_eq!(*found, expected, "{path} of {}", self.whole());
    }

    /// The boot must have ended that way.
    #[track_caller]
    pub(crate) fn ended(&self, outcome: Outcome) {
        self.has("outcome", outcome.word());
    }

    /// Request, end and console, for the message of a check.
    fn whole(&self) -> String {
        let (request, end) = (&self.request, self.boot.last_line());
        format!("{request:?}\n{end}\n{}", self.console)
    }

    /// The last line of the report, with the outcome.
    pub(crate) fn last_line(&self) -> String {
        self.boot.last_line()
    }

    /// The reason of a boot that did not end well.
    pub(crate) fn reason(&self) -> &str {
        self.boot.reason.as_deref().unwrap_or_default()
    }

    /// The reason must have this text in it.
    #[track_caller]
    pub(crate) fn fails_with(&self, text: &str) {
        assert!(self.reason().contains(text), "{text:?}: {}", self.whole());
    }

    /// The console must have exactly one line with this text in it.
    #[track_caller]
    pub(crate) fn prints(&self, text: &str) {
        let lines = self.console.lines().filter(|line| line.contains(text));
        assert_eq!(lines.count(), 1, "{text:?} once in {}", self.whole());
    }

    /// The console must have this line.
    #[track_caller]
    pub(crate) fn prints_line(&self, line: &str) {
        let mut lines = self.console.lines().map(str::trim_end);
        let is_there = lines.any(|printed| printed == line);
        assert!(is_there, "no {line:?} in {}", self.whole());
    }

    /// The console must have this text, once or often.
    #[track_caller]
    pub(crate) fn mentions(&self, text: &str) {
        assert!(
            self.console.contains(text),
            "no {text:?} in {}",
            self.whole()
        );
    }

    #[track_caller]
    pub(crate) fn does_not_print(&self, text: &str) {
        let is_there = self.console.contains(text);
        assert!(!is_there, "{text:?} in {}", self.whole());
    }

    /// Every page frame that programs took must have come back, and the kernel must have counted them.
    #[track_caller]
    pub(crate) fn frames_came_back(&self) {
        self.has("user.frames_after", self.number("user.frames_before"));
    }
}
