//! The test that no page size is a constant in code that every page size shares: no name and no number
//! stands for one, except those in [`ALLOWED`], each with its reason.
//!
//! The type system keeps a page size from being assumed by accident (granule::guide), but cannot see a
//! number that somebody writes. Tests may write numbers.

use std::collections::BTreeSet;
use std::path::Path;

use xtask::workspace::root;

/// Finds that are not page sizes, and the places that define page sizes: the file, the finds, and the
/// reason.
const ALLOWED: &[(&str, &[&str], &str)] = &[
    (
        "granule/src/arch/page_size.rs",
        &["4096", "16384", "65536"],
        "where page sizes are said: the three there are, by their bytes",
    ),
    (
        "granule/src/arch/descriptor.rs",
        &["<< 16"],
        "the nT bit of a block",
    ),
    (
        "granule/src/arch/geometry.rs",
        &["<< 12", ">> 12"],
        "bits 15:12 of a descriptor, which hold bits 51:48 of an address in 64K pages",
    ),
    (
        "granule/src/arch/midr.rs",
        &["4095"],
        "the part number in MIDR_EL1",
    ),
    (
        "granule/src/arch/registers.rs",
        &["<< 14", "<< 16", ">> 14", ">> 16"],
        "fields of TCR_EL1 and TCR_EL2",
    ),
    (
        "granule/src/arch/stage2/registers.rs",
        &["<< 14", "<< 16", ">> 14", ">> 16"],
        "fields of VTCR_EL2",
    ),
    ("granule/src/arch/translation.rs", &["<< 12"], "SCTLR.I"),
    ("granule/src/hw/cache.rs", &[">> 16"], "CTR_EL0.DminLine"),
    (
        "granule/src/arch/tlbi.rs",
        &["<< 14", ">> 12"],
        "op0 in an instruction's encoding; a TLBI's operand has VA[55:12] whatever the granule",
    ),
    (
        "granule-boot/src/efi/attributes.rs",
        &["<< 14"],
        "EFI's attribute of memory that is not executed",
    ),
    (
        "granule-boot/src/efi/map.rs",
        &["4 << 10"],
        "the page that EFI's memory map counts in, whatever the kernel's",
    ),
    (
        "granule-boot/src/expand/machine.rs",
        &["4 << 10", "64 << 10"],
        "sizes of a UART's and of a GIC's registers",
    ),
    (
        "granule-boot/src/firmware.rs",
        &["<< 16"],
        "the major number in a version of the SMCCC",
    ),
    (
        "granule-boot/src/machines.rs",
        &["4095"],
        "the part number in MIDR_EL1",
    ),
    (
        "granule-boot/src/words.rs",
        &["PAGE_SIZE_KEY"],
        "the name of the word on the command line",
    ),
    (
        "granule-trace/src/record.rs",
        &["<< 16", ">> 16"],
        "the CPU in a record's first word",
    ),
    (
        "granule-trace/src/system.rs",
        &["<< 14", ">> 14"],
        "op0 in a system register's encoding",
    ),
    (
        "granule-kernel/src/arch/counter.rs",
        &["4096"],
        "rounds of a loop",
    ),
    (
        "granule-kernel/src/arch/cpu.rs",
        &["4095"],
        "PAR_EL1 has PA[51:12] whatever the granule",
    ),
    (
        "granule-kcore/src/syndrome.rs",
        &["65535", ">> 14"],
        "fields of ESR_ELx",
    ),
    (
        "granule-kcore/src/frames/metadata.rs",
        &["65535"],
        "a field of 16 bits",
    ),
    (
        "granule-kcore/src/devicetree/intc/gic.rs",
        &["4096"],
        "bytes of a register frame of the GIC, by its specification",
    ),
    (
        "granule-kernel/src/dev/intc/gic/v2.rs",
        &["65535"],
        "the bits of the sixteen SGIs",
    ),
    (
        "granule-kernel/src/dev/intc/gic/v3.rs",
        &["65536"],
        "where a redistributor's second frame is, by the GIC's specification",
    ),
    (
        "granule-boot/src/efi/system.rs",
        &["4095", "<< 16"],
        "the most entries of a part of Linux's list of reserved memory; a table's length beside its version",
    ),
    (
        "granule-kernel/src/early/head/entry.rs",
        &["65535", ">> 16"],
        "halves of a constant for movz and movk",
    ),
    (
        "granule-kernel/src/early/head/mmu_on.rs",
        &["65535", ">> 16"],
        "halves of a constant for movz and movk",
    ),
    (
        "granule-kernel/src/early/head/secondary.rs",
        &["65535", ">> 16"],
        "halves of a constant for movz and movk",
    ),
    (
        "granule-kernel/src/early/head/run_level.rs",
        &["<< 12"],
        "MDSCR_EL1.TDCC",
    ),
    (
        "granule-kernel/src/kexec/leave.rs",
        &[">> 16"],
        "CTR_EL0.DminLine",
    ),
    (
        "granule-kcore/src/layout.rs",
        &["64 << 10"],
        "slots of the fixmap, by the largest page size, whichever are built",
    ),
    (
        "granule-kernel/src/bench/permissions.rs",
        &["64 << 10"],
        "a length that is measured",
    ),
    (
        "granule-kernel/src/selftest/memory/changes.rs",
        &["4096"],
        "an address that nothing is mapped at",
    ),
    (
        "granule-kernel/src/selftest/memory/counts.rs",
        &["64 << 10"],
        "a length that is counted",
    ),
    (
        "granule-kernel/src/bench/support.rs",
        &[">> 12", ">> 16"],
        "random numbers",
    ),
    (
        "granule-kernel/src/mm/selfcheck.rs",
        &["4096"],
        "addresses that are tried",
    ),
    (
        "granule-kernel/src/handover/parking.rs",
        &["4096"],
        "an alignment must be a number; held to PageSize::MIN beside it",
    ),
    (
        "granule-kernel/src/percpu/stacks.rs",
        &["64 << 10"],
        "bytes of a CPU's stack, whole pages of every size",
    ),
    (
        "granule-kernel/src/trace/early.rs",
        &["4096"],
        "records at most",
    ),
    (
        "granule-kcore/src/uart/imx.rs",
        &["<< 14"],
        "a bit of a UART's register",
    ),
    (
        "granule-kcore/src/trace/entry_code.rs",
        &["<< 14"],
        "op0 in a system register's encoding",
    ),
    (
        "granule-linux-abi/src/abi/file.rs",
        &["16384", "4095", "4096", "<< 12"],
        "Linux's numbers: O_DIRECTORY, device numbers, AT_EMPTY_PATH, PATH_MAX, PIPE_BUF",
    ),
    (
        "granule-linux-abi/src/abi/process.rs",
        &["PR_GET_PAGE_SIZE", "PR_SET_PAGE_SIZE"],
        "the numbers of two prctl",
    ),
    (
        "granule-linux-abi/src/syscall/process.rs",
        &["PR_GET_PAGE_SIZE", "PR_SET_PAGE_SIZE"],
        "the numbers of two prctl",
    ),
    (
        "granule-linux-abi/src/program/page_size.rs",
        &["NT_PAGE_SIZE"],
        "the type of a note",
    ),
    (
        "granule-linux-abi/src/abi/signal.rs",
        &["4096"],
        "Linux's signal frame",
    ),
    (
        "granule-linux-abi/src/files/about.rs",
        &["4096", ">> 12"],
        "st_blksize, which is no page; the kind in a mode",
    ),
    (
        "granule-linux-abi/src/files/pipe.rs",
        &["65536"],
        "what a pipe of Linux's holds",
    ),
    (
        "granule-linux-abi/src/files/file_tree.rs",
        &["16384"],
        "the kind of a directory in a mode",
    ),
    (
        "granule-kernel/src/task/frames.rs",
        &[">> 16"],
        "DminLine in CTR_EL0",
    ),
    (
        "granule-linux-abi/src/syscall/system.rs",
        &["4096"],
        "random bytes between two looks at signals",
    ),
    (
        "granule-kernel/src/sched/registers.rs",
        &["<< 14", "<< 16"],
        "bits of SCTLR_EL1",
    ),
    (
        "granule-kernel/src/sched/stack.rs",
        &["16 << 10"],
        "the size of a stack",
    ),
    (
        "granule-kernel/src/early/head/pe.rs",
        &["4096"],
        "the alignment of the PE file's sections: a page of EFI's",
    ),
    (
        "granule-kernel/src/early/efi/pages.rs",
        &["PAGE_SIZE"],
        "a page of EFI's, 4 KiB whatever the kernel's pages are",
    ),
    (
        "granule-kernel/src/early/efi/held.rs",
        &["PAGE_SIZE"],
        "a page of EFI's, 4 KiB whatever the kernel's pages are",
    ),
    (
        "granule-kernel/src/task/exec.rs",
        &["64 << 10"],
        "the lowest address that programs may map",
    ),
    (
        "granule-kernel/src/task/syscall/tasks.rs",
        &["16384"],
        "CLONE_VFORK",
    ),
];

/// Parts that names of constants must not have.
const NAMES: [&str; 4] = ["PAGE_SIZE", "PAGE_SHIFT", "PAGE_MASK", "PAGE_BYTES"];

/// Bytes of a page, and the bits below it.
const SIZES: [u128; 6] = [4096, 16384, 65536, 4095, 16383, 65535];

/// Shifts that convert between pages and bytes.
const SHIFTS: [u128; 3] = [12, 14, 16];

/// Kibibytes of a page, where code shifts them by 10.
const KIB: [u128; 3] = [4, 16, 64];

/// A file's code without comments, text and tests.
fn code(text: &str) -> String {
    let own = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut code = String::new();
    for line in own.lines() {
        let mut in_text = false;
        let mut before = ' ';
        let mut characters = line.chars().peekable();
        while let Some(character) = characters.next() {
            if !in_text && character == '/' && characters.peek() == Some(&'/') {
                break;
            }
            if character == '"' && before != '\\' && before != '\'' {
                in_text = !in_text;
            }
            code.push(if in_text { ' ' } else { character });
            before = character;
        }
        code.push('\n');
    }
    code
}

/// Words, numbers and shifts, in order.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = if word(first) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("<<") || rest.starts_with(">>") {
            2
        } else {
            first.len_utf8()
        };
        let (token, behind) = rest.split_at(length);
        if !token.trim().is_empty() {
            tokens.push(token.to_owned());
        }
        rest = behind;
    }
    tokens
}

/// A literal's value, in any base and with any type suffix.
fn number(token: &str) -> Option<u128> {
    let token = token.replace('_', "").to_ascii_lowercase();
    let (digits, base) = match token.get(..2) {
        Some("0x") => (&token[2..], 16),
        Some("0b") => (&token[2..], 2),
        Some("0o") => (&token[2..], 8),
        _ => (&token[..], 10),
    };
    if !digits.starts_with(|c: char| c.is_digit(base)) {
        return None;
    }
    // A type suffix ends the digits; it begins with a letter that is no digit of any base.
    let end = digits.find(['u', 'i']).unwrap_or(digits.len());
    u128::from_str_radix(&digits[..end], base).ok()
}

/// The words in `code` that appear to stand for a page size.
fn findings(code: &str) -> BTreeSet<String> {
    let tokens = tokens(code);
    let mut found = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate() {
        let before = |back: usize| at.checked_sub(back).map_or("", |at| tokens[at].as_str());
        if NAMES.iter().any(|name| token.contains(name)) {
            found.insert(token.clone());
        }
        let Some(value) = number(token) else { continue };
        let shift = before(1);
        if SIZES.contains(&value) {
            found.insert(value.to_string());
        } else if matches!(shift, "<<" | ">>") && SHIFTS.contains(&value) {
            found.insert(format!("{shift} {value}"));
        } else if shift == "<<"
            && value == 10
            && let Some(kib) = number(before(2))
            && KIB.contains(&kib)
        {
            found.insert(format!("{kib} << 10"));
        }
    }
    found
}

/// The finds in each file of a crate's sources, tests left out.
fn look(package: &str, found: &mut BTreeSet<(String, String)>) -> usize {
    fn walk(folder: &Path, found: &mut BTreeSet<(String, String)>) -> usize {
        let mut files = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                files += walk(&path, found);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                files += 1;
                let text = std::fs::read_to_string(&path).unwrap();
                let file = path.strip_prefix(root()).unwrap().to_string_lossy();
                let all = findings(&code(&text)).into_iter();
                found.extend(all.map(|one| (file.clone().into_owned(), one)));
            }
        }
        files
    }
    walk(&root().join(package).join("src"), found)
}

#[test]
fn no_page_size_is_a_constant_in_code_that_all_share() {
    let mut found = BTreeSet::new();
    for (package, least) in [
        ("granule", 40),
        ("granule-boot", 10),
        ("granule-kexec", 10),
        ("granule-trace", 4),
        ("granule-recorder", 4),
        ("granule-kcore", 30),
        ("granule-kernel", 50),
        ("granule-linux-abi", 25),
    ] {
        let files = look(package, &mut found);
        assert!(files >= least, "{package} has few files");
    }
    let mut allowed = BTreeSet::new();
    for (file, what, why) in ALLOWED {
        assert!(!why.is_empty());
        for one in *what {
            let entry = ((*file).to_owned(), (*one).to_owned());
            assert!(allowed.insert(entry), "{file}: {one} is allowed twice");
        }
    }
    let new: Vec<_> = found.difference(&allowed).collect();
    assert!(
        new.is_empty(),
        "these may stand for a page size, which is a type (P: Page) or a value (PageSize, \
         Geometry), never a constant (granule::guide); if one is something else, say so in \
         xtask/src/page_constants.rs: {new:#?}"
    );
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(gone.is_empty(), "allowed, and not there: {gone:#?}");
}

#[test]
fn each_form_of_a_page_size_constant_is_found() {
    let found = |text: &str| findings(&code(text)).into_iter().collect::<Vec<_>>();
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
