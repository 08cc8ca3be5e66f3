//! Numbers from a fuzzer's bytes; zeros after the last byte.

/// Takes numbers from the front.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Checks the text of an error.
pub(crate) fn one_line(text: &str) {
    assert!(!text.is_empty() && text.lines().count() == 1, "{text:?}");
}

/// Cases of `length` bytes drawn from one seed, for tests that a target is reached.
#[cfg(test)]
pub(crate) fn drawn(cases: usize, length: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut state = 1_u64;
    let mut byte = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005) + 1;
        (state >> 33) as u8
    };
    (0..cases).map(move |_| (0..length).map(|_| byte()).collect())
}
