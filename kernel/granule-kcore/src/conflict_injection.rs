//! The pure part of TLB conflict injection: which stores split a leaf, and the meaning of an entry
//! without its valid bit. The kernel's `selftest` injects.

use granule::arch::Descriptor;
use granule::table::BitChange;

/// Whether `address` is one of the `bytes` from `start`.
pub const fn covers(start: u64, bytes: u64, address: u64) -> bool {
    address.wrapping_sub(start) < bytes
}

/// Whether a store of `new` over `old` replaces a block by a table. At the last level, where the two
/// bits mean something else, valid entries never differ in them.
pub const fn links(old: Descriptor, new: Descriptor) -> bool {
    old.0 & 0b11 == 0b01 && new.0 & 0b11 == 0b11
}

/// Whether `change` removes the contiguous hint from a group that begins with `first`.
pub const fn ungroups(first: Descriptor, change: BitChange) -> bool {
    first.is_valid()
        && first.is_contiguous()
        && change.concerns(first)
        && !change.apply(first).is_contiguous()
}

/// The intended entry, given one that was stored without its valid bit. A present-invalid
/// entry was intended as stored.
pub const fn meant(stored: Descriptor) -> Descriptor {
    if stored.0 == 0 || stored.0 & Descriptor::PRESENT_INVALID != 0 {
        stored
    } else {
        Descriptor(stored.0 | Descriptor::VALID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_covers_its_ends_and_nothing_beside_them() {
        let (start, bytes) = (0xffff_8000_0020_0000, 0x20_0000);
        assert!(covers(start, bytes, start));
        assert!(covers(start, bytes, start + bytes - 1));
        assert!(!covers(start, bytes, start - 1));
        assert!(!covers(start, bytes, start + bytes));
        assert!(!covers(start, 0, start));
        // A range that ends with the address space.
        assert!(covers(u64::MAX - 0xfff, 0x1000, u64::MAX));
        assert!(!covers(u64::MAX - 0xfff, 0x1000, 0));
    }

    #[test]
    fn only_a_table_over_a_block_is_a_split() {
        let all = [0b00, 0b01, 0b10, 0b11].map(|low| Descriptor(0x4000_0000 | low));
        for old in all {
            for new in all {
                let expected = old.0 & 3 == 1 && new.0 & 3 == 3;
                assert_eq!(links(old, new), expected, "{old:?} {new:?}");
            }
        }
    }

    #[test]
    fn a_group_loses_its_hint_only_if_it_had_one_and_the_change_takes_it() {
        let take = BitChange {
            of: BitChange::LEAVES,
            clear: Descriptor::CONTIGUOUS,
            set: 0,
        };
        let other = BitChange {
            set: Descriptor::CONTIGUOUS,
            ..take
        };
        let grouped = Descriptor(0x4000_0000 | Descriptor::CONTIGUOUS | 0b11);
        assert!(ungroups(grouped, take));
        assert!(!ungroups(grouped, other));
        assert!(!ungroups(Descriptor(0x4000_0003), take));
        assert!(!ungroups(present_invalid(grouped), take));
    }

    fn present_invalid(leaf: Descriptor) -> Descriptor {
        Descriptor(leaf.0 & !Descriptor::VALID | Descriptor::PRESENT_INVALID)
    }

    #[test]
    fn a_descriptor_means_the_same_without_its_valid_bit() {
        let block = Descriptor(0x4000_0001 | Descriptor::AP_READ_ONLY);
        for valid in [Descriptor(0x4000_0003), block] {
            assert_eq!(meant(Descriptor(valid.0 & !Descriptor::VALID)), valid);
            assert_eq!(meant(valid), valid);
            let invalid = present_invalid(valid);
            assert_eq!(meant(invalid), invalid);
        }
        assert_eq!(meant(Descriptor::INVALID), Descriptor::INVALID);
    }
}
