//! `granule bench user`: limits on the cost of user memory, on every build; choosing the page size
//! at boot costs nothing.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::bench::series::{self, Benchmark};
use granule_cli::bench::user::counts::Counts;
use granule_cli::bench::user::lines::Op;
use granule_cli::bench::user::{Bench, Build, Done, Ran};

use test_case::test_case;

use crate::bench::rows;
use crate::hooked::granule;
use crate::image::built;

fn bench(page_size: PageSize, builds: &[Build], pages: u64, large_leaves: bool) -> Bench {
    let bytes = pages * page_size.bytes();
    Bench {
        build: builds.to_vec(),
        page_size: vec![page_size],
        large_leaves,
        memory: (2 * bytes + bytes / 2).max(256 << 20),
        bytes,
        rounds: 2,
        programs: 0,
        areas: Vec::new(),
        together: false,
        cpu: "neoverse-n1".into(),
        folder: Some(built("Image", "cargo xtask image").with_file_name("")),
        run: rows::on_qemu(),
    }
}

fn measure(bench: &Bench) -> Done {
    rows::measure("bench user", bench)
}

fn instructions(ran: &Ran, op: &str) -> u64 {
    let ops = &ran.figures.as_ref().unwrap().ops;
    let found = ops.iter().find(|found| found.name == op);
    let found = found.unwrap_or_else(|| panic!("no {op} in {ops:?}"));
    found.time.unwrap().best
}

fn counts(ran: &Ran, op: &str) -> Counts {
    let ops = &ran.figures.as_ref().unwrap().ops;
    let found = ops.iter().find(|found| found.name == op);
    found
        .and_then(|op| op.counts)
        .unwrap_or_else(|| panic!("no counts of {op} in {ops:?}"))
}

/// The kinds of work on all of the memory.
fn work_on_memory(ran: &Ran) -> impl Iterator<Item = &Op> {
    let ops = &ran.figures.as_ref().unwrap().ops;
    ops.iter()
        .filter(|op| op.times.is_none() && op.bytes.is_none())
}

/// The most instructions a page that each kind of work may take.
fn may_take(op: &str, page_size: PageSize, large_leaves: bool) -> u64 {
    let blocks = large_leaves && page_size == K4;
    match op {
        // A whole leaf at once. The goal for 4K pages, zeroing included; larger pages are zeroed longer.
        "touch" if large_leaves => 230 + (page_size.bytes() - K4.bytes()) / 64 * 3,
        // Without leaves that several pages share, each page takes a fault of its own.
        "reuse" if !large_leaves => 900,
        // The goals for 4K pages, which are in blocks, and in groups where they were copied; the limit of 2 MiB leaves
        // larger pages groups, with an entry a page.
        "fork" | "fork-held" if blocks => 12,
        "munmap" | "munmap-touched" if blocks => 8,
        "fork" | "fork-held" => 100,
        "munmap" | "munmap-touched" => 300,
        // DC ZVA on 64 bytes: one instruction and a little for each is part of it.
        "touch" => 800 + page_size.bytes() / 64 * 5 / 2 + 240,
        "mprotect-read" | "mprotect-write" => 60,
        "reuse" => 300,
        // Nothing but the write.
        "loop" | "rewrite" => 5,
        // Sixty-four bytes in eight instructions and a half. Of large leaves whole groups are copied at once.
        "copy" if large_leaves => 300 + page_size.bytes() / 64 * 9,
        "copy" => 1100 + page_size.bytes() / 64 * 9,
        other => panic!("no bound for {other}"),
    }
}

/// Instructions by which what a call takes once may differ between the builds: a fork makes a task too.
const A_CALL: u64 = 4000;

/// Few instructions, and the same on both builds. `pages` is to be so many that what a call takes once, and where
/// in memory the image leaves room, is little beside them.
#[test_case(K4, 65536, false; "pages of 4K")]
#[test_case(K16, 16384, false; "pages of 16K")]
#[test_case(K64, 16384, false; "pages of 64K")]
#[test_case(K4, 65536, true; "large leaves of 4K")]
#[test_case(K16, 16384, true; "large leaves of 16K")]
#[test_case(K64, 8192, true; "large leaves of 64K")]
fn within_bounds(page_size: PageSize, pages: u64, large_leaves: bool) {
    let bench = bench(page_size, &[Build::Boot, Build::Fixed], pages, large_leaves);
    let done = measure(&bench);
    let table = series::table(&bench, &done);
    for ran in &done.rows {
        for op in work_on_memory(ran) {
            let most = may_take(&op.name, page_size, large_leaves) * pages;
            let (name, best) = (&op.name, op.time.unwrap().best);
            assert!(best <= most, "{name} took {best}, at most {most}:\n{table}");
            // One store for each page, at the very least; a call may take one step for many pages.
            let writes = ["touch", "reuse", "copy", "rewrite", "loop"];
            let least = if writes.contains(&name.as_str()) {
                pages / 2
            } else {
                1
            };
            assert!(best >= least, "{name} took {best}:\n{table}");
        }
    }
    for ran in &done.rows {
        // An entry that was invalid is in no TLB, so a first touch invalidates nothing, however large.
        assert_eq!(counts(ran, "touch").tlbi, 0, "{table}");
        // All that is mapped loses its right to be written.
        assert!(counts(ran, "fork").tlbi > 0, "{table}");
        // One TLBI serves all that changes, and each 32 tables that become blocks again; what is left may be one
        // table, with a TLBI for each of its 512 pages. Nothing is left to merge when it becomes writable.
        let read = counts(ran, "mprotect-read").tlbi;
        let merges = large_leaves && page_size == K4;
        let most = if merges {
            1 + pages / 512 / 32 + 512
        } else {
            1
        };
        assert!((1..=most).contains(&read), "{table}");
        let writable = counts(ran, "mprotect-write");
        assert_eq!(writable.tlbi, 1, "{table}");
        // A DSB on either side of it, and what a tick of the timer takes.
        assert!((2..=4).contains(&writable.dsb), "{table}");
    }
    // Of large leaves it depends on where in memory frames lie what those of copies can be merged to.
    let munmap = if large_leaves {
        "munmap-touched"
    } else {
        "munmap"
    };
    for op in ["fork", "fork-held", munmap] {
        let [boot, fixed] = [0, 1].map(|at| instructions(&done.rows[at], op));
        // Within half a percent, either way, or a call's worth where the whole is little more than that.
        assert!(
            boot.abs_diff(fixed) <= (fixed / 200).max(A_CALL),
            "{op}: {boot} instructions on the image for all, {fixed} on that for one:\n{table}"
        );
    }
}

/// Calls beside memory, programs that begin and end, and small changes of an area take the same on both builds: within
/// half a percent, and within one for `spawn`, whose forks share as many pages as groups of frames were free.
#[test_case(K4; "kernel_of_4k")]
#[test_case(K16; "kernel_of_16k")]
#[test_case(K64; "kernel_of_64k")]
fn calls_beside_memory(page_size: PageSize) {
    let done = measure(&bench(page_size, &[Build::Boot, Build::Fixed], 256, true));
    let ops = [
        "getpid",
        "dup",
        "munmap-part",
        "mmap-part",
        "mprotect-part",
        "mprotect-whole",
        "spawn",
        "exec",
    ];
    for op in ops {
        let [boot, fixed] = [0, 1].map(|at| instructions(&done.rows[at], op));
        let most = fixed / if op == "spawn" { 100 } else { 200 };
        assert!(
            boot.abs_diff(fixed) <= most,
            "{op}: {boot}, {fixed} on the image for one size"
        );
    }
}

/// But for where in a tick of the counter they begin and end.
#[test]
fn counts_do_not_depend_on_the_host() {
    const TICK: u64 = 16;
    let bench = bench(K16, &[Build::Boot], 256, true);
    let [first, second] = [(); 2].map(|()| measure(&bench).rows.remove(0).figures.unwrap());
    for (one, other) in first.ops.iter().zip(&second.ops) {
        let [first, second] = [one, other].map(|op| op.time.unwrap().best);
        let apart = first.abs_diff(second);
        assert!(
            one.name == other.name && apart <= TICK && one.counts == other.counts,
            "{one:?}, then {other:?}"
        );
    }
}

/// Between programs of one size nothing is invalidated, between two sizes the CPU's own TLB: a TLBI and the
/// DSB that waits for it, for each switch.
#[test]
fn only_a_switch_to_another_page_size_invalidates() {
    for kernel in PageSize::ALL {
        let done = measure(&bench(kernel, &[Build::Boot], 256, true));
        let ops = &done.rows[0].figures.as_ref().unwrap().ops;
        let switches: Vec<_> = ops
            .iter()
            .filter(|op| op.name.starts_with("switch"))
            .collect();
        assert_eq!(switches.len(), 3, "{ops:?}");
        for op in switches {
            let each = u64::from(op.other != Some(kernel.bytes()));
            let name = if each == 0 {
                "switch-same"
            } else {
                "switch-other"
            };
            assert_eq!(op.name, name);
            let (times, counts) = (op.times.unwrap(), op.counts.unwrap());
            assert_eq!(
                (counts.tlbi, counts.dsb),
                (each * times, each * times),
                "{op:?}"
            );
            // The kernel whose programs all had its own page size took 750, with the call.
            let most = if each == 0 { 750 } else { 900 };
            assert!(op.time.unwrap().best <= most * times, "{op:?}");
        }
    }
}

/// More programs than there are in any other test, on kernels whose frames they share and have alone.
#[test]
fn a_thousand_small_programs_take_little_more_on_a_kernel_of_large_pages() {
    let bench = Bench {
        page_size: vec![K4, K64],
        programs: 1000,
        memory: 1 << 30,
        ..bench(K64, &[Build::Boot], 1, true)
    };
    let done = measure(&bench);
    let bytes = [0, 1].map(|at| {
        let ops = &done.rows[at].figures.as_ref().unwrap().ops;
        let op = ops.iter().find(|op| op.name == "programs-1000").unwrap();
        assert_eq!(op.page, Some(K4.bytes()));
        op.bytes.unwrap()
    });
    let table = series::table(&bench, &done);
    // A stack of the kernel's, and tables of three levels at the least.
    assert!(bytes[0] >= 1000 * ((16 + 3 * 4) << 10), "{table}");
    // The goal.
    assert!(bytes[1] * 10 <= bytes[0] * 11, "{table}");
}

/// Programs of all page sizes at once take at most a percent more than each takes alone: no state of one size is in
/// the way of another. An `munmap` may take 5 % less: in how many runs it gives frames back depends on where they lie.
#[test]
fn programs_of_all_sizes_at_once_take_what_each_takes_alone() {
    let bench = Bench {
        page_size: PageSize::ALL.to_vec(),
        together: true,
        memory: 1 << 30,
        bytes: 128 << 20,
        ..bench(K4, &[Build::Boot], 1, true)
    };
    let done = measure(&bench);
    let table = series::table(&bench, &done);
    let json = bench.json(&done);
    let rows = json["rows"].as_array().unwrap();
    // Three kinds of work on each of three kernels: of three programs, and of all at once.
    assert_eq!(rows.len(), 3 * 3 * (3 + 1));
    for row in rows {
        let over = row["over_alone_percent"].as_f64().unwrap();
        let (op, pages) = (row["op"].as_str().unwrap(), row["pages"].as_u64());
        // At once, what the program that gives the orders takes is there once; in the sum it is there thrice.
        let least = if pages.is_none() || op == "munmap" {
            -5.0
        } else {
            -1.0
        };
        assert!((least..=1.0).contains(&over), "{op}: {over} %:\n{table}");
        // Unmapping large leaves takes less than an instruction a page.
        let least = pages.filter(|_| op != "munmap");
        assert!(row["instructions"].as_u64() >= least, "{op}:\n{table}");
    }
}

/// The fixed cost of a call is at most that of a few pages: twice the pages are twice the work.
#[test]
fn twice_the_pages_are_twice_the_work() {
    let of = |pages| measure(&bench(K16, &[Build::Boot], pages, false));
    let (some, twice) = (of(2048), of(4096));
    for op in ["touch", "fork", "munmap"] {
        let [some, twice] = [&some, &twice].map(|done| instructions(&done.rows[0], op));
        let factor = twice as f64 / some as f64;
        assert!((1.2..2.1).contains(&factor), "{op}: {some}, then {twice}");
    }
}

/// The goals for `mprotect` of one area, and that no call depends on the number of areas.
#[test]
fn one_area_among_many_takes_little_more_than_among_few() {
    let counts = [256, 2048, 32_768, 65_530];
    let bench = Bench {
        areas: counts.to_vec(),
        ..bench(K4, &[Build::Boot], 512, true)
    };
    let done = measure(&bench);
    let table = series::table(&bench, &done);
    let each = |op: &str| {
        counts.map(|count| {
            let name = format!("{op}-{count}");
            let ops = &done.rows[0].figures.as_ref().unwrap().ops;
            let found = ops.iter().find(|found| found.name == name).unwrap();
            found.time.unwrap().best / found.times.unwrap()
        })
    };
    for op in ["mprotect-split", "mprotect-merge"] {
        let [few, some, many, most] = each(op);
        assert!(some <= 4000 && many <= 5000, "{table}");
        assert!(most * 2 <= few * 3, "{table}");
    }
    for op in ["mmap", "munmap", "munmap-one"] {
        let [few, _, _, most] = each(op);
        assert!(most <= few * 2, "{table}");
    }
    assert!(each("dontneed").into_iter().max() <= Some(1800), "{table}");
}

#[test]
fn a_folder_without_images_is_an_error_with_the_command_that_builds_them() {
    let folder = tempfile::tempdir().unwrap();
    let output = granule()
        .args(["bench", "user", "--json", "--folder"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let printed = String::from_utf8(output.stderr).unwrap();
    let expected = format!(
        "granule: {}/Image is not there: build it with `cargo xtask image`\n",
        folder.path().display()
    );
    assert_eq!(printed, expected);
}
