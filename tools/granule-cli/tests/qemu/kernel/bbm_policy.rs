//! The policy for splitting live blocks on these CPUs, and the leaves of the linear map that
//! follow.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Request, Rodata};
use granule_testing::text::assert_ends_with;

use crate::booted::Booted;
use crate::hooked::test_image;
use crate::kernel::machine::{GIB, IMAGE, MIB, RAM, ok, sized};
use crate::kernel::reference::{Reference, range};
use crate::kernel::trees::Crafted;

const END: u64 = RAM + 4 * GIB;

/// QEMU's `max` reports level 2; as a CPU that is known to take no TLB conflict abort; and as one
/// with an erratum.
const MAX: &str = "max";
const NEOVERSE_V3: &str = "max,midr=0x410fd842";
const C1_ULTRA_R1P0: &str = "max,midr=0x411fd8c0";

fn request(size: PageSize, cpu: &str, rodata: Rodata, words: &str) -> Request {
    sized(size).cpu(cpu).rodata(rodata).append(words)
}

/// The same with several CPUs, and a smaller machine.
fn several(size: PageSize, cpu: &str, words: &str) -> Request {
    request(size, cpu, Rodata::Full, words).smp(3).memory(GIB)
}

/// The level that the CPU names, and the one that is used.
fn levels(kernel: &Booted) -> (u64, u64) {
    (
        kernel.number("bbm_level.id"),
        kernel.number("bbm_level.used"),
    )
}

/// The linear map as it must be for RAM up to `end`, of which the kernel's text and constants are
/// read-only.
#[track_caller]
fn has_map(kernel: &Booted, size: PageSize, protects: bool, pages_only: bool, end: u64) {
    // The formats with 52 bits have larger blocks.
    let wide = kernel.number("pa_bits") > 48;
    let constants = IMAGE + kernel.number("self_check.read_only_bytes");
    assert_eq!(constants > IMAGE, protects);
    let pieces = [
        range(RAM, IMAGE),
        range(IMAGE, constants),
        range(constants, end),
    ];
    let whole = [range(RAM, end)];
    let ranges = if protects { &pieces[..] } else { &whole[..] };
    let expected = Reference::new(size, wide, pages_only, ranges);
    assert_eq!(kernel.leaves(), expected.leaves(), "{size:?}");
    let start_level = kernel.value("start_level").as_i64().unwrap() as i32;
    let tables = expected.tables(start_level);
    kernel.has("linear_map.tables", tables);
}

#[test]
fn the_level_and_the_reason_of_each_cpu() {
    let handled = "2: TLB conflict aborts are handled";
    let known = "3: the CPU reports 2, but is a Neoverse-V3 and takes no TLB conflict aborts";
    let none = "0: the CPU changes no leaf's size in place";
    for (cpu, words, id, used, why) in [
        ("cortex-a76", "", 0, 0, none),
        ("neoverse-n1", "arm64.bbm=3", 0, 0, none),
        (MAX, "", 2, 2, handled),
        (MAX, "arm64.bbm=3", 2, 2, handled),
        (MAX, "arm64.bbm=2", 2, 2, handled),
        (
            MAX,
            "arm64.bbm=1",
            2,
            1,
            "1: arm64.bbm= forbids more, the CPUs have 2",
        ),
        (
            MAX,
            "arm64.bbm=0",
            2,
            0,
            "0: arm64.bbm= forbids more, the CPUs have 2",
        ),
        (NEOVERSE_V3, "", 2, 3, known),
        (NEOVERSE_V3, "arm64.bbm=3", 2, 3, known),
        (
            NEOVERSE_V3,
            "arm64.bbm=2",
            2,
            2,
            "2: arm64.bbm= forbids more, the CPUs have 3",
        ),
        // One revision earlier it is not known.
        ("max,midr=0x410fd841", "", 2, 2, handled),
        (
            C1_ULTRA_R1P0,
            "",
            2,
            0,
            "0: the CPU has erratum c1-ultra-3683289",
        ),
        (
            MAX,
            "arm64.errata=c1-premium-3683289",
            2,
            0,
            "0: the CPU has erratum c1-premium-3683289",
        ),
    ] {
        let why = format!("BBM level {why}");
        let kernel = ok(&request(K16, cpu, Rodata::Full, words).memory(GIB));
        assert_eq!(levels(&kernel), (id, used), "{cpu} {words}");
        kernel.has("bbm_level.why", why.as_str());
        let map = if used < 2 {
            "it is made of pages"
        } else {
            "it has the largest leaves, which are split live"
        };
        kernel.prints(&format!("granule: {why}; linear map: {map}"));
        has_map(&kernel, K16, true, used < 2, RAM + GIB);
        assert!(!kernel.flag("linear_map.rewritten_to_pages"));
    }
}

#[test]
fn a_word_that_is_not_a_level_is_reported_and_ignored() {
    for word in ["arm64.bbm=", "arm64.bbm=4", "arm64.bbm=two"] {
        let kernel = ok(&request(K64, MAX, Rodata::On, word).memory(GIB));
        kernel.prints(&format!(
            "granule: {word}: expected 0, 1, 2 or 3; taking what the CPUs have"
        ));
        assert_eq!(levels(&kernel), (2, 2));
    }
}

#[test]
fn full_protection_has_blocks_where_they_can_be_split() {
    for size in PageSize::ALL {
        let boot = |rodata, words| ok(&request(size, MAX, rodata, words));
        let [full, on, noalias] =
            [Rodata::Full, Rodata::On, Rodata::Noalias].map(|rodata| boot(rodata, ""));
        for kernel in [&full, &on, &noalias] {
            has_map(kernel, size, true, false, END);
            assert_eq!(kernel.counts(), full.counts(), "{size:?}");
            kernel.has("linear_map.tlbi", 0);
        }
        has_map(&boot(Rodata::Off, ""), size, false, false, END);
        for words in ["arm64.bbm=0", "arm64.bbm=1"] {
            has_map(&boot(Rodata::On, words), size, true, true, END);
            // Memory that need not change keeps its blocks.
            has_map(&boot(Rodata::Noalias, words), size, true, false, END);
        }
    }
}

/// A user that needs pages has them where the CPU could split blocks, whatever the image's protection, and CPUs that
/// come up later change nothing.
#[test]
fn who_needs_pages_has_them_on_any_cpu() {
    for size in PageSize::ALL {
        for words in ["granule.test=pages", "debug_pagealloc=on"] {
            for rodata in [Rodata::Off, Rodata::Full] {
                let kernel = ok(&several(size, MAX, words).rodata(rodata));
                assert_eq!(levels(&kernel), (2, 2));
                let line = format!("granule: linear map: it is made of pages, which {words} needs");
                kernel.prints(&line);
                has_map(&kernel, size, rodata == Rodata::Full, true, RAM + GIB);
            }
        }
    }
}

/// A CPU that comes up and allows no live splits: all is rewritten, to the map that would have been
/// made for it.
#[test]
fn for_a_weak_cpu_the_map_is_rewritten_to_pages() {
    for size in PageSize::ALL {
        for (cpu, words) in [
            (MAX, "arm64.fake_cpu=2:bbm=0"),
            (NEOVERSE_V3, "arm64.fake_cpu=2:bbm=1"),
        ] {
            let kernel = ok(&several(size, cpu, words));
            assert!(kernel.flag("linear_map.rewritten_to_pages"));
            kernel.has("cpus", 3);
            kernel.prints("linear map: it has the largest leaves, which are split live");
            kernel.prints("granule: the linear map is rewritten to pages");
            has_map(&kernel, size, true, true, RAM + GIB);
            let used = if words.ends_with('1') { 1 } else { 0 };
            assert_eq!(levels(&kernel), (2, used));
            let why = format!("BBM level {used}: CPU 2 has no more, others have");
            kernel.has("bbm_level.why", why.as_str());
            kernel.prints(&format!("granule: {why}"));
            // The record has the cost of the original map: a few tables of blocks.
            let stores = kernel.number("linear_map.descriptor_stores");
            assert!(stores < 10 * size.bytes() / 8, "{stores}");
            // Both walks used the CPU.
            assert!(kernel.number("self_check.translations") > 2 * 4096);

            // The same image: its text and constants are read-only in the map too.
            let same = ok(&several(size, cpu, "arm64.bbm=0").image(test_image()));
            assert!(!same.flag("linear_map.rewritten_to_pages"));
            assert_eq!(kernel.leaves(), same.leaves());
            for key in [
                "linear_map.tables",
                "linear_map.table_bytes",
                "self_check.read_only_bytes",
            ] {
                kernel.has(key, same.number(key));
            }
            // The second walk meets what the other CPUs need too: their stacks and the interrupt
            // controller.
            for key in ["self_check.leaves", "self_check.tables"] {
                assert!(kernel.number(key) >= same.number(key), "{size:?} {key}");
            }
        }
    }
}

#[test]
fn it_is_not_rewritten_where_nothing_is_gained() {
    for (cpu, rodata, words, used, cpus, in_pages) in [
        // Another kind of CPU that allows live splits too, if less than the boot CPU.
        (
            NEOVERSE_V3,
            Rodata::Full,
            "1:midr=0x410fd841",
            (2, 2),
            3,
            false,
        ),
        // No page changes later.
        (MAX, Rodata::Noalias, "1:bbm=0", (2, 0), 3, false),
        // The weak one is not up.
        (MAX, Rodata::Full, "1:bbm=0,asidbits=0", (2, 2), 2, false),
        // The other way round: the boot CPU is the weakest, so it is of pages from the start.
        ("neoverse-n1", Rodata::Full, "1:bbm=2", (0, 0), 3, true),
    ] {
        let kernel = ok(&several(K4, cpu, &format!("arm64.fake_cpu={words}")).rodata(rodata));
        assert_eq!(levels(&kernel), used, "{cpu} {words}");
        kernel.has("cpus", cpus);
        kernel.has("linear_map.rewritten_to_pages", false);
        has_map(&kernel, K4, true, in_pages, RAM + GIB);
        if cpu == NEOVERSE_V3 {
            kernel.prints("granule: BBM level 2: CPU 1 has no more, others have");
        }
    }
}

/// No memory for the tables: the boot ends before any entry has changed, and prints the remedy.
#[test]
fn without_memory_for_the_tables_it_is_refused() {
    let crafted = |words| {
        let mut crafted = Crafted::new(&several(K4, MAX, words).memory(4 * GIB));
        // All but two pieces of 7 MiB is in use, and mapped: room for what the kernel keeps of the
        // pages on each side of the hole, but not for 8 MiB of tables.
        let hole = RAM + 2 * GIB;
        crafted.reserved(RAM + 12 * MIB, 2 * GIB - 19 * MIB, false);
        crafted.reserved(hole, 2 * MIB, true);
        crafted.reserved(hole + 2 * MIB, 2 * GIB - 9 * MIB, false);
        crafted
    };
    let kernel = crafted("arm64.fake_cpu=1:bbm=0").refused();
    kernel.fails_with(
        "BBM level 0: CPU 1 has no more, others have, so the linear map must be rewritten to \
         pages: no free range of RAM holds the ",
    );
    kernel.fails_with("tables of 4096 bytes");
    assert_ends_with(
        kernel.reason(),
        "arm64.bbm=0 makes it of pages from the start",
    );
    kernel.does_not_print("is rewritten to pages");
    // It is that CPU's fault, and nothing else's.
    let kernel = crafted("").ok();
    assert_eq!((levels(&kernel), kernel.number("cpus")), ((2, 2), 3));
    let kernel = crafted("arm64.fake_cpu=1:bbm=0 arm64.bbm=2").refused();
    assert!(kernel.reason().starts_with("BBM level 0: CPU 1"));
}
