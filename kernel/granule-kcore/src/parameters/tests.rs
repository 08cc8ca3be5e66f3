//! Every word is read back, the last one counts, and an unusable word gives one line.

use super::*;
use crate::cpus::fake::Changes;
use granule_boot::words::words;

/// The parsed line, and the problems as text.
fn parse(line: &str) -> (Parameters<'_>, Vec<String>) {
    let mut problems = Vec::new();
    let read = Parameters::parse(line.as_bytes(), |problem| {
        problems.push(problem.to_string());
    });
    (read, problems)
}

/// Parses a line that must have no problem.
fn good(line: &str) -> Parameters<'_> {
    let (read, problems) = parse(line);
    assert!(problems.is_empty(), "{line}: {problems:?}");
    read
}

#[test]
fn without_words_everything_has_its_default() {
    let others =
        "quiet console=ttyAMA0 console=tty0 root=/dev/sda rodata_other=x rodatas2 odat init=/x";
    let read = good(others);
    assert_eq!((read.rodata, read.bbm), (Rodata::On, BbmLevel::Level3));
    assert_eq!((read.strategy, read.barriers), (None, Barriers::Table));
    assert!(!read.debug_pagealloc && read.merges_when_idle && !read.counts_instructions);
    assert!(read.bench.is_none() && read.persist.is_none());
    assert_eq!(read.kexec, KexecOptions::default());
    assert_eq!((read.user_page_size, read.most_areas), (None, 65_530));
    assert_eq!(good("user_max_map_count=200").most_areas, 200);
    assert_eq!(read.init, b"/init");
    assert_eq!(read.init_arguments().count(), 0);
    assert!(!read.errata.repeats_tlbi(false));
}

#[test]
fn every_name_is_read_back() {
    for value in [Rodata::Off, Rodata::NoAlias, Rodata::On, Rodata::Full] {
        let line = format!("quiet rodata={} x", value.name());
        assert_eq!(good(&line).rodata, value);
    }
    for number in 0..4 {
        let level = good(&format!("arm64.bbm={number} x")).bbm;
        assert_eq!(level as u32, number);
    }
    for value in Strategy::ALL {
        let line = format!("linear_map={value}");
        let read = good(&line);
        assert_eq!(read.strategy, Some(value));
        assert_eq!(read.barriers, value.barriers());
    }
    assert_eq!(good("linear_map=direct").strategy, None);
    for value in Barriers::ALL {
        let line = format!("linear_map=base linear_map_barriers={value} x");
        assert_eq!(good(&line).barriers, value);
    }
    assert!(good("debug_pagealloc=on").debug_pagealloc);
    assert!(!good("debug_pagealloc=on debug_pagealloc=off").debug_pagealloc);
    assert!(!good("granule.merge=off").merges_when_idle);
    assert!(good("granule.disk=on").disk && !good("").disk);
    good("earlycon earlycon=pl011,mmio32,0x9000000,115200n8");
    assert!(good("granule.count=instructions").counts_instructions);
    assert_eq!(good("granule.bench=copy").bench, Some(Bench::Copy(None)));
    let bench = Some(Bench::Permissions(Some(70)));
    assert_eq!(good("granule.bench=permissions:70").bench, bench);
    let persist = good("granule.persist=0x4f000000,0x1000").persist;
    assert_eq!(persist, Some(0x4f00_0000..0x4f00_1000));
    let pool = |pages, rate| Some(GuardPool { pages, rate });
    assert_eq!(good("granule.guard=64").guard, pool(64, 100));
    assert_eq!(good("granule.guard=256,1").guard, pool(256, 1));
    let memory = |bytes, start| Some(CrashMemory { bytes, start });
    for (value, expected) in [
        ("256M", memory(256 << 20, None)),
        ("0x10000000", memory(256 << 20, None)),
        ("262144K@1G", memory(256 << 20, Some(1 << 30))),
        ("1g@0x60000000", memory(1 << 30, Some(0x6000_0000))),
    ] {
        assert_eq!(
            good(&format!("crashkernel={value}")).crash_memory,
            expected,
            "{value}"
        );
    }
    assert_eq!(
        good("elfcorehdr=0x5ff00000").core_header,
        Some((0x5ff0_0000, None))
    );
    let header = Some((0x5ff0_0000, Some(65536)));
    assert_eq!(good("elfcorehdr=64K@0x5ff00000").core_header, header);
    for line in [
        "granule.kexec=uncached",
        "granule.kexec=,digest",
        "granule.kexec=digest granule.kexec=digests",
        "x granule.kexec=uncached,digest -- granule.kexec=uncached",
        "granule.kexec=digest",
        "granule.kexec",
    ] {
        let (read, _) = parse(line);
        assert_eq!(wants_digest(line.as_bytes()), read.kexec.digest, "{line}");
    }
    let kexec = good("granule.kexec=digest,uncached").kexec;
    assert!(kexec.digest && kexec.uncached);
    for size in PageSize::ALL {
        let line = format!("user_pagesize=4k user_pagesize={}", size.name());
        assert_eq!(good(&line).user_page_size, Some(size));
    }
    let read = good("rdinit=/bin/sh -- -c \"a b\" rodata=maybe");
    assert_eq!(read.init, b"/bin/sh");
    let arguments: Vec<_> = read.init_arguments().collect();
    assert_eq!(arguments, [&b"-c"[..], b"a b", b"rodata=maybe"]);
    let errata = good("arm64.errata=cortex-a76-1286807").errata;
    assert!(errata.repeats_tlbi(false));
}

#[test]
fn words_that_are_read_before_are_known() {
    good("arm64.pagesize=4k arm64.vabits=48 granule.trace=0x0,0x0");
    let (_, problems) = parse("arm64.pagesize arm64.vabits=");
    let line = "arm64.pagesize: expected a value, arm64.pagesize=VALUE; ignored";
    assert_eq!(problems, [line]);
}

#[test]
fn a_word_that_cannot_be_used_is_reported_in_one_line() {
    let of_itself = [
        "user_pagesize=8k: expected 4k, 16k or 64k; ignored",
        "rodata=maybe: expected off, noalias, on or full; taking on",
        "rodata=: expected off, noalias, on or full; taking on",
        "rodata: expected a value, rodata=VALUE; ignored",
        "earlycon=uart8250,io,0x3f8: expected a UART and the address of its registers, as in \
         pl011,0x9000000 or uart8250,mmio32,0x9000000; ignored",
        "arm64.bbm=4: expected 0, 1, 2 or 3; taking what the CPUs have",
        "arm64.bbm=00: expected 0, 1, 2 or 3; taking what the CPUs have",
        "linear_map=fast: expected base, no-cont-remap, batch-barriers, no-alloc-remap, lazy-unmap \
         or direct; taking direct",
        "linear_map_barriers=entry: expected table, as direct has no slots to close between entries; \
         taking table",
        "debug_pagealloc=1: expected on or off; taking off",
        "user_large_leaves=huge: expected off, groups or blocks, the last two perhaps with the most \
         bytes of a touch as in blocks,2M; taking blocks",
        "user_max_map_count=all: expected a number of areas, such as 65530; taking 65530",
        "maxcpus=all: expected a number of CPUs; ignored",
        "acpi=maybe: expected off, on or force; ignored",
        "granule.merge=never: expected idle or off; taking idle",
        "granule.selfcheck=half: expected off, sample or full; taking full",
        "granule.count=tables: expected instructions; ignored",
        "granule.bench=copy:x: expected permissions or copy, or with `:` and a number; ignored",
        "granule.persist=1: expected START,BYTES as two hexadecimal numbers, such as \
         0x4f000000,0x1000; nothing is kept for the next boot",
        "granule.guard=3: expected PAGES[,RATE]: a power of two from 4 to 256, and one of how many objects, as in \
         64,100; ignored",
        "granule.guard=64,0: expected PAGES[,RATE]: a power of two from 4 to 256, and one of how many objects, as in \
         64,100; ignored",
        "crashkernel=0: expected SIZE[@OFFSET], in bytes or with K, M or G, as in 256M or 256M@0x60000000; there is \
         no memory for a crash kernel",
        "crashkernel=auto: expected SIZE[@OFFSET], in bytes or with K, M or G, as in 256M or 256M@0x60000000; there is \
         no memory for a crash kernel",
        "crashkernel=256M@: expected SIZE[@OFFSET], in bytes or with K, M or G, as in 256M or 256M@0x60000000; there is \
         no memory for a crash kernel",
        "crashkernel=@1G: expected SIZE[@OFFSET], in bytes or with K, M or G, as in 256M or 256M@0x60000000; there is \
         no memory for a crash kernel",
        "crashkernel=1G-:256M: expected SIZE[@OFFSET], in bytes or with K, M or G, as in 256M or 256M@0x60000000; there is \
         no memory for a crash kernel",
        "crashkernel=17179869184G: expected SIZE[@OFFSET], in bytes or with K, M or G, as in 256M or 256M@0x60000000; there is \
         no memory for a crash kernel",
        "crashkernel=0xM: expected SIZE[@OFFSET], in bytes or with K, M or G, as in 256M or 256M@0x60000000; there is \
         no memory for a crash kernel",
        "crashkernel=0x+1: expected SIZE[@OFFSET], in bytes or with K, M or G, as in 256M or 256M@0x60000000; there is \
         no memory for a crash kernel",
        "elfcorehdr=here: expected [SIZE@]ADDRESS, in bytes or with K, M or G, as in 0x5ff00000; ignored",
        "arm64.errata=cortex-a99-1: expected the name of an erratum \
         (crates/granule/src/arch/errata.rs); ignored",
        "rdinit: expected a value, rdinit=VALUE; ignored",
        "granule.kexce: no such word; ignored",
        "arm64.nosve: no such word; ignored",
        "arm64.inject_conflict=2nd: expected the number of a split, from 1; ignored",
        "arm64.fake_cpu=1:colour=2: expected N:FIELD=VALUE[,...] with N from 1 and ID fields such as \
         parange, tgran4, bbm; ignored",
    ];
    let of_itself = of_itself.map(|expected| (expected.split_once(": ").unwrap().0, expected));
    for (line, expected) in of_itself.into_iter().chain([
        (
            "console=ttyAMA0 console=ttyAMA0x console=tty0",
            "console=ttyAMA0x: expected ttyAMA, ttyS, ttyPS or ttymxc and one digit, as in ttyAMA0; ignored",
        ),
        (
            "linear_map=base linear_map_barriers=page",
            "linear_map_barriers=page: expected entry or table; taking entry",
        ),
        (
            "granule.kexec=fast,digest,",
            "granule.kexec=fast: expected uncached, digest, or both with a comma between them; ignored",
        ),
        ("linear_maps=base", "linear_maps: no such word; ignored"),
        ("rodta=off", "rodta: no such word; ignored"),
        ("roadta=off", "roadta: no such word; ignored"),
        ("debug_pagealoc=on", "debug_pagealoc: no such word; ignored"),
        ("earlycom=x", "earlycom: no such word; ignored"),
        ("consolle=ttyAMA0", "consolle: no such word; ignored"),
    ]) {
        let (_, problems) = parse(line);
        assert_eq!(problems, [expected]);
        assert!(expected.is_ascii() && !expected.contains('\n'));
    }
    let (read, _) = parse("granule.kexec=fast,digest,");
    assert!(read.kexec.digest && !read.kexec.uncached);
}

#[test]
fn the_last_one_counts_and_is_the_one_that_is_reported() {
    let read = good("rodata=maybe rodata=off");
    assert_eq!(read.rodata, Rodata::Off);
    let (read, problems) = parse("rodata=off rodata=maybe");
    assert_eq!((read.rodata, problems.len()), (Rodata::On, 1));
}

#[test]
fn words_of_tests_are_all_read() {
    let read = good(
        "granule.test=park granule.test=kexec:map@1 arm64.fake_cpu=2:bbm=1 granule.test=kexec:flip@2",
    );
    let tests: Vec<_> = read.test.tests().collect();
    assert_eq!(tests, [&b"park"[..], b"kexec:map@1", b"kexec:flip@2"]);
    assert!(read.test.asks_for(b"park") && !read.test.asks_for(b"kexec:"));
    assert_eq!(read.test.after(b"kexec:"), Some(&b"flip@2"[..]));
    let kexec = read.test.kexec();
    assert_eq!((kexec.map, kexec.flip), (None, Some(2)));
    assert_eq!(read.test.fake_cpu(1), Changes::NONE);
    assert_ne!(read.test.fake_cpu(2), Changes::NONE);
    assert_eq!(read.test.inject_conflict, None);
    let conflict = good("arm64.inject_conflict=3").test.inject_conflict;
    assert_eq!(conflict.map(core::num::NonZeroU64::get), Some(3));
}

#[test]
fn a_test_that_does_not_exist_is_reported_and_left_out() {
    let expected =
        "expected the name of a test (kernel/granule-kcore/src/parameters/test.rs); ignored";
    let names = "prak||Park|park ing|corrupt-|permissions-stress|kexec";
    for name in names.split('|') {
        let line = format!("granule.test=\"{name}\" granule.test=park");
        let (read, problems) = parse(&line);
        assert_eq!(problems, [format!("granule.test={name}: {expected}")]);
        assert_eq!(read.test.tests().collect::<Vec<_>>(), [b"park"]);
    }
    let (read, problems) = parse("granule.test=kexec:flip@2,filp@3,stays@one");
    assert_eq!(read.test.kexec().flip, Some(2));
    let expected = ["filp@3", "stays@one"].map(|word| {
        let words = crate::kexec::test_words::EXPECTED;
        format!("granule.test=kexec:{word}: expected {words}; ignored")
    });
    assert_eq!(problems, expected);
    good("granule.test=permissions-stress:10:7 granule.test=corrupt-hint");
}

/// The problem that an image without tests reports for these words; this build parses them.
#[test]
fn the_test_image_is_named() {
    let problem = Problem::TestImageOnly(b"granule.test");
    let expected = "granule.test=: known to the test image only; ignored";
    assert_eq!(problem.to_string(), expected);
}

#[test]
fn a_number_is_digits_and_nothing_else() {
    assert_eq!(decimal(b"0020"), Some(20));
    assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
    for garbled in ["", "-1", "+1", "0x2", "1,2", " 1", "18446744073709551616"] {
        assert_eq!(decimal(garbled.as_bytes()), None, "{garbled}");
    }
    let (read, problems) = parse("arm64.inject_conflict=00");
    assert_eq!((read.test.inject_conflict, problems.len()), (None, 1));
}

#[test]
fn each_key_is_listed_once() {
    let all = KEYS.iter().chain(&READ_BEFORE).chain(&OF_TESTS);
    for key in all.clone() {
        assert!(key.ends_with('='), "{key}");
        let same = all.clone().filter(|other| *other == key);
        assert_eq!(same.count(), 1, "{key}");
        assert_eq!(words(format!("{key}x").as_bytes()).count(), 1);
    }
}
