//! Reads and writes sizes and addresses in the form that people use.
//!
//! A size has a unit (`4G`, `512M`): QEMU reads a bare number as mebibytes, most programs read it
//! as bytes, and a wrong guess boots a machine with a millionth of the RAM. Limits on sizes are not
//! checked here.

const UNITS: [(char, u32); 6] = [
    ('B', 0),
    ('K', 10),
    ('M', 20),
    ('G', 30),
    ('T', 40),
    ('P', 50),
];

/// Reads a size such as `4G`, `512M` or `64KiB` into bytes.
/// Fails with one line that names the text, what is wrong with it and what to write.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong =
        |what: &str| format!("{text:?} {what}; write a number and a unit: 512M, 4G, 512G, 1T");
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    if digits.is_empty() {
        return Err(wrong("does not start with a whole number"));
    }
    if unit.is_empty() {
        return Err(wrong("has no unit"));
    }
    let upper = unit.to_ascii_uppercase();
    let letter = match upper.as_bytes() {
        [letter] => char::from(*letter),
        [letter, b'B'] | [letter, b'I', b'B'] if *letter != b'B' => char::from(*letter),
        _ => {
            return Err(wrong(&format!(
                "has the unit {unit:?}, which is not one of B, K, M, G, T, P"
            )));
        }
    };
    let Some(&(_, shift)) = UNITS.iter().find(|(name, _)| *name == letter) else {
        return Err(wrong(&format!(
            "has the unit {unit:?}, which is not one of B, K, M, G, T, P"
        )));
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| wrong("is more than 64 bits can count"))
}

/// Reads an address: hexadecimal with `0x`, or a size such as `5G`.
/// Fails with one line that names the text, what is wrong with it and what to write.
pub fn parse_address(text: &str) -> Result<u64, String> {
    let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) else {
        return parse_size(text)
            .map_err(|_| format!("{text:?} is not an address; write it like 0x80000000 (or 2G)"));
    };
    let digits: String = hex.chars().filter(|&c| c != '_').collect();
    // from_str_radix accepts a sign, but an address has none.
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err(format!(
            "{text:?} is not a hexadecimal address; write it like 0x80000000"
        ));
    }
    u64::from_str_radix(&digits, 16).map_err(|_| {
        format!("{text:?} does not fit into 64 bits; an address has at most 16 digits")
    })
}

/// Writes bytes in the largest unit that divides them: `4G`, `64K`, `1000B`.
pub fn show_size(bytes: u64) -> String {
    for (name, shift) in UNITS.iter().rev() {
        if bytes != 0 && bytes.trailing_zeros() >= *shift {
            return format!("{}{name}", bytes >> shift);
        }
    }
    "0B".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::text::assert_contains;

    #[test]
    fn sizes_with_each_unit_and_spelling() {
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        assert_eq!(parse_size("512G"), Ok(512 << 30));
        assert_eq!(parse_size("512M"), Ok(512 << 20));
        assert_eq!(parse_size("64k"), Ok(64 << 10));
        assert_eq!(parse_size("64KiB"), Ok(64 << 10));
        assert_eq!(parse_size("1TB"), Ok(1 << 40));
        assert_eq!(parse_size("0M"), Ok(0));
        assert_eq!(parse_size("1000B"), Ok(1000));
        assert_eq!(parse_size("0b"), Ok(0));
        assert!(parse_size("1BB").is_err());
    }

    #[test]
    fn a_bad_size_is_refused_with_what_is_wrong_and_what_to_write() {
        for (text, what) in [
            ("4096", "no unit"),
            ("", "whole number"),
            ("G", "whole number"),
            ("-4G", "whole number"),
            ("4.5G", "unit \".5G\""),
            ("4X", "unit \"X\""),
            ("4GG", "unit \"GG\""),
            ("4 G", "unit \" G\""),
            ("4Gib4", "unit \"Gib4\""),
            ("99999999999999999999G", "64 bits"),
            ("99999999999P", "64 bits"),
        ] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(what), "{text:?}: {error}");
            assert_contains(&error, "512M");
            assert_contains(&error, &format!("{text:?}"));
        }
    }

    #[test]
    fn addresses_in_hex_or_as_a_size() {
        assert_eq!(parse_address("0x4020_0000"), Ok(0x4020_0000));
        assert_eq!(parse_address("0X140000000"), Ok(0x1_4000_0000));
        assert_eq!(parse_address("5G"), Ok(5 << 30));
        for bad in ["", "0x", "0x+1", "0xzz", "1234", "0x1_0000_0000_0000_0000"] {
            assert!(
                parse_address(bad).unwrap_err().contains("0x80000000")
                    || parse_address(bad).unwrap_err().contains("16 digits"),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_shown_size_reads_back() {
        for bytes in [
            4096,
            64 << 10,
            512 << 20,
            5 << 30,
            1 << 40,
            (1 << 30) + (1 << 20),
        ] {
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }
        assert_eq!(show_size(1000), "1000B");
        assert_eq!(show_size(0), "0B");
    }
}
