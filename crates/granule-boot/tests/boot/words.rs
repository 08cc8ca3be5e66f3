//! Splitting the command line.

use granule::arch::PageSize::{K4, K16, K64};
use granule_boot::Text;
use granule_boot::choice::Wish;
use granule_boot::words::{find, init_arguments, page_size, va_bits, words};
use granule_testing::cases::config;
use proptest::prelude::*;

fn split(line: &str) -> Vec<(&str, Option<&str>)> {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    words(line.as_bytes())
        .map(|word| (text(word.key), word.value.map(text)))
        .collect()
}

#[test]
fn words_are_split_as_linux_splits_them() {
    assert_eq!(split(""), []);
    assert_eq!(split(" \t\n "), []);
    assert_eq!(
        split(" quiet  a=1\tb= "),
        [("quiet", None), ("a", Some("1")), ("b", Some(""))]
    );
    assert_eq!(split("a=b=c"), [("a", Some("b=c"))]);
    assert_eq!(split("a=\"b c\" d"), [("a", Some("b c")), ("d", None)]);
    assert_eq!(split("\"a=b c\" d"), [("a", Some("b c")), ("d", None)]);
    assert_eq!(split("\"a b\" c"), [("a b", None), ("c", None)]);
    assert_eq!(
        split("a=\"b c"),
        [("a", Some("b c"))],
        "the end closes a quote"
    );
    assert_eq!(split("\""), [("", None)]);
    assert_eq!(
        split("a=x\"y z\"w"),
        [("a", Some("x\"y z\"w"))],
        "quotes inside stay"
    );
    assert_eq!(
        split("a -- b"),
        [("a", None)],
        "the rest is the first program's"
    );
    assert_eq!(split("a --b"), [("a", None), ("--b", None)]);
    assert_eq!(split("a\0b c"), [("a", None)], "a NUL ends the line");
}

#[test]
fn arguments_of_the_first_program_follow_the_dashes() {
    let arguments = |line: &'static str| -> Vec<&str> {
        init_arguments(line.as_bytes())
            .map(|bytes| std::str::from_utf8(bytes).unwrap())
            .collect()
    };
    assert!(arguments("").is_empty());
    assert!(arguments("a b=c --d").is_empty());
    assert!(arguments("a --").is_empty());
    assert_eq!(arguments("a -- b  c=d\t-- e"), ["b", "c=d", "--", "e"]);
    assert_eq!(arguments("a \"x -- y\" -- \"b c\" d"), ["b c", "d"]);
    assert_eq!(arguments("-- a\0b"), ["a"]);
}

#[test]
fn the_last_one_counts() {
    let line = b"x=1 y=2 x=3 xx=4 x";
    assert_eq!(find(line, b"x="), Some(&b"3"[..]));
    assert_eq!(find(line, b"y="), Some(&b"2"[..]));
    assert_eq!(find(line, b"z="), None);
    assert_eq!(
        find(line, b"x"),
        None,
        "a key is looked up with its equals sign"
    );
    assert_eq!(find(b"a=\"x=9\"", b"x="), None);
}

#[test]
fn page_sizes() {
    let garbled = |text: &str| Wish::Garbled(Text::new(text.as_bytes()));
    for (line, wish) in [
        ("", Wish::Absent),
        ("arm64.pagesize", Wish::Absent),
        ("pagesize=4k", Wish::Absent),
        ("arm64.pagesize=4k", Wish::Wanted(K4)),
        ("quiet arm64.pagesize=16k rodata=on", Wish::Wanted(K16)),
        ("arm64.pagesize=\"64k\"", Wish::Wanted(K64)),
        ("arm64.pagesize=4k arm64.pagesize=64k", Wish::Wanted(K64)),
        ("arm64.pagesize=4k arm64.pagesize=", garbled("")),
        ("arm64.pagesize=4K", garbled("4K")),
        ("arm64.pagesize=4096", garbled("4096")),
        ("arm64.pagesize=4kk", garbled("4kk")),
        ("arm64.pagesize=64k,4k", garbled("64k,4k")),
        ("-- arm64.pagesize=4k", Wish::Absent),
    ] {
        assert_eq!(page_size(line.as_bytes()), wish, "{line}");
    }
}

#[test]
fn va_sizes() {
    let garbled = |text: &str| Wish::Garbled(Text::new(text.as_bytes()));
    for (line, wish) in [
        ("", Wish::Absent),
        ("arm64.vabits=48", Wish::Wanted(48)),
        ("arm64.vabits=052", Wish::Wanted(52)),
        ("arm64.vabits=999", Wish::Wanted(999)),
        ("arm64.vabits=4294967344", garbled("4294967344")),
        ("arm64.vabits=", garbled("")),
        ("arm64.vabits=-48", garbled("-48")),
        ("arm64.vabits=0x30", garbled("0x30")),
        ("arm64.vabits=4\u{e9}", garbled("4\u{e9}")),
    ] {
        assert_eq!(va_bits(line.as_bytes()), wish, "{line}");
    }
}

proptest! {
    #![proptest_config(config(256, 16))]

    #[test]
    fn joined_words_come_apart_again(
        parts in prop::collection::vec(("[a-z.]{1,8}", prop::option::of("[a-z0-9 =]{0,8}")), 0..8),
    ) {
        let line: Vec<_> = parts.iter().map(|(key, value)| match value {
            None => key.clone(),
            Some(value) => format!("{key}=\"{value}\""),
        }).collect();
        let line = line.join("  ");
        let expected: Vec<_> =
            parts.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
        prop_assert_eq!(split(&line), expected);
        for (key, value) in &parts {
            let last = parts.iter().rfind(|(other, value)| other == key && value.is_some());
            let key = format!("{key}=");
            let expected = last.and_then(|(_, value)| value.as_deref()).map(str::as_bytes);
            prop_assert_eq!(find(line.as_bytes(), key.as_bytes()), expected, "{:?}", value);
        }
    }

    #[test]
    fn any_bytes_end(line in prop::collection::vec(
        prop_oneof![Just(b' '), Just(b'"'), Just(b'='), Just(b'-'), Just(0), any::<u8>()],
        0..64,
    )) {
        prop_assert!(words(&line).count() <= line.len());
        let _ = (page_size(&line), va_bits(&line));
    }
}
