//! Target for `granule check` with well-formed traces of absurd machines: tables that lead to each other,
//! registers that change meanwhile, invalidations of anything.

use crate::bytes::Bytes;
use granule_cli::check::{CheckError, CheckOptions, check};
use std::fmt::Write;

/// The pages of tables, stores and maintenance: few, so that they coincide.
const PAGES: u64 = 6;
/// The most lines of a trace. Each may make the model examine the whole tree.
const MOST_LINES: u64 = 48;

/// The address of one of the first descriptors in one of the pages.
fn descriptor_address(bytes: &mut Bytes<'_>) -> u64 {
    let page = 0x1000 * (1 + bytes.below(PAGES as usize) as u64);
    page + 8 * bytes.below(4) as u64
}

/// A descriptor of a table in the pages, of a leaf of any level, or an invalid one, with any attributes.
fn descriptor(bytes: &mut Bytes<'_>) -> u64 {
    let page = 0x1000 * (1 + bytes.below(PAGES as usize) as u64);
    match bytes.below(6) {
        0 => 0,
        1 | 2 => page | 0b11,
        3 => 0x4000_0000 | 0x701 | u64::from(bytes.byte()) << 2,
        4 => page | 0x703 | u64::from(bytes.byte()) << 48,
        _ => bytes.word(),
    }
}

fn line(text: &mut String, bytes: &mut Bytes<'_>) {
    const TLBIS: [&str; 8] = [
        "vmalle1is",
        "vmalle1",
        "vaae1is",
        "vale1is",
        "vae1",
        "aside1is",
        "rvaae1is",
        "rvale1is",
    ];
    const REGISTERS: [(&str, u64); 6] = [
        ("tcr_el1", 0x5_b510_3510),
        ("ttbr1_el1", 0x1000),
        ("ttbr0_el1", 0x2000),
        ("mair_el1", 0xff),
        ("sctlr_el1", 0x1005),
        ("sctlr_el1", 0),
    ];
    let cpu = bytes.below(2);
    // Writing to a string cannot fail.
    let _ = match bytes.below(17) {
        0 | 1 => writeln!(
            text,
            "store cpu{cpu} {:#x} {:#x}",
            descriptor_address(bytes),
            descriptor(bytes)
        ),
        2 => writeln!(
            text,
            "fill cpu{cpu} {:#x} {} {:#x} {:#x}",
            descriptor_address(bytes),
            1 + bytes.below(4),
            descriptor(bytes),
            u64::from(bytes.byte()) << 12
        ),
        3 => writeln!(
            text,
            "update cpu{cpu} {:#x} {} 0x1 {:#x} {:#x}",
            descriptor_address(bytes),
            1 + bytes.below(4),
            1_u64 << bytes.below(64),
            1_u64 << bytes.below(64)
        ),
        4 | 5 => {
            let (name, usual) = REGISTERS[bytes.below(REGISTERS.len())];
            let value = if bytes.below(4) == 0 {
                bytes.word()
            } else {
                usual
            };
            writeln!(text, "msr cpu{cpu} {name} {value:#x}")
        }
        6 => writeln!(
            text,
            "dsb cpu{cpu} {}",
            ["ish", "ishst", "nsh", "sy"][bytes.below(4)]
        ),
        7 => writeln!(text, "isb cpu{cpu}"),
        8 | 9 => {
            let name = TLBIS[bytes.below(TLBIS.len())];
            let operand = if bytes.below(2) == 0 { bytes.word() } else { 0 };
            if name.starts_with("vmalle1") {
                writeln!(text, "tlbi cpu{cpu} {name}")
            } else {
                writeln!(text, "tlbi cpu{cpu} {name} {operand:#x}")
            }
        }
        10 => writeln!(text, "obtain cpu{cpu} 0x1000 {:#x}", 0x1000 * PAGES),
        11 => {
            let page = 0x1000 * (1 + bytes.below(PAGES as usize));
            writeln!(text, "free cpu{cpu} {page:#x} 0x1000")
        }
        12 => writeln!(
            text,
            "dc cpu{cpu} {} 0x1000 {:#x}",
            ["cvac", "civac", "ivac", "cvau"][bytes.below(4)],
            1 + (bytes.word() >> 13)
        ),
        13 => {
            let asid = ["", " 0", " 1"][bytes.below(3)];
            writeln!(
                text,
                "assume-visible cpu{cpu} {:#x} {:#x}{asid}",
                bytes.word() & !0xfff,
                1 + (bytes.word() >> 32)
            )
        }
        14 => writeln!(text, "sync cpu{cpu}"),
        15 => writeln!(
            text,
            "found cpu{cpu} {:#x} {:#x}",
            descriptor_address(bytes),
            descriptor(bytes)
        ),
        _ => writeln!(
            text,
            "{} cpu{cpu} {:#x} 0x40",
            ["data", "code"][bytes.below(2)],
            0x1000 * bytes.below(8)
        ),
    };
}

/// A well-formed trace is judged, or refused with a place. The result is the same each time, and the
/// findings do not depend on the number that is listed.
pub(crate) fn trace_replay(input: &[u8]) {
    let mut bytes = Bytes(input);
    let strict = bytes.below(2) == 1;
    let level = bytes.below(4);
    let mut body = String::new();
    let mut lines = 0;
    while !bytes.is_empty() && lines < MOST_LINES {
        line(&mut body, &mut bytes);
        lines += 1;
    }
    let text =
        format!("granule-trace 2 page=4k cpus=2 bbm={level} complete=yes events={lines}\n{body}");
    let judge = |most_violations| {
        let options = CheckOptions {
            strict,
            most_violations,
            ..CheckOptions::STRICT
        };
        match check(text.as_bytes(), &options, &mut |_| ()) {
            Ok(checked) => {
                assert!(
                    checked.findings.len() as u64 <= checked.violations,
                    "{text}"
                );
                Ok(checked.violations)
            }
            Err(CheckError::Read(error)) => {
                panic!("a line that is well formed is refused: {error}\n{text}")
            }
            Err(error) => Err(error.to_string()),
        }
    };
    let all = judge(100);
    assert_eq!(judge(100), all, "{text}");
    assert_eq!(judge(1), all, "{text}");
}
