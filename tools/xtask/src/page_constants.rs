//! The test that no page size is a constant in code that every page size shares: no name and no number
//! stands for one, except those in `page_constants.txt`, each with its reason.
//!
//! The type system keeps a page size from being assumed by accident (granule::guide), but cannot see a
//! number that somebody writes. Tests may write numbers.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::Lit;

use xtask::workspace::{package_dir, root};

/// The finds that are allowed: the file, the finds, and the reason.
const ALLOWED: &str = include_str!("../page_constants.txt");

/// Parts that names of constants must not have.
const NAMES: [&str; 4] = ["PAGE_SIZE", "PAGE_SHIFT", "PAGE_MASK", "PAGE_BYTES"];

/// Bytes of a page, and the bits below it.
const SIZES: [u128; 6] = [4096, 16384, 65536, 4095, 16383, 65535];

/// Shifts that convert between pages and bytes.
const SHIFTS: [u128; 3] = [12, 14, 16];

/// Kibibytes of a page, where code shifts them by 10.
const KIB: [u128; 3] = [4, 16, 64];

/// Adds the words, numbers and operators of a file, in order, up to its tests. The parser leaves
/// out comments. Text in raw strings is assembly.
fn words(tokens: TokenStream, words: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => {
                let before_module =
                    matches!(tokens.peek(), Some(TokenTree::Ident(it)) if it == "mod");
                if before_module && group.to_string().replace(' ', "") == "[cfg(test)]" {
                    return;
                }
                self::words(group.stream(), words);
            }
            TokenTree::Ident(word) => words.push(word.to_string()),
            TokenTree::Punct(one) => words.push(one.to_string()),
            TokenTree::Literal(literal) => match Lit::new(literal.clone()) {
                Lit::Int(number) => words.push(number.base10_digits().to_owned()),
                Lit::Str(text) if literal.to_string().starts_with('r') => {
                    let lines = text.value();
                    let lines = lines.lines().filter_map(|line| line.parse().ok());
                    lines.for_each(|line| self::words(line, words));
                }
                _ => words.push(String::new()),
            },
        }
    }
}

/// The words in code that appear to stand for a page size.
fn findings(code: &str) -> BTreeSet<String> {
    let mut all = Vec::new();
    words(code.parse().unwrap(), &mut all);
    let mut found = BTreeSet::new();
    for (at, word) in all.iter().enumerate() {
        if NAMES.iter().any(|name| word.contains(name)) {
            found.insert(word.clone());
        }
        let Ok(value) = word.parse() else { continue };
        let shift = match &all[at.saturating_sub(2)..at] {
            [a, b] if a == b && ["<", ">"].contains(&a.as_str()) => a.repeat(2),
            _ => String::new(),
        };
        if SIZES.contains(&value) {
            found.insert(word.clone());
        } else if !shift.is_empty() && SHIFTS.contains(&value) {
            found.insert(format!("{shift} {value}"));
        } else if shift == "<<"
            && value == 10
            && let Some(kib) = at.checked_sub(3).and_then(|at| all[at].parse().ok())
            && KIB.contains(&kib)
        {
            found.insert(format!("{kib} << 10"));
        }
    }
    found
}

/// The finds in each file of a crate's sources, tests left out.
fn look(package: &str, found: &mut BTreeSet<(String, String)>) -> usize {
    let mut files = xtask::files::sources(&package_dir(package).join("src")).unwrap();
    files.retain(|path| !path.ends_with("tests.rs") && !path.iter().any(|part| part == "tests"));
    for path in &files {
        let file = path.strip_prefix(root()).unwrap().to_string_lossy();
        let all = findings(&xtask::files::text(path).unwrap()).into_iter();
        found.extend(all.map(|one| (file.clone().into_owned(), one)));
    }
    files.len()
}

#[test]
fn no_page_size_is_a_constant_in_code_that_all_share() {
    let mut found = BTreeSet::new();
    for (package, least) in [
        ("granule", 40),
        ("granule-boot", 10),
        ("granule-kexec", 10),
        ("granule-trace", 4),
        ("granule-kcore", 30),
        ("granule-kernel", 50),
        ("granule-linux-abi", 25),
    ] {
        let files = look(package, &mut found);
        assert!(files >= least, "{package} has few files");
    }
    let mut allowed = BTreeSet::new();
    for line in ALLOWED.lines().filter(|line| !line.starts_with('#')) {
        let parts: Vec<_> = line.splitn(3, ": ").collect();
        let [file, what, _why] = parts[..] else {
            panic!("not a file, finds and a reason: {line}");
        };
        for one in what.split(", ") {
            let entry = (file.to_owned(), one.to_owned());
            assert!(allowed.insert(entry), "{file}: {one} is allowed twice");
        }
    }
    let new: Vec<_> = found.difference(&allowed).collect();
    assert!(
        new.is_empty(),
        "these may stand for a page size, which is a type (P: Page) or a value (PageSize, \
         Geometry), never a constant (granule::guide); if one is something else, say so in \
         tools/xtask/page_constants.txt: {new:#?}"
    );
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(gone.is_empty(), "allowed, and not there: {gone:#?}");
}

#[test]
fn each_form_of_a_page_size_constant_is_found() {
    let found = |text: &str| findings(text).into_iter().collect::<Vec<_>>();
    for (text, what) in [
        ("const PAGE_SIZE: u64 = 1;", "PAGE_SIZE"),
        ("let x = LINUX_PAGE_SHIFT_OF;", "LINUX_PAGE_SHIFT_OF"),
        ("x & !0xfff", "4095"),
        ("x & !0xFFF_u64", "4095"),
        ("[0; 0x1_0000]", "65536"),
        ("[0; 0x1_0000_usize]", "65536"),
        ("f(4096u32)", "4096"),
        ("f(16_384)", "16384"),
        ("f(0b1_0000_0000_0000)", "4096"),
        ("address >> 12", ">> 12"),
        ("1<<12", "<< 12"),
        ("number << 16", "<< 16"),
        ("64 << 10", "64 << 10"),
        ("f('\"', 4096)", "4096"),
        ("asm!(r#\"\nb 0b\nmov x0, #(1 << 12)\n\"#)", "<< 12"),
    ] {
        assert_eq!(found(text), [what], "{text}");
    }
    for text in [
        "// 4096",
        "f(\"4096 PAGE_SIZE\", x)",
        "32 << 10",
        "x << 11",
        "12 + 16",
        "14096",
        "page.size() /* no */ + SIZE_OF_PAGES",
        "f();\n#[cfg(test)]\nmod tests { const PAGE_SIZE: u64 = 4096; }",
    ] {
        assert_eq!(found(text), [] as [String; 0], "{text}");
    }
}
