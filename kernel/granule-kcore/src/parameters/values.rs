//! Numbers and lists in the values of words.

/// The parts of a value between its commas.
pub(super) fn listed(value: Option<&[u8]>) -> impl Iterator<Item = &[u8]> {
    let parts = value.unwrap_or_default().split(|byte| *byte == b',');
    parts.filter(|part| !part.is_empty())
}

/// A number of bytes, decimal or behind 0x hexadecimal, with K, M or G behind it or none of them.
pub(super) fn size(text: &[u8]) -> Option<u64> {
    let (shift, digits) = match text.split_last()? {
        (b'K' | b'k', digits) => (10, digits),
        (b'M' | b'm', digits) => (20, digits),
        (b'G' | b'g', digits) => (30, digits),
        _ => (0, text),
    };
    let number = match digits {
        [b'0', b'x' | b'X', hexadecimal @ ..] if hexadecimal.iter().all(u8::is_ascii_hexdigit) => {
            u64::from_str_radix(str::from_utf8(hexadecimal).ok()?, 16).ok()?
        }
        _ => decimal(digits)?,
    };
    number.checked_mul(1 << shift)
}

/// A decimal number without any other character.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then_some(u64::from(byte & 0xf))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}
