//! Dumps of large machines, raw images of several banks, maps of memory, and bad values.

use super::*;

/// The bitmaps of a machine with RAM at 64 TiB have 2 GiB each.
#[test]
fn a_dump_with_memory_at_any_address_takes_little_memory() {
    use granule_testing::dumps::Kdump;
    let mut outputs = Vec::new();
    for base in [1_u64 << 31, 1 << 43, 1 << 46] {
        let (table, level, attributes) = (base, 0x1000, 0x703);
        let page = |at: u64, word: u64| {
            let mut page = vec![0; 4096];
            page[..8].copy_from_slice(&word.to_le_bytes());
            ((table + at) / 4096, (page, 0))
        };
        let tables = [
            page(0, (table + level) | 3),
            page(level, (table + 2 * level) | 3),
            page(2 * level, (table + 3 * level) | 3),
            page(3 * level, table | attributes),
        ];
        let offset = 0xffff_0000_0000_0000_u64.wrapping_sub(base);
        let info = format!(
            "OSRELEASE=6\nPAGESIZE=4096\nSYMBOL(swapper_pg_dir)=ffff000000000000\nNUMBER(VA_BITS)=48\n\
             NUMBER(kimage_voffset)=0x{offset:x}\n"
        );
        let dump = Kdump {
            page_bytes: 4096,
            pages: (base >> 12) + 4,
            stored_alone: true,
            stored: tables.into(),
            vmcoreinfo: info.into_bytes(),
            ..Kdump::default()
        };
        let file = NamedTempFile::new().unwrap();
        dump.write_to(file.as_file()).unwrap();
        let output = Command::new("sh")
            .args([
                "-c",
                "ulimit -v 262144; exec \"$@\"",
                "sh",
                env!("CARGO_BIN_EXE_granule"),
            ])
            .args(["dump", "--explain", "0xffff000000000123"])
            .arg(file.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{base:#x}: {stderr}");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_contains(&stdout, &format!("translated to {:#x}", base + 0x123));
        outputs.push(stdout.lines().count());
    }
    assert!(outputs.iter().all(|lines| *lines == outputs[0]));
}

#[test]
fn raw_images_of_several_banks() {
    let words = words();
    let (low, high) = (file(&words[..512]), file(&words[512..]));
    let at = |file: &NamedTempFile, address: u64| format!("{}@{address:x}", file.path().display());
    let (low, high) = (at(&low, BASE), at(&high, BASE + 0x1000));
    let dump = |sources: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_granule"))
            .arg("dump")
            .args(sources)
            .args(["--ttbr1", "0x40000000", "--tcr", TCR, "--mair", MAIR])
            .output()
            .unwrap()
    };
    let expected = text(&granule("dump", &file(&words), &[]), 0);
    let joined = format!("{high},{}", low.replace('@', "@0x"));
    assert_eq!(text(&dump(&[&low, &high]), 0), expected);
    assert_eq!(text(&dump(&[&joined]), 0), expected);
    for (sources, words) in [
        (&[low.as_str(), low.as_str()][..], "both have 0x40000000"),
        (&[low.as_str(), "/dev/null"], "give each as FILE@ADDRESS"),
        (&["/nonexistent/file@0x40000000"], "/nonexistent/file: "),
        (
            &["/nonexistent/file@4g"],
            "is neither a file nor FILE@ADDRESS",
        ),
        (&["/dev/null"], "/dev/null: the file is empty"),
    ] {
        let output = dump(sources);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), stderr.lines().count()),
            (Some(3), 1),
            "{stderr}"
        );
        assert_contains(&stderr, words);
    }
}

#[test]
fn lint_with_a_map_of_the_memory() {
    let image = file(&words());
    let map = |text: &str| {
        let mut map = NamedTempFile::new().unwrap();
        map.write_all(text.as_bytes()).unwrap();
        granule(
            "lint",
            &image,
            &["--memory-map", map.path().to_str().unwrap()],
        )
    };
    let lines = "40000000-7fffffff : System RAM\n  40000000-400fffff : reserved\n80004000-80004fff : reserved\n";
    let found = text(&map(lines), 1);
    assert_contains(
        &found,
        "warning no-map 0xffffff8000004000+4K kernel: 0x80004000 to 0x80004fff is no-map memory of /proc/iomem",
    );
    assert_eq!(found.lines().count(), 2, "{found}");
    let output = map(&format!("{lines}nonsense\n"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), stderr.lines().count()),
        (Some(2), 1),
        "{stderr}"
    );
    assert_contains(
        &stderr,
        ": line 4: \"nonsense\" is not a line of /proc/iomem",
    );
    for (value, words) in [
        ("/nonexistent/map", "/nonexistent/map: "),
        ("found", "has no device tree of this machine"),
    ] {
        let output = granule("lint", &image, &["--memory-map", value]);
        assert_eq!(output.status.code(), Some(3));
        assert_contains(&String::from_utf8_lossy(&output.stderr), words);
    }
}

/// Whatever option has it, and whoever checks it: the parser, the library or the system.
#[test]
fn a_bad_value_of_5000_characters_is_not_repeated_whole() {
    let image = file(&words());
    let long = "x".repeat(5000);
    let ro = format!("ro,{long}");
    for options in [
        &["--with", ro.as_str()][..],
        &["--vttbr", &long],
        &["--from", &long],
        &["--diff", &format!("gdb:{long}")],
        &["--diff", &long],
        &[&format!("--{long}")],
        &["--explain", &format!("0x{long}")],
        &["--diff", &format!("a@{long}")],
    ] {
        let output = granule("dump", &image, options);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), stderr.lines().count()),
            (Some(3), 1),
            "{stderr}"
        );
        assert!(
            stderr.len() < 1200 && stderr.contains("characters more) ..."),
            "{stderr}"
        );
    }
}
