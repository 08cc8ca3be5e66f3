//! Medians and quartiles.

/// Where the middle half of some values lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) lower: f64,
    pub(crate) median: f64,
    pub(crate) upper: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// `None` when there is no value.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        Some(Self {
            least,
            lower: quantile(&values, 0.25),
            median: quantile(&values, 0.5),
            upper: quantile(&values, 0.75),
            most,
        })
    }
}

/// The value below which `part` of the sorted values lie, on a line between the two next to it.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = part * (sorted.len() - 1) as f64;
    let below = sorted[at.floor() as usize];
    let above = sorted[at.ceil() as usize];
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_of_five_and_of_four() {
        let five = Spread::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(
            five,
            Some(Spread {
                least: 1.0,
                lower: 2.0,
                median: 3.0,
                upper: 4.0,
                most: 5.0,
            })
        );
        let four = Spread::of(vec![4.0, 3.0, 2.0, 1.0]);
        assert_eq!(
            four.map(|s| (s.lower, s.median, s.upper)),
            Some((1.75, 2.5, 3.25))
        );
        assert_eq!(Spread::of(vec![]), None);
    }
}
