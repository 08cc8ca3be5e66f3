//! The first line of a trace.

use std::fmt;

use super::error::LineError;
use super::words::{Words, number};
use crate::config::{Lacks, Policies};

/// The version of the format. Version 1 has fewer lines, as `docs/trace-format.md` lists.
const VERSION: u64 = 2;
/// The first word.
const MAGIC: &str = "granule-trace";
/// The word of the policies, without which there are none.
const ALLOWS: &str = "allows=";
/// The word of the addresses that are unmapped lazily.
const LAZY: &str = "lazy=";
/// The word of the features that the CPUs lack.
const LACKS: &str = "lacks=";
/// The most CPUs of a trace: as many as the model supports.
const MOST_CPUS: u64 = 64;

/// The fields of a trace's first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceHeader {
    /// The page size of the tables in bytes: 4096, 16384 or 65536.
    pub page_bytes: u64,
    /// The number of CPUs.
    pub cpus: u32,
    /// The BBM level that all of the CPUs have, 0 to 3.
    pub bbm_level: u8,
    /// The omissions that the kernel makes on purpose.
    pub policies: Policies,
    /// The addresses for which lazy unmapping holds ([`Config::lazy`](crate::Config::lazy)).
    pub lazy: Option<(u64, u64)>,
    /// The features that the CPUs lack.
    pub lacks: Lacks,
    /// Whether the trace has every event up to the end of the recording.
    pub complete: bool,
    /// The number of events.
    pub events: u64,
}

impl TraceHeader {
    /// Reads the first line, without its line feed.
    ///
    /// # Errors
    ///
    /// A `LineError` if the line is not the first line of a trace of this version.
    pub fn parse(line: &str) -> Result<Self, LineError> {
        let mut words = Words::new(line);
        words.next_as(
            "`granule-trace`, as in the first line of every trace",
            |word| (word == MAGIC).then_some(()),
        )?;
        words.next_as("version 1 or 2", |word| {
            (1..=VERSION).contains(&number(word)?).then_some(())
        })?;
        let page_bytes = words.next_as("page=4k, page=16k or page=64k", |word| {
            match word.strip_prefix("page=")? {
                "4k" => Some(4 << 10),
                "16k" => Some(16 << 10),
                "64k" => Some(64 << 10),
                _ => None,
            }
        })?;
        let cpus = words.next_as("cpus=N, 1 to 64", |word| {
            let cpus = number(word.strip_prefix("cpus=")?)?;
            (1..=MOST_CPUS).contains(&cpus).then_some(cpus as u32)
        })?;
        let bbm_level = words.next_as("bbm=N, 0 to 3", |word| {
            let level = number(word.strip_prefix("bbm=")?)?;
            (level <= 3).then_some(level as u8)
        })?;
        let policies = if words.begins_with(ALLOWS) {
            words.next_as("allows=NAME,NAME or allows=none", |word| {
                Policies::from_names(word.strip_prefix(ALLOWS)?)
            })?
        } else {
            Policies::NONE
        };
        let lazy = if words.begins_with(LAZY) {
            words.next_as("lazy=FIRST-LAST, two addresses", |word| {
                let (first, last) = word.strip_prefix(LAZY)?.split_once('-')?;
                Some((number(first)?, number(last)?))
                    .filter(|(first, last)| first <= last)
                    .map(Some)
            })?
        } else {
            None
        };
        let lacks = if words.begins_with(LACKS) {
            words.next_as(
                "lacks=NAME,NAME, of ttl, single-tlbi, lva, lpa2, ttst, hafdbs, xnx",
                |word| Lacks::from_names(word.strip_prefix(LACKS)?),
            )?
        } else {
            Lacks::NONE
        };
        let complete = words.next_as("complete=yes or complete=no", |word| {
            match word.strip_prefix("complete=")? {
                "yes" => Some(true),
                "no" => Some(false),
                _ => None,
            }
        })?;
        let events = words.next_as("events=N, the number of events", |word| {
            number(word.strip_prefix("events=")?)
        })?;
        words.end()?;
        Ok(Self {
            page_bytes,
            cpus,
            bbm_level,
            policies,
            lazy,
            lacks,
            complete,
            events,
        })
    }
}

impl fmt::Display for TraceHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            page_bytes,
            cpus,
            bbm_level,
            events,
            ..
        } = self;
        let page = page_bytes >> 10;
        let complete = if self.complete { "yes" } else { "no" };
        write!(
            f,
            "{MAGIC} {VERSION} page={page}k cpus={cpus} bbm={bbm_level} "
        )?;
        if self.policies != Policies::NONE {
            write!(f, "{ALLOWS}{} ", self.policies)?;
        }
        if let Some((first, last)) = self.lazy {
            write!(f, "{LAZY}{first:#x}-{last:#x} ")?;
        }
        if self.lacks != Lacks::NONE {
            write!(f, "{LACKS}{} ", self.lacks)?;
        }
        write!(f, "complete={complete} events={events}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Policy;

    const LINE: &str = "granule-trace 2 page=16k cpus=4 bbm=2 complete=yes events=12";

    #[test]
    fn a_header_is_read_back() {
        let header = TraceHeader::parse(LINE).unwrap();
        assert_eq!(header.to_string(), LINE);
        assert_eq!((header.page_bytes, header.events), (16384, 12));
        for cut in 0..LINE.len() {
            let Some(line) = LINE.get(..cut) else {
                continue;
            };
            // A prefix that only cuts digits off the last number is still a valid line.
            assert!(
                TraceHeader::parse(line).is_err() || cut > LINE.len() - 2,
                "{line}"
            );
        }
    }

    #[test]
    fn policies_stand_before_what_a_recorder_knows_last() {
        let line = LINE.replace("complete", "allows=lazy-unmap complete");
        let header = TraceHeader::parse(&line).unwrap();
        assert!(header.policies.has(Policy::LazyUnmap));
        assert_eq!(header.to_string(), line);
        let bounded = line.replace("complete", "lazy=0x10-0x1f lacks=ttl complete");
        let header = TraceHeader::parse(&bounded).unwrap();
        assert_eq!(
            (header.lazy, header.to_string()),
            (Some((0x10, 0x1f)), bounded.clone())
        );
        assert!(TraceHeader::parse(&bounded.replace("0x1f", "0xf")).is_err());
        let error = TraceHeader::parse(&line.replace("lazy-", "crazy-")).unwrap_err();
        assert_eq!(error.column, 39, "{error}");
    }

    #[test]
    fn a_wrong_header_is_named() {
        for (from, to, column, expected) in [
            ("granule-trace", "granule-rtace", 1, "granule-trace"),
            (" 2 ", " 3 ", 15, "version 1 or 2"),
            ("16k", "8k", 17, "page=4k"),
            ("cpus=4", "cpus=0", 26, "cpus=N"),
            ("bbm=2", "bbm=4", 33, "bbm=N"),
            ("yes", "maybe", 39, "complete=yes"),
            ("events=12", "12", 52, "events=N"),
            ("=12", "=12 x", 61, "the end of the line"),
        ] {
            let error = TraceHeader::parse(&LINE.replace(from, to)).unwrap_err();
            assert_eq!(error.column, column, "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
