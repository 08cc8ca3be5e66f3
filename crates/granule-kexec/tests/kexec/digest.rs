//! Inputs that the digest must distinguish.

use granule_kexec::Digest;
use std::collections::BTreeSet;

fn of(words: &[u64]) -> u64 {
    let mut digest = Digest::new();
    words.iter().for_each(|word| digest.word(*word));
    digest.value()
}

#[test]
fn every_bit_of_every_word_counts() {
    let count = if cfg!(miri) { 4 } else { 20 };
    let words: Vec<u64> = (0..count).map(|at| at * 0x1234_5678_9abc).collect();
    let whole = of(&words);
    let mut seen = BTreeSet::from([whole]);
    for index in 0..words.len() {
        for bit in 0..64 {
            let mut changed = words.clone();
            changed[index] ^= 1 << bit;
            assert!(seen.insert(of(&changed)), "word {index}, bit {bit}");
        }
    }
}

#[test]
fn the_upper_bits_of_two_words_do_not_cancel() {
    // A change that a digest of multiplications alone does not detect.
    let words = [0u64; 6];
    for (first, second) in [(0, 1), (0, 5), (3, 4)] {
        for bit in 56..64 {
            let mut changed = words;
            changed[first] ^= 1 << bit;
            changed[second] ^= 1 << bit;
            assert_ne!(of(&changed), of(&words), "{first}, {second}, bit {bit}");
        }
    }
}

#[test]
fn order_and_length_count() {
    assert_ne!(of(&[1, 2]), of(&[2, 1]));
    let zeros = [0; 8];
    let all: BTreeSet<u64> = (0..=8).map(|count| of(&zeros[..count])).collect();
    assert_eq!(all.len(), 9);
}

#[test]
fn bytes_are_words_in_little_endian_order() {
    let mut digest = Digest::default();
    digest.bytes(&[1, 0, 0, 0, 0, 0, 0, 0, 0xff, 2]);
    assert_eq!(digest.value(), of(&[1, 0x2ff]));
}
