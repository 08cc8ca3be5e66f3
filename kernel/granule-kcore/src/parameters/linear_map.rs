//! The values of `linear_map=`.

use granule::linear::Strategy;

/// The name of each published strategy, and that of none, for which the linear map's tables come from memory
/// that it already covers.
pub(super) const CHOICES: [(&str, Option<Strategy>); 6] = [
    ("base", Some(Strategy::Base)),
    ("no-cont-remap", Some(Strategy::NoContRemap)),
    ("batch-barriers", Some(Strategy::BatchBarriers)),
    ("no-alloc-remap", Some(Strategy::NoAllocRemap)),
    ("lazy-unmap", Some(Strategy::LazyUnmap)),
    ("direct", None),
];
