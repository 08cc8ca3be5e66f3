//! The load options of an EFI image as the kernel's command line: UTF-16 becomes UTF-8.

/// Bytes that hold the command line of `options` bytes of load options.
#[must_use]
pub const fn most_bytes(options: usize) -> usize {
    // A unit of two bytes becomes three at most; a pair of them becomes four.
    (options / 2).saturating_mul(3)
}

/// Writes the command line to `into` and returns its length. It ends at a NUL or at the end of the options,
/// and nothing else is left out. Half a surrogate pair becomes U+FFFD. `None` if `into` is too small.
pub fn command_line(options: &[u8], into: &mut [u8]) -> Option<usize> {
    let (units, _) = options.as_chunks::<2>();
    let units = units.iter().map(|unit| u16::from_le_bytes(*unit));
    let mut length = 0_usize;
    for letter in char::decode_utf16(units.take_while(|unit| *unit != 0)) {
        let mut bytes = [0; 4];
        let letter = letter.unwrap_or(char::REPLACEMENT_CHARACTER);
        let letter = letter.encode_utf8(&mut bytes).as_bytes();
        let end = length.checked_add(letter.len())?;
        let to = into.get_mut(length..end)?;
        for (to, from) in to.iter_mut().zip(letter) {
            *to = *from;
        }
        length = end;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn utf16(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    fn read(options: &[u8]) -> Vec<u8> {
        let mut into = vec![0xa5; most_bytes(options.len())];
        let length = command_line(options, &mut into).unwrap();
        into.truncate(length);
        into
    }

    #[test]
    fn it_ends_at_a_nul_and_loses_nothing_else() {
        assert_eq!(read(&utf16("  a=1  b=\"2 3\" ")), b"  a=1  b=\"2 3\" ");
        assert_eq!(read(&utf16("before\0after")), b"before");
        assert_eq!(read(&utf16("\0")), b"");
        assert_eq!(read(&[]), b"");
        // Half a unit at the end is none.
        assert_eq!(read(&[b'a', 0, b'b']), b"a");
        assert_eq!(read(&utf16("ü€𝄞")), "ü€𝄞".as_bytes());
        assert_eq!(read(&[0, 0xd8, b'x', 0]), "\u{fffd}x".as_bytes());
        assert_eq!(command_line(&utf16("€"), &mut [0; 2]), None);
    }

    proptest! {
        #[test]
        fn any_text_comes_through_and_any_bytes_are_text(text in "[^\0]*", bytes: Vec<u8>) {
            prop_assert_eq!(read(&utf16(&text)), text.as_bytes());
            prop_assert!(String::from_utf8(read(&bytes)).is_ok());
        }
    }
}
