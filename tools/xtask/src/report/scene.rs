//! Handwritten tables for the test of the page, as raw images, and the expected elements of the
//! page. One source has a hostile name.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

const BASE: u64 = 0x4000_0000;
/// Pages: read-only, writable, text, and writable text.
const READ: u64 = 0x60_0000_0000_0783;
const WRITE: u64 = 0x60_0000_0000_0703;
const TEXT: u64 = 0x40_0000_0000_0783;
const BOTH: u64 = 0x40_0000_0000_0703;
const CONTIGUOUS: u64 = 1 << 52;
/// A block of device registers.
const DEVICE: u64 = 0x60_0000_0000_0605;
/// No TTBR0, 39 bits and 4K pages in TTBR1.
const REGISTERS: &str = "--base 0x40000000 --ttbr1 0x40000000 --tcr 0x280190080 --mair 0x4ff";
const HOSTILE: &str = "</script><img src=x onerror=errors.push(1)>";
const DETAIL: &str = "700";

/// A root of level 1, a table of level 2, and tables full of pages, the `n`th of them with `bits(n)`.
fn image(tables: u64, bits: impl Fn(u64) -> u64) -> Vec<u8> {
    let mut words = vec![0; 512 * (2 + tables as usize)];
    words[0] = (BASE + 0x1000) | 0b11;
    for table in 0..tables {
        words[512 + table as usize] = (BASE + 0x2000 + table * 0x1000) | 0b11;
    }
    // Device registers in a block of 2 MiB, RAM in blocks of 1 GiB at the end of the half.
    words[512 + 300] = 0x0900_0000 | DEVICE;
    words[510] = 0x1_0000_0000 | (WRITE & !0b10);
    words[511] = 0x1_4000_0000 | (WRITE & !0b10);
    for page in 0..tables * 512 {
        let bits = bits(page);
        if bits != 0 {
            words[1024 + page as usize] = (0x8000_0000 + page * 0x1000) | bits;
        }
    }
    words
        .iter()
        .flat_map(|word: &u64| word.to_le_bytes())
        .collect()
}

/// Writes the files, and returns the arguments of `granule report`.
pub(super) fn write(folder: &Path) -> Result<Vec<String>> {
    // In sixteens, the first ones contiguous, with a hole and a page that is writable and executable.
    let few = image(1, |page| match page {
        0..64 => READ | CONTIGUOUS,
        64..128 => WRITE | CONTIGUOUS,
        200..240 => 0,
        300 => BOTH,
        _ if page / 16 % 3 == 0 => TEXT,
        _ if page / 16 % 3 == 1 => READ,
        _ => WRITE,
    });
    // A draw that no range outlives for long: far more of them than the page has cells.
    let many = image(40, |page| {
        let draw = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59;
        [READ, WRITE, TEXT, 0][(draw % 4) as usize]
    });
    fs::write(folder.join("few.bin"), few)?;
    fs::write(folder.join("many.bin"), many)?;
    for (name, instructions, tlbi) in [("old", 1000, 8), ("new", 400, 4)] {
        let row = |strategy: &str, by: u64| {
            json!({
                "page_size": 4096, "memory": 1_u64 << 32, "rodata": "on", "strategy": strategy, "barriers": "table",
                "linear_map": { "instructions": instructions * by, "tlbi": tlbi * by },
            })
        };
        let object = json!({ "schema": 1, "cells": 2, "rows": [row("base", 1), row("direct", 2)] });
        fs::write(folder.join(format!("{name}.json")), object.to_string())?;
    }
    let file = |name: &str| folder.join(name).display().to_string();
    let mut arguments = vec![file("few.bin"), file("many.bin")];
    for (option, value) in [
        ("--bench", &*file("old.json")),
        ("--bench", &*file("new.json")),
        ("--name", HOSTILE),
        ("--name", "many"),
        ("--detail", DETAIL),
    ] {
        arguments.extend([option.to_owned(), value.to_owned()]);
    }
    arguments.extend(REGISTERS.split(' ').map(str::to_owned));
    Ok(arguments)
}

/// The expected elements of the page; some come from its data.
pub(super) fn expected(data: &Value) -> Value {
    let sources = data["sources"].as_array().into_iter().flatten();
    let ranges: Vec<_> = sources
        .clone()
        .map(|it| &it["trees"][0]["ranges"])
        .collect();
    let findings: Vec<_> = sources
        .filter_map(|it| it["findings"].as_array())
        .flatten()
        .collect();
    let errors = findings
        .iter()
        .filter(|it| it["severity"] == "error")
        .count();
    json!({
        "names": [HOSTILE, "many"],
        "ranges": ranges,
        "findings": findings.len(),
        "errors": errors,
        "bench_rows": 2,
        "first_address": "0xffffff8000000000",
        "device": "0xffffff8025812345",
        "legend_leaf": ["4K page", "4K page, contiguous", "2M block", "1G block", "finding"],
        "legend_access": ["r-- loads", "r-x loads, executes", "rw- loads, stores", "rwx writable and executable", "finding"],
    })
}
