//! `user_large_leaves=`: the leaves that a first touch of a program's memory maps. What a limit means, and when a
//! leaf is chosen, does not belong here.

use super::{listed, size};
use granule::space::LargeLeaves;

/// The policy in a value such as `off`, `groups` or `blocks,32M`; `None` if it is not such a value.
pub(super) fn policy(value: &[u8]) -> Option<LargeLeaves> {
    let mut parts = listed(Some(value));
    let named = match parts.next()? {
        b"off" => LargeLeaves::OFF,
        b"groups" => LargeLeaves::GROUPS,
        b"blocks" => LargeLeaves::BLOCKS,
        _ => return None,
    };
    let Some(most) = parts.next() else {
        return Some(named);
    };
    let most_bytes = size(most)?;
    let is_all = parts.next().is_none() && named != LargeLeaves::OFF;
    is_all.then_some(LargeLeaves {
        most_bytes,
        ..named
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_a_name_and_perhaps_a_limit() {
        let with = |policy: LargeLeaves, most_bytes| {
            Some(LargeLeaves {
                most_bytes,
                ..policy
            })
        };
        for (value, expected) in [
            ("off", Some(LargeLeaves::OFF)),
            ("groups", Some(LargeLeaves::GROUPS)),
            ("blocks", Some(LargeLeaves::BLOCKS)),
            ("blocks,32M", with(LargeLeaves::BLOCKS, 32 << 20)),
            ("blocks,1g", with(LargeLeaves::BLOCKS, 1 << 30)),
            ("groups,65536", with(LargeLeaves::GROUPS, 65536)),
            ("groups,64K", with(LargeLeaves::GROUPS, 65536)),
            ("off,2M", None),
            ("blocks,", Some(LargeLeaves::BLOCKS)),
            ("blocks,M", None),
            ("blocks,2M,2M", None),
            ("blocks,18446744073709551615G", None),
            ("on", None),
            ("", None),
        ] {
            assert_eq!(policy(value.as_bytes()), expected, "{value}");
        }
    }
}
