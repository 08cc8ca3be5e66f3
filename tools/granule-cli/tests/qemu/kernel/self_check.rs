//! The self-check works: one leaf is made wrong, and the check must report it.

use granule_cli::{Outcome, PageSize, Rodata};

use crate::booted::Booted;
use crate::kernel::machine::{ends, ok, sized};

fn corrupted(what: &str, size: PageSize, rodata: Rodata) -> Booted {
    ends(
        &sized(size)
            .append(format!("granule.test=corrupt-{what}"))
            .rodata(rodata),
        Outcome::SelfCheckFailed,
    )
}

#[test]
fn the_walk_sees_each_wrong_leaf() {
    for size in PageSize::ALL {
        let page = size.bytes();
        let planned = 4 << 30;
        for (what, reason) in [
            (
                "output",
                format!("to {:#x}, is not planned", 0x4000_0000 + page),
            ),
            ("permission", "is writable and executable".into()),
            ("read-only", "to 0x40000000, is not planned".into()),
            (
                "missing",
                format!(
                    "{:#x} bytes are mapped, {planned:#x} were planned",
                    planned - page
                ),
            ),
            (
                "hint",
                format!(
                    "{} leaves of {page:#x} bytes (contiguous: false)",
                    planned / page - 1
                ),
            ),
        ] {
            let kernel = corrupted(what, size, Rodata::On);
            kernel.fails_with(&reason);
        }
    }
}

#[test]
fn the_walk_sees_a_wrong_block() {
    let kernel = corrupted("permission", PageSize::K4, Rodata::Off);
    kernel.fails_with("is writable and executable");
}

/// A block of a GiB, which some of 4096 random addresses must lie in.
#[test]
fn the_cpus_translations_are_checked() {
    let kernel = corrupted("translation", PageSize::K4, Rodata::Noalias);
    kernel.fails_with(" translates to 0x");
}

/// The first free page, which is always among those that are written.
#[test]
fn memory_is_written_and_read_back() {
    for size in PageSize::ALL {
        let kernel = corrupted("pattern", size, Rodata::On);
        let reason = "is read from page 0x40000000 through a second mapping";
        kernel.fails_with(reason);
    }
}

#[test]
fn the_self_check_reports_exactly_what_it_checked() {
    for size in PageSize::ALL {
        let kernel = ok(&sized(size));
        // Pages only: a run of leaves ends where the hint or the level changes or RAM has a hole,
        // so there is one. Both its ends and the random addresses.
        kernel.has("self_check.translations", 4096 + 2);
        let leaves = (4 << 30) / size.bytes();
        let others = kernel.number("self_check.leaves") - leaves;
        // The image's pages, the console, and the device tree.
        let image = kernel.number("image.bytes") / size.bytes();
        assert!(
            (image..image + 1024).contains(&others),
            "{size:?}: {others}"
        );
    }
}

/// One page in 64, the tables, and the edges. A wrong page among them is found; the word chooses.
#[test]
fn the_word_sets_the_extent_of_the_check() {
    for size in PageSize::ALL {
        let with = |words: &str| sized(size).append(words).rodata(Rodata::On);
        let wrong = "granule.selfcheck=sample granule.test=corrupt-sampled";
        let kernel = ends(&with(wrong), Outcome::SelfCheckFailed);
        kernel.fails_with("is not planned");
        // RAM begins where a table does. Its first and last page are edges.
        let wrong = "granule.selfcheck=sample granule.test=corrupt-output";
        let kernel = ends(&with(wrong), Outcome::SelfCheckFailed);
        kernel.fails_with("is not planned");
        let pages = (4 << 30) / size.bytes();
        let full = ok(&with("")).number("self_check.leaves");
        let sampled = ends(&with("granule.selfcheck=sample"), Outcome::Ok);
        let leaves = sampled.number("self_check.leaves");
        // The tables around the image are walked.
        let walked = full - pages + 4 * size.bytes() / 8;
        assert!(
            (pages / 64..pages / 64 + walked).contains(&leaves),
            "{size:?}: {leaves}"
        );
        assert!(sampled.number("self_check.tables") > 0);
        let garbled = ends(&with("granule.selfcheck=some"), Outcome::Ok);
        garbled.prints("granule.selfcheck=some: expected off, sample or full; taking full");
        garbled.has("self_check.leaves", full);
        let off = ends(
            &with("granule.selfcheck=off granule.test=corrupt-hint"),
            Outcome::Ok,
        );
        for key in ["translations", "patterns", "leaves", "tables"] {
            off.has(&format!("self_check.{key}"), 0);
        }
    }
}
