//! The kernel's own words on the command line.
//!
//! Those that decide before the MMU is on (`arm64.pagesize=`, `arm64.vabits=`) are the library's.
//! A word that cannot be granted falls back to the default, with a note that says so.

use granule::arch::bbm::BbmLevel;
use granule::linear::{Barriers, Strategy};
use granule_boot::words;

/// What of the linear map is protected, and whether single pages may change later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rodata {
    /// Nothing is read-only in the linear map. The image's own mapping keeps its permissions: no
    /// page is ever writable and executable.
    Off,
    /// The kernel's text and constants and their alias in the linear map are read-only.
    NoAlias,
    /// As `noalias`, and any page's permission can change later.
    On,
    /// The same as `on`.
    Full,
}

impl Rodata {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NoAlias => "noalias",
            Self::On => "on",
            Self::Full => "full",
        }
    }

    /// Whether text and constants are read-only.
    pub const fn protects_image(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Whether single pages of the linear map must be able to change.
    pub const fn changes_pages(self) -> bool {
        matches!(self, Self::On | Self::Full)
    }
}

/// A word whose value is none of those there are.
#[derive(Clone, Copy, Debug)]
pub struct Unknown<'a> {
    /// The word, with its `=`.
    pub key: &'static str,
    /// What was given.
    pub value: &'a [u8],
    /// What there is.
    pub values: &'static str,
    /// What is taken instead.
    pub taken: &'static str,
}

/// `rodata=`; `on` by default.
pub fn rodata(line: &[u8]) -> (Rodata, Option<Unknown<'_>>) {
    const DEFAULT: Rodata = Rodata::On;
    match words::find(line, b"rodata=") {
        None => (DEFAULT, None),
        Some(b"off") => (Rodata::Off, None),
        Some(b"noalias") => (Rodata::NoAlias, None),
        Some(b"on") => (Rodata::On, None),
        Some(b"full") => (Rodata::Full, None),
        Some(value) => {
            let values = "off, noalias, on or full";
            (
                DEFAULT,
                Some(Unknown {
                    key: "rodata=",
                    value,
                    values,
                    taken: DEFAULT.name(),
                }),
            )
        }
    }
}

/// `arm64.bbm=`: no level of FEAT_BBM above this one is used, whatever the CPUs have.
pub fn bbm(line: &[u8]) -> (BbmLevel, Option<Unknown<'_>>) {
    const DEFAULT: BbmLevel = BbmLevel::Level3;
    match words::find(line, b"arm64.bbm=") {
        None | Some(b"3") => (DEFAULT, None),
        Some(b"2") => (BbmLevel::Level2, None),
        Some(b"1") => (BbmLevel::Level1, None),
        Some(b"0") => (BbmLevel::Level0, None),
        Some(value) => {
            let unknown = Unknown {
                key: "arm64.bbm=",
                value,
                values: "0, 1, 2 or 3",
                taken: "what the CPUs have",
            };
            (DEFAULT, Some(unknown))
        }
    }
}

/// `linear_map=`; `direct` by default.
pub fn strategy(line: &[u8]) -> (Strategy, Option<Unknown<'_>>) {
    const DEFAULT: Strategy = Strategy::Direct;
    let Some(value) = words::find(line, b"linear_map=") else {
        return (DEFAULT, None);
    };
    match Strategy::from_name(value) {
        Some(strategy) => (strategy, None),
        None => {
            let unknown = Unknown {
                key: "linear_map=",
                value,
                values: "base, no-cont-remap, batch-barriers, no-alloc-remap, lazy-unmap or direct",
                taken: DEFAULT.name(),
            };
            (DEFAULT, Some(unknown))
        }
    }
}

/// `linear_map_barriers=`; by default those that the strategy was published with.
pub fn barriers(line: &[u8], strategy: Strategy) -> (Barriers, Option<Unknown<'_>>) {
    let default = strategy.barriers();
    let Some(value) = words::find(line, b"linear_map_barriers=") else {
        return (default, None);
    };
    let unknown = |values| Unknown {
        key: "linear_map_barriers=",
        value,
        values,
        taken: default.name(),
    };
    match Barriers::from_name(value) {
        Some(Barriers::Entry) if strategy == Strategy::Direct => {
            let values = "table, as direct has no slots to close between entries";
            (default, Some(unknown(values)))
        }
        Some(barriers) => (barriers, None),
        None => (default, Some(unknown("entry or table"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for value in [Rodata::Off, Rodata::NoAlias, Rodata::On, Rodata::Full] {
            let line = format!("quiet rodata={} x", value.name());
            assert_eq!(rodata(line.as_bytes()).0, value);
        }
        for number in 0..4 {
            let line = format!("arm64.bbm={number} x");
            let (level, unknown) = bbm(line.as_bytes());
            assert_eq!((level.number(), unknown.is_none()), (number, true));
        }
        for value in Strategy::ALL {
            let line = format!("linear_map={}", value.name());
            assert_eq!(strategy(line.as_bytes()).0, value);
        }
        for value in Barriers::ALL {
            let line = format!("linear_map_barriers={} x", value.name());
            let (read, unknown) = barriers(line.as_bytes(), Strategy::Base);
            assert_eq!(read, value);
            assert!(unknown.is_none());
        }
    }

    #[test]
    fn what_is_unknown_is_told_and_falls_back() {
        let (value, unknown) = rodata(b"rodata=maybe");
        assert_eq!(value, Rodata::On);
        assert_eq!(unknown.unwrap().value, b"maybe");
        assert!(strategy(b"linear_map=").1.is_some());
        assert!(strategy(b"").1.is_none());
        for garbled in ["", "4", "-1", "00", "two"] {
            let line = format!("arm64.bbm={garbled}");
            let (level, unknown) = bbm(line.as_bytes());
            assert_eq!(level, BbmLevel::Level3);
            assert_eq!(unknown.unwrap().value, garbled.as_bytes());
        }
        let (value, unknown) = barriers(b"linear_map_barriers=page", Strategy::Base);
        assert_eq!((value, unknown.unwrap().taken), (Barriers::Entry, "entry"));
        let (value, unknown) = barriers(b"linear_map_barriers=entry", Strategy::Direct);
        assert_eq!((value, unknown.is_some()), (Barriers::Table, true));
    }
}
