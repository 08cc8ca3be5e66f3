//! What a test makes go wrong with a next kernel: `granule.test=kexec:`, words with commas between them.
//!
//! | word | what it does |
//! | --- | --- |
//! | `kernel@ADDRESS`, `initrd@ADDRESS`, `tree@ADDRESS` | the segment is to be there, whatever is there |
//! | `flip@BIT` | changes that bit of the list once it is complete |
//! | `frees@PAGES` | so many pages where each segment is to be become free while the next kernel is loaded, the kernel's just before the transitional tables are made |
//! | `map@PAGES` | so many more pages are in the transitional tables when it is left |
//! | `loosen@1` | the list's first page may be written when it is left |
//! | `decay@BYTE` | changes that byte of all that is copied, after the last look at anything |
//! | `stays@CPU` | firmware does not switch that CPU off |
//! | `loud@NUMBER` | that interrupt stays enabled, whatever is written |

use super::handoff_note::NAMES;

/// What the words ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TestWords {
    /// Where segments are to be, in the order of [`NAMES`].
    pub places: [Option<u64>; 3],
    /// The bit of the list that changes.
    pub flip: Option<u64>,
    /// Pages of places that become free meanwhile.
    pub frees: Option<u64>,
    /// Pages too many in the transitional tables.
    pub map: Option<u64>,
    /// Whether a page of them is writable that is not to be.
    pub loosen: bool,
    /// A byte of what is copied that changes.
    pub decay: Option<u64>,
    /// A CPU that does not go off.
    pub stays: Option<u64>,
    /// An interrupt that does not fall silent.
    pub loud: Option<u64>,
}

/// Reads what follows `kexec:`; a word that is none is passed over.
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

/// Hexadecimal with `0x`, else decimal.
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
