//! What the command line says of leaving: `granule.kexec=`, words with commas between them, and what
//! `granule.test=kexec:` makes go wrong. Pure.
//!
//! | `granule.test=kexec:` | what it does |
//! | --- | --- |
//! | `kernel@ADDRESS`, `initrd@ADDRESS`, `tree@ADDRESS` | the segment is to be there, whatever is there |
//! | `flip@BIT` | changes that bit of the list once it is complete |

use super::note::NAMES;
use granule::boot::words;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words {
    /// `uncached`: the MMU goes off before anything is copied.
    pub(crate) uncached: bool,
    /// `digest`: digests what this kernel was given, once it is up.
    pub(crate) digest: bool,
    /// Where segments are to be, for tests.
    pub(crate) places: [Option<u64>; 3],
    /// The bit that changes, for tests.
    pub(crate) flip: Option<u64>,
}

/// Reads them; what is not understood is passed over, as all of the command line is.
pub(crate) fn read(line: &[u8]) -> Words {
    let mut read = Words::default();
    let asked = words::find(line, b"granule.kexec=").unwrap_or_default();
    for word in asked.split(|byte| *byte == b',') {
        match word {
            b"uncached" => read.uncached = true,
            b"digest" => read.digest = true,
            _ => {}
        }
    }
    let test = words::find(line, b"granule.test=");
    let test = test.and_then(|test| test.strip_prefix(b"kexec:"));
    for word in test.unwrap_or_default().split(|byte| *byte == b',') {
        let mut parts = word.splitn(2, |byte| *byte == b'@');
        let (Some(what), Some(number)) = (parts.next(), parts.next().and_then(number)) else {
            continue;
        };
        if what == b"flip" {
            read.flip = Some(number);
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
        assert_eq!(read(b"quiet"), Words::default());
        assert_eq!(
            read(b"granule.kexec= granule.test=kexec:"),
            Words::default()
        );
        let both = read(b"granule.kexec=digest,uncached");
        assert!(both.uncached && both.digest);
        let one = read(b"granule.kexec=fast,digest,");
        assert!(!one.uncached && one.digest);
        let test = read(b"granule.test=kexec:initrd@0x1000,tree@7,flip@9,kernel@x,other@1,tree");
        assert_eq!(test.places, [None, Some(0x1000), Some(7)]);
        assert_eq!(test.flip, Some(9));
        // Another test's.
        assert_eq!(read(b"granule.test=flip@9"), Words::default());
    }
}
