//! Fault injection into a kexec: `granule.test=kexec:`, words separated by commas.
//!
//! | word | what it does |
//! | --- | --- |
//! | `kernel@ADDRESS`, `initrd@ADDRESS`, `tree@ADDRESS` | forces the segment's destination, whatever is there |
//! | `flip@BIT` | changes that bit of the list once it is complete |
//! | `frees@PAGES` | frees so many pages in each destination during the load, the kernel's right before the tables are made |
//! | `map@PAGES` | maps so many more pages in the transitional tables when the kernel leaves |
//! | `loosen@1` | makes the list's first page writable when the kernel leaves |
//! | `decay@BYTE` | changes that byte of all that is copied, after the last check |
//! | `stays@CPU` | firmware does not switch that CPU off |
//! | `left@1` | leaves the PMU and a timer on |
//! | `loud@NUMBER` | that interrupt stays enabled, whatever is written |

use super::handoff_note::NAMES;
use crate::parameters::test::number;

/// The parsed words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TestWords {
    /// Forced destinations, in the order of [`NAMES`].
    pub places: [Option<u64>; 3],
    /// The bit of the list to change.
    pub flip: Option<u64>,
    /// Pages of the destinations to free.
    pub frees: Option<u64>,
    /// Surplus pages in the transitional tables.
    pub map: Option<u64>,
    /// Whether a read-only page is made writable.
    pub loosen: bool,
    /// The copied byte to change.
    pub decay: Option<u64>,
    /// The CPU that does not go off.
    pub stays: Option<u64>,
    /// Whether the CPU's own devices are left on.
    pub left: bool,
    /// The interrupt that stays enabled.
    pub loud: Option<u64>,
}

/// The valid words.
pub const EXPECTED: &str = "kernel, initrd, tree, flip, frees, map, loosen, decay, stays, left or loud, with `@` and a number";

/// Parses the text after `kexec:`; `bad` is called for each word that is ignored.
pub fn read<'a>(words: &'a [u8], mut bad: impl FnMut(&'a [u8])) -> TestWords {
    let mut read = TestWords::default();
    for word in words.split(|byte| *byte == b',') {
        if read.take(word).is_none() {
            bad(word);
        }
    }
    read
}

impl TestWords {
    /// Parses one word; `None` if it is none of the table's.
    fn take(&mut self, word: &[u8]) -> Option<()> {
        let mut parts = word.splitn(2, |byte| *byte == b'@');
        let (what, number) = (parts.next()?, number(parts.next()?)?);
        match what {
            b"flip" => self.flip = Some(number),
            b"frees" => self.frees = Some(number),
            b"map" => self.map = Some(number),
            b"loosen" => self.loosen = true,
            b"decay" => self.decay = Some(number),
            b"stays" => self.stays = Some(number),
            b"left" => self.left = true,
            b"loud" => self.loud = Some(number),
            _ => {
                let mut places = self.places.iter_mut().zip(NAMES);
                let (place, _) = places.find(|(_, name)| name.as_bytes() == what)?;
                *place = Some(number);
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words that are read, and those that are not.
    fn parse(text: &str) -> (TestWords, Vec<&str>) {
        let mut bad = Vec::new();
        let words = read(text.as_bytes(), |word| {
            bad.push(str::from_utf8(word).unwrap());
        });
        (words, bad)
    }

    fn good(text: &str) -> TestWords {
        let (words, bad) = parse(text);
        assert!(bad.is_empty(), "{bad:?}");
        words
    }

    #[test]
    fn each_word_sets_its_field_and_no_other() {
        let places = |kernel, initrd, tree| TestWords {
            places: [kernel, initrd, tree],
            ..TestWords::default()
        };
        assert_eq!(good("kernel@9"), places(Some(9), None, None));
        assert_eq!(
            good("initrd@0x1000,tree@7"),
            places(None, Some(0x1000), Some(7))
        );
        type Set = fn(&mut TestWords);
        let sets: [(&str, Set); 8] = [
            ("flip@9", |words| words.flip = Some(9)),
            ("frees@64", |words| words.frees = Some(64)),
            ("map@2", |words| words.map = Some(2)),
            ("loosen@1", |words| words.loosen = true),
            ("decay@4096", |words| words.decay = Some(4096)),
            ("stays@3", |words| words.stays = Some(3)),
            ("left@1", |words| words.left = true),
            ("loud@27", |words| words.loud = Some(27)),
        ];
        for (word, set) in sets {
            let mut expected = TestWords::default();
            set(&mut expected);
            assert_eq!(good(word), expected);
        }
    }

    #[test]
    fn each_word_that_is_not_understood_is_reported() {
        assert_eq!(parse(""), (TestWords::default(), vec![""]));
        let (test, bad) = parse("kernel@x,other@1,tree,tree@7,flip@,@1");
        assert_eq!(test.places, [None, None, Some(7)]);
        assert_eq!(bad, ["kernel@x", "other@1", "tree", "flip@", "@1"]);
        assert_eq!(test.flip, None);
    }

    #[test]
    fn every_word_that_is_expected_is_read() {
        let (words, _) = EXPECTED.split_once(", with").unwrap();
        for word in words.split([',', ' ']).filter(|word| !word.is_empty()) {
            if word != "or" {
                assert_ne!(good(&format!("{word}@1")), TestWords::default(), "{word}");
            }
        }
    }
}
