//! Random numbers that are the same for the same seed everywhere, and where the seed is from.

/// xorshift64*.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Seeds that differ in one bit give sequences without likeness.
    pub(crate) const fn new(seed: u64) -> Self {
        let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(if mixed == 0 { 1 } else { mixed })
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Less than `most`, which is at least 1.
    pub(crate) const fn below(&mut self, most: u64) -> u64 {
        (self.next() >> 8) % most
    }

    pub(crate) const fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) const fn either(&mut self) -> bool {
        self.once_in(2)
    }

    pub(crate) const fn maybe(&mut self) -> Option<bool> {
        match self.below(4) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// The number in an environment variable, decimal or hexadecimal.
pub(crate) fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) => Some(number),
        Err(error) => panic!("{name}={text} is not a number: {error}"),
    }
}
