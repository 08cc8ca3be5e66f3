//! Few cases out of many that contain every pair of values that any case has. Pure; the meaning of the values belongs
//! to the matrices.

use std::collections::BTreeSet;

/// A value of a dimension, and one of a later dimension.
pub type Pair<V> = ((usize, V), (usize, V));

/// The pairs of values of a case with these values, one for each dimension.
pub fn pairs<V: Copy + Ord>(values: &[V]) -> BTreeSet<Pair<V>> {
    let with = |first: usize| {
        let later = first + 1..values.len();
        later.map(move |second| ((first, values[first]), (second, values[second])))
    };
    (0..values.len()).flat_map(with).collect()
}

/// A few of the cases that contain every pair of values that occurs in any of them. The greedy choice is the same every
/// time: the first of the best cases, so that the order of the cases decides.
pub fn covering<T: Clone, V: Copy + Ord>(all: &[T], values: impl Fn(&T) -> Vec<V>) -> Vec<T> {
    let all: Vec<_> = all
        .iter()
        .map(|case| (case, pairs(&values(case))))
        .collect();
    let mut missing: BTreeSet<_> = all.iter().flat_map(|(_, pairs)| pairs.clone()).collect();
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let gain = |pairs: &BTreeSet<Pair<V>>| pairs.intersection(&missing).count();
        let Some((case, pairs)) = all.iter().rev().max_by_key(|(_, pairs)| gain(pairs)) else {
            break;
        };
        missing.retain(|pair| !pairs.contains(pair));
        chosen.push((*case).clone());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_that_occurs_is_in_few_cases() {
        // Four dimensions of three values, without the cases whose first two are both 2.
        let values = |case: &usize| -> Vec<usize> {
            (0..4).map(|place| case / 3_usize.pow(place) % 3).collect()
        };
        let all: Vec<usize> = (0..81)
            .filter(|case| !matches!(values(case)[..], [2, 2, ..]))
            .collect();
        let covered = |cases: &[usize]| {
            let each = cases.iter().map(|case| pairs(&values(case)));
            each.flatten().collect::<BTreeSet<_>>()
        };
        let sample = covering(&all, values);
        assert_eq!(covered(&sample), covered(&all));
        // Six pairs of dimensions with nine pairs of values each, but for one.
        assert_eq!(covered(&all).len(), 6 * 9 - 1);
        assert!((9..=12).contains(&sample.len()), "{}", sample.len());
        assert_eq!(sample, covering(&all, values));
        // Without any one of them something is missing.
        assert_ne!(covered(&sample[1..]), covered(&all));
    }

    #[test]
    fn one_dimension_has_no_pairs() {
        assert!(pairs(&[7]).is_empty());
        assert!(covering(&[1, 2], |case| vec![*case]).is_empty());
    }
}
