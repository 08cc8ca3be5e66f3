//! The console before the MMU: strings and hexadecimal numbers, no formatting.

use crate::pl011::Pl011;

/// Writes `text`.
pub(super) fn puts(uart: Pl011, text: &[u8]) {
    for byte in text {
        uart.put(*byte);
    }
}

/// Digits of `value`, 16 of them, most significant first.
pub(super) fn hex(value: u64) -> impl Iterator<Item = u8> {
    (0..16u32)
        .rev()
        .map(move |digit| match (value >> (4 * digit)) as u8 & 0xf {
            low @ 0..=9 => b'0' + low,
            high => b'a' + (high - 10),
        })
}

#[cfg(test)]
mod tests {
    #[test]
    fn hexadecimal_is_sixteen_digits() {
        let text: Vec<u8> = super::hex(0x0123_4567_89ab_cdef).collect();
        assert_eq!(text, b"0123456789abcdef");
    }
}
