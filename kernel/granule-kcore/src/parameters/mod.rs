//! The command line, parsed once into one value that holds every word that the kernel supports.
//!
//! `words` is the only place that splits the command line; the choice of page size and VA size
//! before the MMU is on uses it too. The words that are read there are known here by name only. An
//! invalid value, or an unknown word that looks like one of the kernel's, is a [`Problem`], which
//! prints as one line; the boot continues as that line states. The last occurrence of a key counts,
//! except that every `granule.test=` and `arm64.fake_cpu=` counts.

mod leaves;
mod problem;
mod rodata;
mod self_check;
mod set_aside;
#[cfg(any(test, feature = "test-image"))]
pub mod test;
mod values;

pub use problem::{Instead, Problem};
pub use rodata::Rodata;
pub use self_check::SelfCheck;
pub(crate) use values::decimal;
use values::{listed, size};

pub use set_aside::{CrashMemory, GuardPool, MOST_GUARD_PAGES};

use core::ops::Range;
use granule::arch::PageSize;
use granule::arch::bbm::BbmLevel;
use granule::arch::errata::Errata;
use granule::linear::{Barriers, Strategy};
use granule::space::{LargeLeaves, Settings};
use granule_boot::choice::Wish;
use granule_boot::words::{self, Word};

/// The parsed command line.
#[derive(Clone, Debug)]
pub struct Parameters<'a> {
    /// `maxcpus=`: the most CPUs that run, the boot CPU included.
    pub most_cpus: usize,
    /// `rodata=`.
    pub rodata: Rodata,
    /// `arm64.bbm=`: an upper limit for the FEAT_BBM level, whatever the CPUs have.
    pub bbm: BbmLevel,
    /// `arm64.errata=`: errata that all CPUs are assumed to have.
    pub errata: Errata,
    /// `linear_map=`: a published strategy, or none for `direct`.
    pub strategy: Option<Strategy>,
    /// `linear_map_barriers=`; the default is the barriers that the strategy was published with.
    pub barriers: Barriers,
    /// `debug_pagealloc=on`: free pages are invalid in the linear map.
    pub debug_pagealloc: bool,
    /// `granule.merge=idle`: idle CPUs merge pages of the linear map into large leaves.
    pub merges_when_idle: bool,
    /// `granule.selfcheck=`, if the line has it.
    pub self_check: Option<SelfCheck>,
    /// `granule.count=instructions`.
    pub counts_instructions: bool,
    /// `granule.bench=`.
    pub bench: Option<Bench>,
    /// `granule.persist=`: RAM in which a boot leaves data for the next.
    pub persist: Option<Range<u64>>,
    /// `granule.guard=`.
    pub guard: Option<GuardPool>,
    /// `crashkernel=`.
    pub crash_memory: Option<CrashMemory>,
    /// `elfcorehdr=`: where the header of a dead kernel's core is, and its bytes if the word states them.
    pub core_header: Option<(u64, Option<u64>)>,
    /// `granule.kexec=`.
    pub kexec: KexecOptions,
    /// `granule.disk=on`: a virtio disk is looked for.
    pub disk: bool,
    /// `user_pagesize=`: the page size for programs that request none themselves.
    pub user_page_size: Option<PageSize>,
    /// `user_large_leaves=`: the leaves that a first touch of a program's memory maps.
    pub large_leaves: LargeLeaves,
    /// `user_max_map_count=`: the most areas of a program.
    pub most_areas: usize,
    /// `rdinit=`: the path of the first program in the initramfs.
    pub init: &'a [u8],
    /// The command line itself.
    line: &'a [u8],
    /// The words of the test image.
    #[cfg(any(test, feature = "test-image"))]
    pub test: test::TestParameters<'a>,
}

/// `granule.bench=`: the measurement, and its size if the word states one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// The number of permission changes.
    Permissions(Option<u64>),
    /// The number of bytes to copy.
    Copy(Option<u64>),
}

/// `granule.kexec=`: options separated by commas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KexecOptions {
    /// `uncached`: the MMU goes off before the first copy.
    pub uncached: bool,
    /// `digest`: this kernel computes digests of the segments it was given, once it is up.
    pub digest: bool,
}

/// The keys of the words that are read here.
const KEYS: [&str; 21] = [
    "maxcpus=",
    "rodata=",
    "arm64.bbm=",
    "arm64.errata=",
    "linear_map=",
    "linear_map_barriers=",
    "debug_pagealloc=",
    "granule.merge=",
    "granule.selfcheck=",
    "granule.count=",
    "granule.bench=",
    "granule.persist=",
    "granule.guard=",
    "crashkernel=",
    "elfcorehdr=",
    "granule.kexec=",
    "granule.disk=",
    "rdinit=",
    "user_pagesize=",
    "user_large_leaves=",
    "user_max_map_count=",
];

/// The values of a word that turns something on.
const ON_OR_OFF: [(&str, bool); 2] = [("on", true), ("off", false)];

/// The keys of the words that are read before the MMU is on.
const READ_BEFORE: [&str; 4] = [
    "arm64.pagesize=",
    "arm64.vabits=",
    "granule.trace=",
    "acpi=",
];

/// The words without a value that are read before the MMU is on.
const FLAGS_BEFORE: [&str; 1] = ["nokaslr="];

/// The keys of the words that only the test image has.
const OF_TESTS: [&str; 4] = [
    "granule.test=",
    "granule.crash=",
    "arm64.fake_cpu=",
    "arm64.inject_conflict=",
];

/// The prefixes of the kernel's own words. A word with such a prefix and an unknown key is a problem.
const PREFIXES: [&str; 3] = ["arm64.", "granule.", "linear_map"];

/// The keys of the words that name a console, which is found before the MMU is on.
const OF_CONSOLES: [&str; 2] = ["earlycon=", "console="];

/// Whether an unknown key has a prefix of the kernel's, or is a known key with one typing error.
fn looks_like_ours(key: &[u8]) -> bool {
    let mut known = KEYS.iter().chain(&OF_CONSOLES).chain(&FLAGS_BEFORE);
    let misspelt = |known: &&str| {
        let known = known.strip_suffix('=').unwrap_or(known).as_bytes();
        key != known && is_one_edit(key, known)
    };
    PREFIXES
        .iter()
        .any(|prefix| key.starts_with(prefix.as_bytes()))
        || known.any(misspelt)
}

/// Whether two texts differ by at most one letter that is missing, added or another, or by two
/// neighbours that are swapped.
fn is_one_edit(a: &[u8], b: &[u8]) -> bool {
    let same = |(a, b): &(&u8, &u8)| a == b;
    let head = a.iter().zip(b).take_while(same).count();
    let [a, b] = [a, b].map(|text| text.get(head..).unwrap_or_default());
    let tail = a.iter().rev().zip(b.iter().rev());
    let tail = tail.take_while(same).count();
    match [a, b].map(|text| {
        text.get(..text.len().saturating_sub(tail))
            .unwrap_or_default()
    }) {
        [[a, b], [c, d]] => a == d && b == c,
        [a, b] => a.len() <= 1 && b.len() <= 1,
    }
}

/// Whether `word` has `key`, which is given with its `=`.
fn has_key(word: &Word<'_>, key: &str) -> bool {
    key.strip_suffix('=')
        .is_some_and(|key| key.as_bytes() == word.key)
}

impl<'a> Parameters<'a> {
    /// Parses `line`, and calls `problem` for each word that cannot be used.
    pub fn parse(line: &'a [u8], mut problem: impl FnMut(Problem<'a>)) -> Self {
        let values = last_values(line, &mut problem);
        let mut read = Reader {
            values,
            problem: &mut problem,
        };
        read.earlycon(line);
        read.console(line);
        read.acpi(line);
        let strategy = read.strategy();
        Self {
            most_cpus: read.most_cpus(),
            most_areas: read.most_areas(),
            rodata: read.rodata(),
            bbm: read.bbm(),
            errata: read.errata(),
            strategy,
            barriers: read.barriers(strategy),
            debug_pagealloc: read.one_of("debug_pagealloc=", ON_OR_OFF, "on or off", false),
            merges_when_idle: read.one_of(
                "granule.merge=",
                [("idle", true), ("off", false)],
                "idle or off",
                true,
            ),
            self_check: read.self_check(),
            counts_instructions: read.one_of(
                "granule.count=",
                [("instructions", true)],
                "instructions",
                false,
            ),
            bench: read.bench(),
            persist: read.persist(),
            guard: read.guard(),
            crash_memory: read.crash_memory(),
            core_header: read.core_header(),
            kexec: read.kexec(),
            disk: read.one_of("granule.disk=", ON_OR_OFF, "on or off", false),
            user_page_size: read.one_of(
                "user_pagesize=",
                PageSize::ALL.map(|size| (size.name(), Some(size))),
                "4k, 16k or 64k",
                None,
            ),
            large_leaves: read.large_leaves(),
            init: read.value("rdinit=").unwrap_or(b"/init"),
            line,
            #[cfg(any(test, feature = "test-image"))]
            test: test::TestParameters::parse(line, &mut problem),
        }
    }

    /// The words after `--`: further arguments of the first program.
    pub fn init_arguments(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        words::init_arguments(self.line)
    }
}

/// The last value of each of [`KEYS`].
type Values<'a> = [Option<&'a [u8]>; KEYS.len()];

/// Collects the last value of each key, and calls `problem` for each unknown word.
fn last_values<'a>(line: &'a [u8], problem: &mut impl FnMut(Problem<'a>)) -> Values<'a> {
    let mut values = Values::default();
    for word in words::words(line) {
        let key = word.key;
        let of_tests = OF_TESTS.iter().any(|key| has_key(&word, key));
        let known = of_tests || READ_BEFORE.iter().any(|key| has_key(&word, key));
        let flag = FLAGS_BEFORE.iter().find(|key| has_key(&word, key));
        let index = KEYS.iter().position(|key| has_key(&word, key));
        if let Some(slot) = index.and_then(|index| values.get_mut(index)) {
            match word.value {
                Some(_) => *slot = word.value,
                None => problem(Problem::NoValue(key)),
            }
        } else if of_tests && !cfg!(any(test, feature = "test-image")) {
            problem(Problem::TestImageOnly(key));
        } else if known {
            if word.value.is_none() {
                problem(Problem::NoValue(key));
            }
        } else if let Some((key, value)) = flag.zip(word.value) {
            problem(Problem::BadValue {
                key,
                value,
                expected: "the word alone, without a value",
                instead: Instead::Ignores,
            });
        } else if looks_like_ours(key) {
            problem(Problem::UnknownWord(key));
        }
    }
    values
}

/// Parses values, and reports invalid ones.
struct Reader<'a, 'p, P> {
    values: Values<'a>,
    problem: &'p mut P,
}

impl<'a, P: FnMut(Problem<'a>)> Reader<'a, '_, P> {
    /// The last value of one of [`KEYS`].
    fn value(&self, key: &str) -> Option<&'a [u8]> {
        let index = KEYS.iter().position(|known| *known == key)?;
        *self.values.get(index)?
    }

    /// Reports an invalid value.
    fn bad(
        &mut self,
        key: &'static str,
        value: &'a [u8],
        expected: &'static str,
        instead: Instead,
    ) {
        (self.problem)(Problem::BadValue {
            key,
            value,
            expected,
            instead,
        });
    }

    /// The choice that the value names; `default` if there is no value or it names none.
    fn one_of<T: Copy + PartialEq, const N: usize>(
        &mut self,
        key: &'static str,
        choices: [(&'static str, T); N],
        expected: &'static str,
        default: T,
    ) -> T {
        let taken = choices.iter().find(|(_, choice)| *choice == default);
        let instead = taken.map_or(Instead::Ignores, |(name, _)| Instead::Takes(name));
        let choice = self.parsed(key, expected, instead, |value| {
            let named = choices.iter().find(|(name, _)| name.as_bytes() == value);
            named.map(|(_, choice)| *choice)
        });
        choice.unwrap_or(default)
    }

    /// The value as `parse` reads it; `None` if there is none, or if it cannot be read, which is reported.
    fn parsed<T>(
        &mut self,
        key: &'static str,
        expected: &'static str,
        instead: Instead,
        parse: impl FnOnce(&'a [u8]) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let parsed = parse(value);
        if parsed.is_none() {
            self.bad(key, value, expected, instead);
        }
        parsed
    }

    /// The console was found before the MMU is on. Here a value that named none is reported.
    fn earlycon(&mut self, line: &'a [u8]) {
        let value = words::find(line, words::EARLYCON_KEY);
        if let Some(value) = value.filter(|value| words::earlycon(value).is_none()) {
            let expected = "a UART and the address of its registers, as in pl011,0x9000000 or \
                            uart8250,mmio32,0x9000000";
            self.bad("earlycon=", value, expected, Instead::Ignores);
        }
    }

    fn console(&mut self, line: &'a [u8]) {
        let value = words::console(line);
        if let Some(value) = value.filter(|value| words::console_device(value).is_none()) {
            let expected = "ttyAMA, ttyS, ttyPS or ttymxc and one digit, as in ttyAMA0";
            self.bad("console=", value, expected, Instead::Ignores);
        }
    }

    /// The word was read before the MMU is on. Here a value without a meaning is reported.
    fn acpi(&mut self, line: &'a [u8]) {
        if let (Wish::Garbled(_), Some(value)) =
            (words::acpi(line), words::find(line, words::ACPI_KEY))
        {
            self.bad("acpi=", value, "off, on or force", Instead::Ignores);
        }
    }

    /// As for Linux, 0 means that no other CPU is started.
    fn most_cpus(&mut self) -> usize {
        let most = self.parsed("maxcpus=", "a number of CPUs", Instead::Ignores, decimal);
        let most = most.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        most.map_or(usize::MAX, |most| most.max(1))
    }

    fn bbm(&mut self) -> BbmLevel {
        let taken = Instead::Takes("what the CPUs have");
        let level = self.parsed("arm64.bbm=", "0, 1, 2 or 3", taken, |value| match value {
            b"3" => Some(BbmLevel::Level3),
            b"2" => Some(BbmLevel::Level2),
            b"1" => Some(BbmLevel::Level1),
            b"0" => Some(BbmLevel::Level0),
            _ => None,
        });
        level.unwrap_or(BbmLevel::Level3)
    }

    fn errata(&mut self) -> Errata {
        let mut errata = Errata::NONE;
        for name in listed(self.value("arm64.errata=")) {
            if !errata.force(name) {
                let expected = "the name of an erratum (crates/granule/src/arch/errata.rs)";
                self.bad("arm64.errata=", name, expected, Instead::Ignores);
            }
        }
        errata
    }

    /// None stands for `direct`: tables come from memory that the linear map already covers.
    fn strategy(&mut self) -> Option<Strategy> {
        let choices = [
            ("base", Some(Strategy::Base)),
            ("no-cont-remap", Some(Strategy::NoContRemap)),
            ("batch-barriers", Some(Strategy::BatchBarriers)),
            ("no-alloc-remap", Some(Strategy::NoAllocRemap)),
            ("lazy-unmap", Some(Strategy::LazyUnmap)),
            ("direct", None),
        ];
        let expected = "base, no-cont-remap, batch-barriers, no-alloc-remap, lazy-unmap or direct";
        self.one_of("linear_map=", choices, expected, None)
    }

    fn barriers(&mut self, strategy: Option<Strategy>) -> Barriers {
        let default = strategy.map_or(Barriers::Table, Strategy::barriers);
        let choices = [("entry", Barriers::Entry), ("table", Barriers::Table)];
        let key = "linear_map_barriers=";
        let barriers = self.one_of(key, choices, "entry or table", default);
        if barriers == Barriers::Entry && strategy.is_none() {
            let expected = "table, as direct has no slots to close between entries";
            self.bad(key, b"entry", expected, Instead::Takes("table"));
            return default;
        }
        barriers
    }

    fn bench(&mut self) -> Option<Bench> {
        let expected = "permissions or copy, or with `:` and a number";
        self.parsed("granule.bench=", expected, Instead::Ignores, |value| {
            let mut parts = value.splitn(2, |byte| *byte == b':');
            let what = parts.next().unwrap_or_default();
            let number = match parts.next().filter(|number| !number.is_empty()) {
                None => None,
                Some(number) => Some(decimal(number)?),
            };
            match what {
                b"permissions" => Some(Bench::Permissions(number)),
                b"copy" => Some(Bench::Copy(number)),
                _ => None,
            }
        })
    }

    fn large_leaves(&mut self) -> LargeLeaves {
        let policy = self.parsed(
            "user_large_leaves=",
            "off, groups or blocks, the last two perhaps with the most bytes of a touch as in blocks,2M",
            Instead::Takes("blocks"),
            leaves::policy,
        );
        policy.unwrap_or(LargeLeaves::BLOCKS)
    }

    fn most_areas(&mut self) -> usize {
        let (expected, taken) = ("a number of areas, such as 65530", Instead::Takes("65530"));
        let most = self.parsed("user_max_map_count=", expected, taken, |value| {
            usize::try_from(decimal(value)?).ok()
        });
        most.unwrap_or(Settings::MOST_VMAS)
    }

    fn kexec(&mut self) -> KexecOptions {
        let mut options = KexecOptions::default();
        for word in listed(self.value("granule.kexec=")) {
            match word {
                b"uncached" => options.uncached = true,
                b"digest" => options.digest = true,
                _ => {
                    let expected = "uncached, digest, or both with a comma between them";
                    self.bad("granule.kexec=", word, expected, Instead::Ignores);
                }
            }
        }
        options
    }
}

/// Whether the line requests digests of what an earlier kernel gave (`granule.kexec=digest`). Code
/// with the MMU off calls this, so nothing here formats or panics.
#[must_use]
pub fn wants_digest(line: &[u8]) -> bool {
    let mut all = listed(words::find(line, b"granule.kexec="));
    all.any(|word| matches!(word, b"digest"))
}

#[cfg(test)]
mod tests;
