//! Words of the test image: `granule.test=`, `arm64.fake_cpu=` and `arm64.inject_conflict=`.
//! Self-tests, deliberate failures and fault injection read them here; each test interprets its own
//! text.

use super::{Instead, Problem};
use crate::cpus::fake::{self, Changes};
use core::num::NonZeroU64;
use granule_boot::words;

/// The test image's part of the command line.
#[derive(Clone, Debug)]
pub struct TestParameters<'a> {
    /// `arm64.inject_conflict=`: the number of the split that imitates a TLB conflict.
    pub inject_conflict: Option<NonZeroU64>,
    line: &'a [u8],
}

impl<'a> TestParameters<'a> {
    /// Parses `line`, and calls `problem` for each of these words that cannot be used.
    pub(super) fn parse(line: &'a [u8], problem: &mut impl FnMut(Problem<'a>)) -> Self {
        fake::of_cpu(line, 0, |bad| {
            problem(Problem::BadValue {
                key: "arm64.fake_cpu=",
                value: bad.value,
                expected: "N:FIELD=VALUE[,...] with N from 1 and ID fields such as parange, tgran4, bbm",
                instead: Instead::Ignores,
            });
        });
        let key = "arm64.inject_conflict=";
        let inject_conflict = words::find(line, key.as_bytes()).and_then(|value| {
            let number = super::decimal(value).and_then(NonZeroU64::new);
            if number.is_none() {
                problem(Problem::BadValue {
                    key,
                    value,
                    expected: "the number of a split, from 1",
                    instead: Instead::Ignores,
                });
            }
            number
        });
        Self {
            inject_conflict,
            line,
        }
    }

    /// The values of all `granule.test=` words, in order.
    pub fn tests(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        let words = words::words(self.line).filter(|word| word.key == b"granule.test");
        words.filter_map(|word| word.value)
    }

    /// Whether one of the tests is `name`.
    #[must_use]
    pub fn asks_for(&self, name: &[u8]) -> bool {
        self.tests().any(|test| test == name)
    }

    /// The text after `prefix` in the last test that begins with it.
    #[must_use]
    pub fn after(&self, prefix: &[u8]) -> Option<&'a [u8]> {
        self.tests()
            .filter_map(|test| test.strip_prefix(prefix))
            .last()
    }

    /// The ID fields that CPU `number` reports instead of its own.
    #[must_use]
    pub fn fake_cpu(&self, number: usize) -> Changes {
        fake::of_cpu(self.line, number, |_| ())
    }
}
