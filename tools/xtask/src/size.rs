//! `cargo xtask size`: the cost of an image for every page size compared with an image for one size, on
//! disk and in memory, and the code that exists once for each size.
//!
//! Sizes come from the finished files; memory that a boot gives back comes from the boot's record.
//! Types in the symbols' names show which code belongs to a page size.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSymbol, SymbolKind};
use serde::Serialize;

use crate::boot;
use crate::image::{self, Fixed, Image};
use xtask::{drawn, files};

/// The whole report; `--json` prints it.
#[derive(Debug, Serialize)]
struct Sizes {
    schema: u32,
    builds: Vec<Build>,
    /// The additional bytes of the image for all page sizes, compared with each image for one.
    over_fixed: Vec<Over>,
    /// Functions that the image for all sizes has once for each size, by their bytes over the image for 4K.
    per_page_size: Vec<PerSize>,
}

/// One image, booted with one page size.
#[derive(Clone, Debug, Serialize)]
struct Build {
    /// `boot`, or `fixed-` and a size.
    build: String,
    page_size: &'static str,
    image_bytes: u64,
    /// Code.
    code_bytes: u64,
    /// Code in whole pages of the largest page size of the build: its memory.
    text_bytes: u64,
    /// The rest of the image's memory at the end of the boot.
    data_bytes: u64,
    /// The memory given back by then.
    given_back_bytes: u64,
    /// The largest use of the boot CPU's stack during the boot.
    stack_bytes: u64,
}

/// The differences to one fixed build, at the same page size.
#[derive(Debug, Serialize)]
struct Over {
    page_size: &'static str,
    image: Difference,
    code: Difference,
    text: Difference,
    data: Difference,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Difference {
    bytes: i64,
    percent: f64,
}

impl Difference {
    fn of(boot: u64, fixed: u64) -> Self {
        let bytes = boot as i64 - fixed as i64;
        let percent = 100.0 * bytes as f64 / fixed.max(1) as f64;
        Self { bytes, percent }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kib = self.bytes as f64 / 1024.0;
        write!(f, "{kib:+.1} KiB ({:+.1} %)", self.percent)
    }
}

/// A function, with the bytes of each of its instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct PerSize {
    symbol: String,
    #[serde(rename = "4k")]
    k4: u64,
    #[serde(rename = "16k")]
    k16: u64,
    #[serde(rename = "64k")]
    k64: u64,
    /// Its bytes in the image for 4K alone.
    fixed_4k: u64,
    over_fixed_4k: i64,
}

/// The most bytes of the image for all page sizes over that for 4K. Only a commit with a reason of its own raises it.
const MOST_OVER_4K: u64 = 160 << 10;

/// The step of `cargo xtask test`: the files alone.
pub(crate) fn check() -> Result<()> {
    let bytes = |size| image::image(size).map(|image| image.bytes);
    let over = bytes(None)?.saturating_sub(bytes(Some(Fixed::K4))?);
    ensure!(
        over <= MOST_OVER_4K,
        "the image has {over} bytes more than that for 4K, the limit is {MOST_OVER_4K}: `cargo xtask size` lists the \
         functions"
    );
    Ok(())
}

/// Builds all images, boots each, and prints.
pub(crate) fn size(json: bool) -> Result<()> {
    let (mut fixed, mut of_4k) = (Vec::new(), Vec::new());
    for size in Fixed::ALL {
        let image = image::Build::For(Some(size)).build()?;
        fixed.push(measure(&image, Some(size), size)?);
        if size == Fixed::K4 {
            of_4k = functions(&files::read(&image.elf)?)?;
        }
    }
    // Last, so that its ELF file is the one that stays, as after `cargo xtask image`.
    let image = image::Build::For(None).build()?;
    let mut builds = Vec::new();
    for size in Fixed::ALL {
        builds.push(measure(&image, None, size)?);
    }
    let pairs = builds.iter().zip(&fixed);
    let over_fixed = pairs.map(|(boot, fixed)| over(boot, fixed)).collect();
    builds.extend(fixed);
    let per_page_size = per_page_size(&functions(&files::read(&image.elf)?)?, &of_4k);
    ensure!(
        !per_page_size.is_empty(),
        "no symbol of {} names a page size: it must be built with v0 names (.cargo/config.toml)",
        image.elf.display()
    );
    let sizes = Sizes {
        schema: 1,
        builds,
        over_fixed,
        per_page_size,
    };
    if json {
        println!("{}", serde_json::to_string(&sizes)?);
    } else {
        print(&sizes);
    }
    Ok(())
}

/// Boots an image with a page size, and returns its sizes.
fn measure(image: &Image, fixed: Option<Fixed>, size: Fixed) -> Result<Build> {
    let build = fixed.map_or("boot".to_owned(), |size| format!("fixed-{}", size.word()));
    let arguments = [format!("--page-size={}", size.word())];
    let record = boot::boot(&image.path, &arguments)
        .with_context(|| format!("{build} with {} pages", size.word()))?;
    let given_back_bytes = boot::number(&record, "memory.static_bytes_given_back")?;
    let symbols = edges(&files::read(&image.elf)?)?;
    let edge = |name: &str| {
        let address = symbols.get(name).copied();
        address.with_context(|| format!("{} has no symbol {name}", image.elf.display()))
    };
    let text_bytes = edge("__text_end")?;
    Ok(Build {
        build,
        page_size: size.word(),
        image_bytes: image.bytes,
        code_bytes: edge("__code_end")?,
        text_bytes,
        data_bytes: image.memory.saturating_sub(text_bytes + given_back_bytes),
        given_back_bytes,
        stack_bytes: boot::number(&record, "memory.boot_stack_bytes_used")?,
    })
}

/// The linker script's symbols; the image is linked at 0.
fn edges(elf: &[u8]) -> Result<BTreeMap<String, u64>> {
    let file = object::File::parse(elf)?;
    let named = file.symbols().filter_map(|symbol| {
        let name = symbol.name().ok()?;
        Some((name.to_owned(), symbol.address()))
    });
    Ok(named.filter(|(name, _)| name.starts_with("__")).collect())
}

/// Functions, each with its demangled name and its bytes.
fn functions(elf: &[u8]) -> Result<Vec<(String, u64)>> {
    let file = object::File::parse(elf)?;
    let code = file.symbols().filter(|s| s.kind() == SymbolKind::Text);
    let named = code.filter_map(|symbol| {
        let name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
        Some((name, symbol.size()))
    });
    Ok(named.collect())
}

fn over(boot: &Build, fixed: &Build) -> Over {
    Over {
        page_size: boot.page_size,
        image: Difference::of(boot.image_bytes, fixed.image_bytes),
        code: Difference::of(boot.code_bytes, fixed.code_bytes),
        text: Difference::of(boot.text_bytes, fixed.text_bytes),
        data: Difference::of(boot.data_bytes, fixed.data_bytes),
    }
}

/// The types of page sizes, by which instances differ.
const TYPES: [&str; 3] = ["Page4K", "Page16K", "Page64K"];

/// The functions whose names contain one of these types, with the instances of each together; those first that add
/// most to `of_4k`, the functions of the image for 4K.
fn per_page_size(functions: &[(String, u64)], of_4k: &[(String, u64)]) -> Vec<PerSize> {
    let mut all = BTreeMap::<String, PerSize>::new();
    let of_all = functions.iter().map(|function| (function, true));
    let both = of_all.chain(of_4k.iter().map(|function| (function, false)));
    for ((name, bytes), is_of_all) in both {
        let Some(of) = TYPES.iter().position(|page| name.contains(page)) else {
            continue;
        };
        let symbol = short(&name.replace(TYPES[of], "P"));
        let row = all.entry(symbol.clone()).or_default();
        row.symbol = symbol;
        let sum = match (is_of_all, of) {
            (false, _) => &mut row.fixed_4k,
            (_, 0) => &mut row.k4,
            (_, 1) => &mut row.k16,
            _ => &mut row.k64,
        };
        *sum += bytes;
        row.over_fixed_4k = (row.k4 + row.k16 + row.k64) as i64 - row.fixed_4k as i64;
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_key(|row| std::cmp::Reverse(row.over_fixed_4k));
    all
}

/// A name that fits a line: without paths, and without types deep in brackets.
fn short(name: &str) -> String {
    // Of a path the last part is kept; text after a type in brackets belongs to that part.
    let mut plain = String::new();
    let mut parts = name.split("::").peekable();
    while let Some(part) = parts.next() {
        let before = part.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
        match parts.peek() {
            Some(next) if before.len() < part.len() && !next.starts_with('<') => plain += before,
            Some(_) => plain.extend([part, "::"]),
            None => plain += part,
        }
    }
    let mut short = String::new();
    let mut depth = 0;
    for character in plain.chars() {
        depth -= i32::from(character == '>');
        if depth < DEEPEST {
            short.push(character);
        }
        depth += i32::from(character == '<');
        if character == '<' && depth == DEEPEST {
            short.push('…');
        }
    }
    if name.contains("mmu_off::") {
        short.push_str(" (MMU off)");
    }
    short
}

/// Brackets nested this deep are left out.
const DEEPEST: i32 = 6;
/// The rows that are printed for people.
const SHOWN: usize = 40;

fn kib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1024.0)
}

fn print(sizes: &Sizes) {
    let sizes_of_parts = ["Image", "code", "text", "data"];
    let head = [
        &["build", "pages"],
        &sizes_of_parts[..],
        &["given back", "boot stack"],
    ]
    .concat();
    let mut table = drawn::table(2, &head);
    for build in &sizes.builds {
        let numbers = [
            build.image_bytes,
            build.code_bytes,
            build.text_bytes,
            build.data_bytes,
            build.given_back_bytes,
            build.stack_bytes,
        ];
        let mut row = vec![build.build.clone(), build.page_size.to_owned()];
        row.extend(numbers.map(kib));
        table.add_row(row);
    }
    println!(
        "KiB. Image: the file. Code; text: the same in whole pages; data: all else in memory after the boot.\n{table}"
    );

    let mut table = drawn::table(1, &[&["pages"], &sizes_of_parts[..]].concat());
    for over in &sizes.over_fixed {
        let cells = [over.image, over.code, over.text, over.data].map(|it| it.to_string());
        table.add_row([over.page_size.to_owned()].into_iter().chain(cells));
    }
    println!("The image for all page sizes against that for one.\n{table}");

    let what = "instantiated for each page size, bytes";
    let head = [what, "4k", "16k", "64k", "4K alone", "over"];
    let mut table = drawn::table(1, &head);
    let mut sum = PerSize {
        symbol: format!("all {}", sizes.per_page_size.len()),
        ..PerSize::default()
    };
    for row in &sizes.per_page_size {
        sum.k4 += row.k4;
        sum.k16 += row.k16;
        sum.k64 += row.k64;
        sum.fixed_4k += row.fixed_4k;
        sum.over_fixed_4k += row.over_fixed_4k;
    }
    for row in sizes.per_page_size.iter().take(SHOWN).chain([&sum]) {
        let numbers = [row.k4, row.k16, row.k64, row.fixed_4k].map(|number| number.to_string());
        let numbers = numbers.into_iter().chain([row.over_fixed_4k.to_string()]);
        table.add_row([row.symbol.clone()].into_iter().chain(numbers));
    }
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_put_together_by_their_page_size() {
        let parts = "Environment<a::Traced<b::mmu_off::Flat>>";
        let tables = format!("<t::PageTables<p::Page16K, {parts}> as x::Tree>::map");
        assert_eq!(
            short(&tables),
            "<PageTables<Page16K, Environment<Traced<Flat>>> as Tree>::map (MMU off)"
        );
        let functions = [
            ("a::b::<granule::arch::Page4K>::c", 8),
            ("a::b::<granule::arch::Page64K>::c", 12),
            ("a::b::<granule::arch::Page16K>::c", 10),
            ("a::b::<granule::arch::Page4K>::d", 100),
            ("a::other", 1000),
        ]
        .map(|(name, bytes)| (name.to_owned(), bytes));
        let of_4k = functions[3..].to_vec();
        let rows = per_page_size(&functions, &of_4k);
        let numbers: Vec<_> = rows
            .iter()
            .map(|r| [r.k4, r.k16, r.k64, r.fixed_4k])
            .collect();
        assert_eq!(numbers, [[8, 10, 12, 0], [100, 0, 0, 100]]);
        assert_eq!(rows[0].over_fixed_4k, 30);
        assert!(
            rows[0].symbol.ends_with("c") && rows[0].symbol.contains("<P>"),
            "{rows:?}"
        );
    }

    #[test]
    fn differences_are_printed_in_kib_and_percent() {
        let more = Difference::of(300 << 10, 200 << 10);
        assert_eq!(more.to_string(), "+100.0 KiB (+50.0 %)");
        assert_eq!(Difference::of(512, 1024).to_string(), "-0.5 KiB (-50.0 %)");
    }
}
