//! A set of places in a table, in which the first member is found without a search.

use super::MOST_PROCESSES;

/// Bits of a word.
const BITS: usize = u64::BITS as usize;

/// Places from 0 to [`MOST_PROCESSES`].
#[derive(Clone, Debug)]
pub struct Places {
    /// A bit for each word that has a bit.
    words_in_use: u64,
    /// A bit for each place.
    words: [u64; BITS],
}

const _: () = assert!(MOST_PROCESSES == BITS * BITS);

impl Places {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            words_in_use: 0,
            words: [0; BITS],
        }
    }

    /// Adds a place. One that no table has is not added.
    pub fn insert(&mut self, place: usize) {
        if let Some(word) = self.words.get_mut(place / BITS) {
            *word |= 1 << (place % BITS);
            self.words_in_use |= 1 << (place / BITS);
        }
    }

    /// Removes a place.
    pub fn remove(&mut self, place: usize) {
        if let Some(word) = self.words.get_mut(place / BITS) {
            *word &= !(1 << (place % BITS));
            if *word == 0 {
                self.words_in_use &= !(1 << (place / BITS));
            }
        }
    }

    /// The smallest place.
    #[must_use]
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// Removes the smallest place.
    pub fn take_first(&mut self) -> Option<usize> {
        let first = self.first()?;
        self.remove(first);
        Some(first)
    }

    /// Iterates over the places, the smallest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + use<'_> {
        bits(self.words_in_use).flat_map(|word| {
            let places = bits(self.words.get(word).copied().unwrap_or(0));
            places.map(move |bit| word * BITS + bit)
        })
    }
}

impl Default for Places {
    fn default() -> Self {
        Self::new()
    }
}

/// The numbers of the bits that are set, the lowest first.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_is_a_set_in_order() {
        let (mut places, mut model) = (Places::new(), BTreeSet::new());
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let place = (state >> 33) as usize % MOST_PROCESSES;
            match state >> 60 {
                0..7 => {
                    places.insert(place);
                    model.insert(place);
                }
                7..12 => {
                    places.remove(place);
                    model.remove(&place);
                }
                _ => assert_eq!(places.take_first(), model.pop_first()),
            }
            assert_eq!(places.first(), model.first().copied());
        }
        assert!(places.iter().eq(model.iter().copied()));
        places.insert(MOST_PROCESSES);
        places.remove(MOST_PROCESSES);
        assert_eq!(places.iter().count(), model.len());
        places.insert(MOST_PROCESSES - 1);
        assert_eq!(places.iter().last(), Some(MOST_PROCESSES - 1));
    }
}
