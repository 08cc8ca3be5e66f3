//! Fault injection into a kexec: `granule.test=kexec:`, words separated by commas.
//!
//! | word | what it does |
//! | --- | --- |
//! | `kernel@ADDRESS`, `initrd@ADDRESS`, `tree@ADDRESS` | forces the segment's destination, whatever is there |
//! | `flip@BIT` | changes that bit of the list once it is complete |
//! | `frees@PAGES` | frees so many pages in each segment's destination while the next kernel is loaded, the kernel's just before the transitional tables are made |
//! | `map@PAGES` | maps so many more pages in the transitional tables when the kernel leaves |
//! | `loosen@1` | makes the list's first page writable when the kernel leaves |
//! | `decay@BYTE` | changes that byte of all that is copied, after the last check |
//! | `stays@CPU` | firmware does not switch that CPU off |
//! | `loud@NUMBER` | that interrupt stays enabled, whatever is written |

use super::handoff_note::NAMES;

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
    /// The interrupt that stays enabled.
    pub loud: Option<u64>,
}

/// Parses the text after `kexec:`; unknown words are skipped.
pub fn read(asked: &[u8]) -> TestWords {
    let mut read = TestWords::default();
    for word in asked.split(|byte| *byte == b',') {
        let mut parts = word.splitn(2, |byte| *byte == b'@');
        let (Some(what), Some(number)) = (parts.next(), parts.next().and_then(number)) else {
            continue;
        };
        match what {
            b"flip" => read.flip = Some(number),
            b"frees" => read.frees = Some(number),
            b"map" => read.map = Some(number),
            b"loosen" => read.loosen = true,
            b"decay" => read.decay = Some(number),
            b"stays" => read.stays = Some(number),
            b"loud" => read.loud = Some(number),
            _ => {}
        }
        for (place, name) in read.places.iter_mut().zip(NAMES) {
            if what == name.as_bytes() {
                *place = Some(number);
            }
        }
    }
    read
}

/// A hexadecimal number with `0x`, otherwise decimal.
fn number(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read_and_nothing_else() {
        assert_eq!(read(b""), TestWords::default());
        let test = read(b"initrd@0x1000,tree@7,flip@9,kernel@x,other@1,tree");
        assert_eq!(test.places, [None, Some(0x1000), Some(7)]);
        assert_eq!(test.flip, Some(9));
        let test = read(b"loosen@1,map@2");
        assert_eq!((test.loosen, test.map, test.flip), (true, Some(2), None));
        let test = read(b"frees@64");
        assert_eq!((test.frees, test.flip), (Some(64), None));
        let test = read(b"decay@4096");
        assert_eq!((test.decay, test.flip), (Some(4096), None));
        let test = read(b"stays@3,loud@27");
        assert_eq!(
            (test.stays, test.loud, test.loosen),
            (Some(3), Some(27), false)
        );
    }
}
