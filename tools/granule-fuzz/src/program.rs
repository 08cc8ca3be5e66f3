//! Targets for programs that somebody runs: ELF files, and scripts that name another program.
//!
//! A case makes a file of mostly sound headers, so that the reader looks beyond its first bytes, for each
//! page size and width of user space. Then it changes bytes of the file or cuts it.

use crate::bytes::Bytes;
use granule::arch::PageSize;
use granule_boot::sizes::SizeSet;
use granule_linux_abi::program::page_size::{Wishes, choose};
use granule_linux_abi::program::{Program, ProgramError, ProgramPlace, read};
use granule_linux_abi::script;

/// Page sizes, each with possible address widths of user space.
const PAGES: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];
const BITS: [u32; 4] = [36, 39, 42, 48];

/// Addresses and sizes near each other, near the page size, and at the ends of user space and of all
/// addresses.
fn number(given: &mut Bytes<'_>, page: u64, end: u64) -> u64 {
    let near = u64::from(given.byte() % 4) * page;
    let base = match given.below(10) {
        0 => 0,
        1 => 0x20_0000,
        2 => 0x1_0000,
        3 => end,
        4 => u64::MAX - page,
        5 => 1 << 32,
        6 => given.word(),
        7 => u64::MAX,
        8 => 64,
        _ => 0x400,
    };
    let inside = u64::from(given.byte());
    base.wrapping_add(near)
        .wrapping_add(inside & 0xf8)
        .wrapping_sub(inside & 7)
}

fn file(given: &mut Bytes<'_>, page: u64, end: u64) -> Vec<u8> {
    let count = given.below(20);
    // One segment differs from a linker's output, or none does, or all.
    let odd = given.below(3 * (count + 1));
    let all_odd = given.below(8) == 0;
    // Some files are linked for smaller pages, though their segments lie far enough from each other.
    let align = if given.below(4) == 0 { 0x1000 } else { page };
    let mut out = vec![0; 64];
    out[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    out[16] = [2, 2, 2, 3, 3, 3, 1, 4][given.below(8)];
    out[18] = if given.byte() == 0 { 62 } else { 183 };
    out[20] = 1;
    let entry = match given.below(4) {
        0 => number(given, page, end),
        _ => 0x20_0000 + u64::from(given.byte() & 0x3c),
    };
    out[24..32].copy_from_slice(&entry.to_le_bytes());
    out[32] = 64;
    out[52] = 64;
    out[54] = 56;
    out[56] = count as u8;
    out[58] = 64;
    for index in 0..count as u64 {
        let kind: u32 = match given.byte() {
            0..200 => 1,
            200..253 => [6, 0x6474_e551, 2, 0][given.below(4)],
            _ => 3,
        };
        let flags = if index == 0 {
            5
        } else {
            u32::from(given.byte() % 8)
        };
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        let sound = !all_odd && index != odd as u64;
        let address = 0x20_0000 + index * 2 * page;
        let words = if sound {
            let bytes = u64::from(given.byte() | 0x40);
            // One behind the other; the file has less than a page of them.
            [0, address, address, bytes, bytes + 8, align]
        } else {
            [(); 6].map(|()| number(given, page, end))
        };
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
    out.resize(out.len().max(0x2200), 0);
    for _ in 0..given.below(8).saturating_sub(4) {
        let at = given.word() as usize % 0x500;
        out[at] = given.byte();
    }
    if given.below(4) == 0 {
        out.truncate(given.word() as usize % out.len());
    }
    out
}

/// Checks every accepted program: it can be loaded as its headers require.
fn check(file: &[u8], place: &ProgramPlace, program: &Program) {
    let mut end = place.addresses.start;
    assert!(!program.segments.is_empty());
    for segment in &program.segments {
        let pages = segment.pages(place.page);
        assert!(segment.start < segment.end, "{segment:x?}");
        assert!(
            end <= pages.start && pages.start < pages.end,
            "{segment:x?}"
        );
        assert!(pages.end <= place.addresses.end, "{segment:x?}");
        let content = file.get(segment.file.clone());
        let room = segment.end - segment.start;
        assert!(
            content.is_some_and(|content| content.len() as u64 <= room),
            "{segment:x?}"
        );
        end = pages.end;
    }
    let begins = program
        .segments
        .iter()
        .find(|segment| segment.execute && (segment.start..segment.end).contains(&program.entry));
    assert!(begins.is_some() && program.entry.is_multiple_of(4));
}

/// Statements about the choice of a page size: it can be had, and is the wish if that can be had.
fn choice(file: &[u8], place: &ProgramPlace, wish: Option<PageSize>) {
    let wishes = Wishes {
        process: wish,
        command_line: None,
    };
    let with = |size: PageSize| read(file, &place.with_pages(size));
    match choose(file, place, SizeSet::ALL, &wishes) {
        Ok(chosen) => {
            assert_eq!(Ok(&chosen.program), with(chosen.size).as_ref());
            let granted = wish.is_some_and(|size| with(size).is_ok());
            assert!(!granted || wish == Some(chosen.size), "{chosen:x?}");
        }
        Err(error) => {
            assert!(PageSize::ALL.iter().all(|size| with(*size).is_err()));
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

/// A file to run, as a program and as a script.
pub(crate) fn program(bytes: &[u8]) {
    let mut given = Bytes(bytes);
    let page = PAGES[given.below(3)];
    let end = 1 << BITS[given.below(4)];
    let place = ProgramPlace {
        page,
        addresses: 64 << 10..end - (9 << 20),
        movable_at: 1 << 32,
    };
    let made = file(&mut given, page, end);
    let wish = PageSize::ALL.get(given.below(4)).copied();
    for file in [&made[..], bytes] {
        choice(file, &place, wish);
        match read(file, &place) {
            Ok(program) => check(file, &place, &program),
            Err(error) => {
                let text = error.to_string();
                assert!(!text.is_empty() && !text.contains('\n'), "{text}");
                let shares_none =
                    !matches!(error, ProgramError::Overlap { page, .. } if page != place.page);
                assert!(shares_none, "{text}");
            }
        }
        if let Some(script) = script::read(file) {
            assert!(!script.interpreter.is_empty());
            assert!(!script.interpreter.iter().any(u8::is_ascii_whitespace));
            assert!(script.argument.is_none_or(|argument| !argument.is_empty()));
            assert!(script.interpreter.len() + script.argument.map_or(0, <[u8]>::len) < 256);
        }
    }
    let named = [b"#!", bytes].concat();
    if let Some(script) = script::read(&named) {
        assert!(!script.interpreter.contains(&0) && !script.interpreter.contains(&b'\n'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reason without its numbers.
    fn kind(error: &ProgramError) -> String {
        let text = format!("{error:?}");
        text.split([' ', '(']).next().unwrap_or_default().to_owned()
    }

    /// The target is useful only if it accepts many files and refuses many late.
    #[test]
    fn programs_of_every_kind_are_made() {
        let (mut accepted, mut reasons) = (0, std::collections::BTreeSet::new());
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..400)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .collect();
            let mut given = Bytes(&bytes);
            let page = PAGES[given.below(3)];
            let end = 1 << BITS[given.below(4)];
            let place = ProgramPlace {
                page,
                addresses: 64 << 10..end - (9 << 20),
                movable_at: 1 << 32,
            };
            match read(&file(&mut given, page, end), &place) {
                Ok(_) => accepted += 1,
                Err(error) => drop(reasons.insert(kind(&error))),
            }
        }
        assert!(accepted > 100, "{accepted} accepted");
        assert_eq!(reasons.len(), 11, "{reasons:?}");
    }
}
