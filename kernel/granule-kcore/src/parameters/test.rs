//! Words of the test image: `granule.test=`, `granule.crash=`, `arm64.fake_cpu=` and `arm64.inject_conflict=`.
//! Self-tests, deliberate failures and fault injection read them here; each test interprets its own
//! text. A test runs only if its name is in `NAMES` here.

use super::{Instead, Problem};
use crate::cpus::fake::{self, Changes};
use crate::kexec::test_words;
use core::num::NonZeroU64;
use granule_boot::words;

const KEY: &str = "granule.test=";

/// The tests whose name is the whole value. Each is explained where the kernel runs it
/// (kernel/granule-kernel/src/selftest).
const NAMES: &str = "alloc-failure background background-busy conflict conflict-again copies corrupt-hint \
    corrupt-missing corrupt-output corrupt-pattern corrupt-permission corrupt-read-only \
    corrupt-sampled corrupt-translation count count-alone exception execute exhaustion guard guard-beside \
    hotplug hotplug-new ipi lines mute needs-16k needs-4k needs-4k-or-64k needs-64k \
    needs-at-most-16k noflush overflow overflow-task overflow-task-briefly \
    overflow-task-slowly pagealloc pages panic park permission-counts permissions read-guard \
    read-invalid secondary-overflow secondary-panic sized splits spurious stacks \
    use-after-free write-read-only write-text";

/// The beginnings of tests with arguments, which the test itself checks.
const WITH_ARGUMENTS: [&str; 2] = ["permissions-stress:", KEXEC];

/// Faults of a kexec; [`test_words`] reads the rest.
const KEXEC: &str = "kexec:";

fn is_known(test: &[u8]) -> bool {
    let begins = |start: &&str| test.starts_with(start.as_bytes());
    NAMES.split(' ').any(|name| name.as_bytes() == test) || WITH_ARGUMENTS.iter().any(begins)
}

/// Where the kernel panics once a crash kernel is loaded: `granule.crash=`, the names in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashAt {
    /// In the system call that has loaded it.
    Call,
    /// While it prints: with the console's lock held.
    Console,
    /// With the lock of the kernel's tables held.
    Tables,
    /// `store@N`: before the store of this number, from 1, in a change of the linear map.
    Store(u64),
    /// `cpu@N`: on this CPU, in an interrupt.
    Cpu(u64),
    /// `masked@N`: while this CPU, or CPU 0 if this one loads, has interrupts masked for ever.
    Masked(u64),
    /// After a byte of the crash kernel was changed.
    Damage,
}

impl CrashAt {
    const EXPECTED: &str = "call, console, tables, damage, or store@, cpu@ or masked@ and a number";

    fn parse(value: &[u8]) -> Option<Self> {
        let mut parts = value.splitn(2, |byte| *byte == b'@');
        let of = (parts.next()?, parts.next().map(number));
        Some(match of {
            (b"call", None) => Self::Call,
            (b"console", None) => Self::Console,
            (b"tables", None) => Self::Tables,
            (b"damage", None) => Self::Damage,
            (b"store", Some(number)) => Self::Store(number.filter(|number| *number > 0)?),
            (b"cpu", Some(number)) => Self::Cpu(number?),
            (b"masked", Some(number)) => Self::Masked(number?),
            _ => return None,
        })
    }
}

/// The test image's part of the command line.
#[derive(Clone, Debug)]
pub struct TestParameters<'a> {
    /// `arm64.inject_conflict=`: the number of the split that imitates a TLB conflict.
    pub inject_conflict: Option<NonZeroU64>,
    /// `granule.crash=`.
    pub crash: Option<CrashAt>,
    line: &'a [u8],
}

impl<'a> TestParameters<'a> {
    /// Parses `line`, and calls `problem` for each of these words that cannot be used.
    pub(super) fn parse(line: &'a [u8], problem: &mut impl FnMut(Problem<'a>)) -> Self {
        let mut bad = |key, value, expected| {
            let instead = Instead::Ignores;
            problem(Problem::BadValue {
                key,
                value,
                expected,
                instead,
            });
        };
        fake::of_cpu(line, 0, |value| {
            let expected =
                "N:FIELD=VALUE[,...] with N from 1 and ID fields such as parange, tgran4, bbm";
            bad("arm64.fake_cpu=", value, expected);
        });
        for value in values(line) {
            if !is_known(value) {
                let expected = "the name of a test (kernel/granule-kcore/src/parameters/test.rs)";
                bad(KEY, value, expected);
            } else if let Some(words) = value.strip_prefix(KEXEC.as_bytes()) {
                test_words::read(words, |word| {
                    bad("granule.test=kexec:", word, test_words::EXPECTED);
                });
            }
        }
        let key = "arm64.inject_conflict=";
        let inject_conflict = words::find(line, key.as_bytes()).and_then(|value| {
            let number = super::decimal(value).and_then(NonZeroU64::new);
            if number.is_none() {
                bad(key, value, "the number of a split, from 1");
            }
            number
        });
        let key = "granule.crash=";
        let crash = words::find(line, key.as_bytes()).and_then(|value| {
            let crash = CrashAt::parse(value);
            if crash.is_none() {
                bad(key, value, CrashAt::EXPECTED);
            }
            crash
        });
        Self {
            inject_conflict,
            crash,
            line,
        }
    }

    /// The known tests among the values of `granule.test=`, in order.
    pub fn tests(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        values(self.line).filter(|test| is_known(test))
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

    /// The faults of the last `granule.test=kexec:`.
    #[must_use]
    pub fn kexec(&self) -> test_words::TestWords {
        let words = self.after(KEXEC.as_bytes()).unwrap_or_default();
        test_words::read(words, |_| ())
    }

    /// The ID fields that CPU `number` reports instead of its own.
    #[must_use]
    pub fn fake_cpu(&self, number: usize) -> Changes {
        fake::of_cpu(self.line, number, |_| ())
    }
}

/// A hexadecimal number with `0x`, otherwise decimal.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The values of all `granule.test=` words, in order.
fn values(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let words = words::words(line).filter(|word| super::has_key(word, KEY));
    words.filter_map(|word| word.value)
}
