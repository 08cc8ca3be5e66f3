//! Parses the output of the benchmark program.
//!
//! Pure, and trusts no line, since the lines come from a guest. A line that is missing, cut off,
//! repeated or malformed is an error of one line; other programs' lines in between are skipped.

use std::collections::BTreeSet;

use granule_plugin::counts::Counts;

/// The results of a run of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of a page.
    pub page: u64,
    /// Bytes of memory that each operation works on.
    pub bytes: u64,
    pub pages: u64,
    /// The number of rounds.
    pub rounds: u64,
    /// Ticks in a second.
    pub frequency: u64,
    /// The number of pieces of work that the program timed.
    pub timed: u64,
    /// The operations, in the program's order.
    pub ops: Vec<Op>,
}

/// An operation: on all of the memory, unless its fields give something else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Op {
    pub name: String,
    /// Bytes of a page of the programs, where they are not those of the one that measures.
    pub page: Option<u64>,
    /// Bytes of a page of the other program.
    pub other: Option<u64>,
    /// The number of repetitions each time, if it is not work on memory.
    pub times: Option<u64>,
    /// Bytes that it took.
    pub bytes: Option<u64>,
    /// Its time, if it was timed.
    pub time: Option<Time>,
    /// Counts from outside the guest in its fastest round.
    pub counts: Option<Counts>,
}

impl Op {
    /// Whether it is the same work as another, maybe of another boot.
    pub fn is_same_work(&self, other: &Self) -> bool {
        let kind = |op: &Self| (op.page, op.other);
        self.name == other.name && kind(self) == kind(other)
    }
}

/// Nanoseconds of all rounds: instructions where one takes exactly a nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    /// The fastest round.
    pub best: u64,
    /// The median round.
    pub median: u64,
    /// The slowest round.
    pub worst: u64,
    /// The number of the fastest among all that the program timed.
    pub at: u64,
}

/// The prefix of every line of the program.
const PREFIX: &str = "bench ";
/// The most operations that are read.
const MOST_OPS: usize = 64;
const MOST_NAME: usize = 32;
const NANOSECONDS: u128 = 1_000_000_000;

/// Parses a console.
/// Fails with one line: the mistake and its line, or what is missing.
pub fn read(console: &str) -> Result<Measured, String> {
    let mut begun: Option<Measured> = None;
    let mut names = BTreeSet::new();
    for line in console.lines() {
        let Some(words) = line.trim_end().strip_prefix(PREFIX) else {
            continue;
        };
        let wrong = |what: &str| format!("the benchmark's line {line:?}: {what}");
        if let Some(why) = words.strip_prefix("failed ") {
            return Err(format!("the benchmark failed: {why}"));
        }
        if let Some(fields) = words.strip_prefix("begin ") {
            if begun.is_some() {
                return Err(wrong("a second beginning"));
            }
            begun = Some(begin(fields).map_err(|what| wrong(&what))?);
            continue;
        }
        let measured = begun
            .as_mut()
            .ok_or_else(|| wrong("comes before `bench begin`"))?;
        if let Some(fields) = words.strip_prefix("end ") {
            let ops = number(fields, "ops").map_err(|what| wrong(&what))?;
            if ops == 0 || ops != measured.ops.len() as u64 {
                return Err(wrong(&format!("there were {}", measured.ops.len())));
            }
            measured.timed = number(fields, "timed").map_err(|what| wrong(&what))?;
            return begun.ok_or_else(String::new);
        }
        let op = op(words, measured.frequency).map_err(|what| wrong(&what))?;
        if !names.insert((op.name.clone(), op.page, op.other)) {
            return Err(wrong("repeated"));
        }
        if measured.ops.len() == MOST_OPS {
            return Err(wrong(&format!("there are {MOST_OPS} already")));
        }
        measured.ops.push(op);
    }
    Err(match begun {
        None => "the console has no line `bench begin` of the benchmark".into(),
        Some(measured) => format!(
            "the benchmark's output ends after {} kinds of work, without `bench end`",
            measured.ops.len()
        ),
    })
}

fn begin(fields: &str) -> Result<Measured, String> {
    let measured = Measured {
        page: number(fields, "page")?,
        bytes: number(fields, "bytes")?,
        pages: number(fields, "pages")?,
        rounds: number(fields, "rounds")?,
        frequency: number(fields, "frequency")?,
        timed: 0,
        ops: Vec::new(),
    };
    if !measured.page.is_power_of_two() || measured.pages == 0 {
        return Err("no pages of a size that there is".into());
    }
    if measured.pages.checked_mul(measured.page) != Some(measured.bytes) {
        return Err("the bytes are not those of the pages".into());
    }
    if measured.rounds == 0 || measured.frequency == 0 {
        return Err("no rounds, or a counter that stands still".into());
    }
    Ok(measured)
}

fn op(words: &str, frequency: u64) -> Result<Op, String> {
    let name = field(words, "op")?;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > MOST_NAME || !name.bytes().all(plain) {
        return Err("no name of a kind of work".into());
    }
    let optional = |key| match field(words, key) {
        Ok(_) => number(words, key).map(Some),
        Err(_) => Ok(None),
    };
    let op = Op {
        name: name.to_owned(),
        page: optional("page")?,
        other: optional("other")?,
        times: optional("times")?,
        bytes: optional("bytes")?,
        time: None,
        counts: None,
    };
    if op.times == Some(0) {
        return Err("it was not done".into());
    }
    // What took memory was not timed, and the other way round.
    if op.bytes.is_some() {
        return Ok(op);
    }
    let time = |key| {
        let ticks = number(words, key)?;
        let time = u128::from(ticks) * NANOSECONDS / u128::from(frequency.max(1));
        u64::try_from(time).map_err(|_| format!("`{key}` is longer than can be"))
    };
    let time = Time {
        best: time("best")?,
        median: time("median")?,
        worst: time("worst")?,
        at: number(words, "at")?,
    };
    if time.best > time.median || time.median > time.worst {
        return Err("the best is not the best".into());
    }
    Ok(Op {
        time: Some(time),
        ..op
    })
}

/// The value of the first `key=value` with that key.
fn field<'a>(fields: &'a str, key: &str) -> Result<&'a str, String> {
    fields
        .split_ascii_whitespace()
        .find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
        .ok_or_else(|| format!("`{key}=` is missing"))
}

fn number(fields: &str, key: &str) -> Result<u64, String> {
    let text = field(fields, key)?;
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| format!("`{key}` is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str =
        "bench begin page=4096 bytes=67108864 pages=16384 rounds=3 frequency=62500000";
    const WHOLE: &str = "granule: something else\r\n\
        bench begin page=4096 bytes=67108864 pages=16384 rounds=3 frequency=62500000\r\n\
        bench op=touch best=1358992 median=1358993 worst=1362113 at=0\r\n\
        granule: a line of the kernel's\r\n\
        bench op=fork-held best=100 median=100 worst=200 at=3 more=7\r\n\
        bench end ops=2 timed=30\r\n\
        bench op=late best=1 median=1 worst=1 at=0\r\n";

    #[test]
    fn ticks_become_nanoseconds() {
        let measured = read(WHOLE).unwrap();
        assert_eq!((measured.page, measured.pages), (4096, 16384));
        assert_eq!((measured.bytes, measured.rounds), (64 << 20, 3));
        assert_eq!(measured.timed, 30);
        let names: Vec<_> = measured.ops.iter().map(|op| op.name.as_str()).collect();
        assert_eq!(names, ["touch", "fork-held"]);
        assert_eq!(measured.ops[1].time.unwrap().at, 3);
        let touch = measured.ops[0].time.unwrap();
        assert_eq!(
            (touch.best, touch.median, touch.worst),
            (1_358_992 * 16, 1_358_993 * 16, 1_362_113 * 16)
        );
    }

    #[test]
    fn output_that_is_cut_off_anywhere_is_not_a_result() {
        let end = WHOLE.find("timed=30").unwrap() + "timed=3".len();
        for length in 0..end {
            let error = read(&WHOLE[..length]).unwrap_err();
            assert!(!error.contains('\n') && !error.is_empty(), "{error}");
        }
        assert!(read(&WHOLE[..end]).is_ok());
    }

    #[test]
    fn a_senseless_line_is_an_error_that_quotes_it() {
        let after = |lines: &str| read(&format!("{BEGIN}\n{lines}")).unwrap_err();
        let op = "bench op=a best=1 median=2 worst=3 at=0\n";
        for (lines, expected) in [
            ("bench end ops=0", "there were 0"),
            ("bench end ops=1", "there were 0"),
            ("bench end", "`op=` is missing"),
            (
                "bench failed munmap -12",
                "the benchmark failed: munmap -12",
            ),
            ("bench op=a best=1 median=2", "`worst=` is missing"),
            (
                "bench op=a best=-1 median=2 worst=3",
                "`best` is not a number",
            ),
            (
                "bench op=a best=+1 median=2 worst=3",
                "`best` is not a number",
            ),
            (
                "bench op=a best= median=2 worst=3",
                "`best` is not a number",
            ),
            ("bench op=a best=3 median=2 worst=3 at=0", "not the best"),
            ("bench op=a best=1 median=4 worst=3 at=0", "not the best"),
            ("bench op=A best=1 median=2 worst=3 at=0", "no name"),
            ("bench op= best=1 median=2 worst=3 at=0", "no name"),
            (
                "bench op=a best=1 median=2 worst=99999999999999999999 at=0",
                "`worst` is not a number",
            ),
            (
                "bench op=a best=1 median=2 worst=18446744073709551615 at=0",
                "longer than can be",
            ),
            (BEGIN, "a second beginning"),
            (&format!("{op}{op}"), "repeated"),
        ] {
            let error = after(lines);
            assert!(error.contains(expected), "{lines}: {error}");
        }
        let many: String = (0..=MOST_OPS)
            .map(|at| format!("bench op=a{at} best=1 median=2 worst=3 at=0\n"))
            .collect();
        assert!(after(&many).contains("64 already"));
        let long = format!("bench op={} best=1 median=2 worst=3 at=0", "a".repeat(33));
        assert!(after(&long).contains("no name"));
    }

    #[test]
    fn a_beginning_must_hold_together() {
        for (change, to, expected) in [
            ("page=4096", "page=4095", "no pages"),
            ("pages=16384", "pages=0", "no pages"),
            ("pages=16384", "pages=16385", "not those of the pages"),
            (
                "pages=16384",
                "pages=18446744073709551615",
                "not those of the pages",
            ),
            ("rounds=3", "rounds=0", "no rounds"),
            ("frequency=62500000", "frequency=0", "stands still"),
            ("frequency=62500000", "", "`frequency=` is missing"),
        ] {
            let error = read(&BEGIN.replace(change, to)).unwrap_err();
            assert!(error.contains(expected), "{to}: {error}");
        }
        let early = read("bench op=a best=1 median=2 worst=3 at=0").unwrap_err();
        assert!(early.contains("before `bench begin`"), "{early}");
        assert!(read("").unwrap_err().contains("no line `bench begin`"));
    }
}
