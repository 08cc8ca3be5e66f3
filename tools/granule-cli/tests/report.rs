//! `granule report` as a script meets it: the data in the page are those of `granule dump` and `lint`, the
//! same input gives the same bytes, and refusals are one line. How the page looks and behaves in a browser
//! is tested by `cargo xtask test --only report`.

#![allow(clippy::unwrap_used)]

use granule_testing::text::assert_contains;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// No TTBR0, 39 bits and 4K pages in TTBR1.
const REGISTERS: [&str; 8] = [
    "--base",
    "0x40000000",
    "--ttbr1",
    "0x40000000",
    "--tcr",
    "0x280190080",
    "--mair",
    "0x4ff",
];
const BASE: u64 = 0x4000_0000;
const READ: u64 = 0x60_0000_0000_0783;
const WRITE: u64 = 0x60_0000_0000_0703;

/// A root, a table of level 2, a table with 512 pages that are alternately read-only and writable, the last
/// one executable too; a block of device registers.
fn image(folder: &Path) -> String {
    let mut words = vec![0_u64; 3 * 512];
    words[0] = (BASE + 0x1000) | 0b11;
    words[512] = (BASE + 0x2000) | 0b11;
    words[513] = 0x0900_0000 | 0x60_0000_0000_0605;
    for page in 0..512 {
        let bits = if page % 2 == 0 { READ } else { WRITE };
        words[1024 + page] = (0x8000_0000 + page as u64 * 0x1000) | bits;
    }
    words[1535] &= !(1 << 53);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let path = folder.join("image");
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn granule(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_granule"))
        .args(arguments)
        .args(REGISTERS)
        .output()
        .unwrap()
}

#[track_caller]
fn data(output: &Output) -> Value {
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let page = String::from_utf8(output.stdout.clone()).unwrap();
    let (_, after) = page.split_once(r#"id="data">"#).unwrap();
    serde_json::from_str(after.split_once("</script>").unwrap().0).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_slice(&granule(arguments).stdout).unwrap()
}

/// The bytes of the cells by kind of leaf, as totals list them.
fn by_kind(tree: &Value) -> Vec<(u64, bool, u64)> {
    let kinds = tree["kinds"].as_array().unwrap();
    let mut sums = vec![0; kinds.len()];
    for cell in tree["cells"].as_array().unwrap() {
        match cell[3].as_array() {
            Some(parts) => parts.iter().for_each(|part| {
                sums[part[0].as_u64().unwrap() as usize] += part[2].as_u64().unwrap()
            }),
            None => sums[cell[3].as_u64().unwrap() as usize] += cell[1].as_u64().unwrap(),
        }
    }
    let of = |kind: &Value| (kind["bytes"].as_u64().unwrap(), kind["contiguous"] == true);
    let kinds = kinds.iter().map(of).zip(sums);
    kinds
        .map(|((bytes, hint), sum)| (bytes, hint, sum))
        .collect()
}

fn of_totals(totals: &Value) -> Vec<(u64, bool, u64)> {
    let leaves = totals["leaves"].as_array().unwrap().iter();
    leaves
        .map(|it| {
            let number = |key: &str| it[key].as_u64().unwrap();
            (
                number("leaf_bytes"),
                it["contiguous"] == true,
                number("bytes"),
            )
        })
        .collect()
}

#[test]
fn the_page_has_what_dump_and_lint_report() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let dumped = json(&["dump", &image, "--json"]);
    let linted = json(&["lint", &image, "--json"]);
    for detail in ["1", "2", "10", "100", "20000"] {
        let page = data(&granule(&["report", &image, "-o", "-", "--detail", detail]));
        let source = &page["sources"][0];
        let tree = &source["trees"][0];
        assert_eq!(by_kind(tree), of_totals(&dumped["totals"]), "{detail}");
        assert_eq!(source["name"], "image");
        assert_eq!(tree["ranges"], dumped["ranges"].as_array().unwrap().len());
        let cells = tree["cells"].as_array().unwrap().len();
        assert!(cells <= detail.parse().unwrap(), "{cells} {detail}");
        assert_eq!(cells == 513, detail == "20000");
        assert_eq!(tree["window"].is_null(), detail == "20000");
        let (found, expected) = (&source["findings"], &linted["findings"]);
        assert_eq!(found, expected);
        assert!(!found.as_array().unwrap().is_empty());
        // The reach of very many entries is everything.
        let reach = source["totals"]["reach"].as_array().unwrap();
        assert_eq!(reach.last(), Some(&dumped["totals"]["mapped_bytes"]));
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let page = folder.path().join("page.html");
    let page_path = page.to_str().unwrap();
    let arguments = ["report", &image, &image, "--detail", "50", "-o", page_path];
    let output = granule(&arguments);
    assert!(output.status.success() && output.stdout.is_empty());
    let first = std::fs::read(&page).unwrap();
    assert!(granule(&arguments).status.success());
    assert_eq!(first, std::fs::read(&page).unwrap());
}

#[test]
fn foreign_text_stays_text() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let name = "</script><img src=x onerror=alert(1)>\u{202e}";
    let output = granule(&["report", &image, "-o", "-", "--name", name]);
    let page = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(!page.contains("<img") && !page.contains('\u{202e}'));
    let expected = r"</script><img src=x onerror=alert(1)>\u{202e}";
    assert_eq!(data(&output)["sources"][0]["name"], expected);
}

#[test]
fn refusals_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let absent = folder.path().join("absent/page.html");
    let absent = absent.to_str().unwrap();
    for (arguments, expected) in [
        (&["report", "/nonexistent", "-o", "-"][..], "/nonexistent"),
        (&["report", &image, "-o", absent], "absent/page.html: "),
        (
            &["report", &image, "-o", "-", "--name", "a", "--name", "b"],
            "2 names for 1 sources",
        ),
        (&["report", &image, "-o", "-", "--bench", &image], "image: "),
        (
            &["report", &image, "-o", "-", "--bench", "/nonexistent"],
            "/nonexistent: ",
        ),
    ] {
        let output = granule(arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        assert!(output.stdout.is_empty());
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_contains(&printed, expected);
        assert_eq!(printed.lines().count(), 1);
    }
    assert_eq!(granule(&["report", &image]).status.code(), Some(3));
    assert_eq!(granule(&["report", "-o", "-"]).status.code(), Some(3));
}
