//! One broken tree for each rule: the rule is found, with its place, and nothing else is.

use crate::walk::RW;
use crate::world::{BASE, Pages, TABLES, World};
use granule::arch::{
    Attributes, Descriptor, Level, PageSize, Permissions, Regime, Stage2Attributes, Stage2Geometry,
    Stage2Permissions, VaRange,
};
use granule::table::Leaves;
use granule_inspect::lint::{Accepted, Finding, LintOptions, Rule, Severity, lint};
use granule_inspect::tree::{Origin, Tree};
use granule_testing::shape::{self, PLAIN};

fn most(most: usize) -> LintOptions {
    LintOptions {
        most,
        ..LintOptions::default()
    }
}

/// All findings of some trees.
pub fn findings(pages: &Pages, trees: &[Tree]) -> Vec<Finding> {
    let linted = lint(pages, trees, &most(1000), &mut |_| {});
    assert!(linted.findings.more.is_empty());
    linted.findings.list
}

/// Checks that a tree has one finding: its rule and severity, its offset and bytes, and a part of its text.
#[track_caller]
pub fn is_found(world: &World, rule: (Rule, Severity), place: (u64, u64), text: &str) {
    let found = findings(&world.pages, std::slice::from_ref(&world.tree));
    let [found] = &found[..] else {
        panic!("{found:#?}");
    };
    let base = world.tree.geometry().base().0;
    assert_eq!((found.rule, found.severity), rule);
    assert_eq!((found.address.wrapping_sub(base), found.bytes), place);
    assert!(found.text.contains(text), "{:?} lacks {text:?}", found.text);
}

/// Checks that a tree has no findings.
#[track_caller]
pub fn is_clean(world: &World) {
    assert_eq!(
        findings(&world.pages, std::slice::from_ref(&world.tree)),
        []
    );
}

pub const MEMORY: u64 = 0x8000_0000;
pub const PAGE: u64 = 0x1000;
pub const BLOCK: u64 = 0x20_0000;

/// 2 MiB in contiguous pages, and 2 MiB in one block.
pub fn clean() -> World {
    let pages = Leaves {
        top: Level::L3,
        contiguous: true,
    };
    let text = Attributes::normal(Permissions::READ_EXECUTE);
    World::plain(&[
        (0, MEMORY + 0x1_0000, BLOCK - 0x1_0000, RW, pages),
        (1 << 30, MEMORY + BLOCK, BLOCK, text, Leaves::LARGEST),
    ])
}

#[test]
fn clean_trees_have_no_findings() {
    is_clean(&clean());
    for geometry in shape::all() {
        let page = geometry.page_size().bytes();
        let (at, device) = (128 * page, Attributes::device());
        let pieces = [
            (0, 0x4000_0000, 96 * page, RW, Leaves::LARGEST),
            (at, 0x4000_0000 + at, page, device, Leaves::LARGEST),
        ];
        is_clean(&World::at(geometry, TABLES, &pieces));
    }
    for geometry in shape::stage2() {
        let page = geometry.shape().page_size().bytes();
        let all = Stage2Attributes::normal(Stage2Permissions::ALL);
        let piece = (0, 0x4000_0000, 96 * page, all, Leaves::LARGEST);
        is_clean(&World::guest(geometry, &[piece]));
    }
}

#[test]
fn writable_and_executable() {
    let (rule, place) = (Rule::WritableExecutable, (1 << 30, BLOCK));
    let mut world = clean();
    world.change(1 << 30, Level::L2, |word| word & !Descriptor::AP_READ_ONLY);
    let text = "the privileged level may store and execute (RW PX UXN AF ISH normal-WB): whoever can make \
                the owner store there can make it execute what was stored";
    is_found(&world, (rule, Severity::Error), place, text);
    // EL0 alone: a compiler at run time has reasons.
    world.change(1 << 30, Level::L2, |word| {
        (word | Descriptor::AP_USER | Descriptor::PXN) & !Descriptor::UXN
    });
    is_found(&world, (rule, Severity::Warning), place, "EL0 may store");
    // The table above forbids stores.
    world.change(1 << 30, Level::L1, |word| word | 1 << 62);
    is_clean(&world);
}

#[test]
fn contiguous_groups() {
    let group = 0x1_0000;
    type Change = fn(u64) -> u64;
    let cases: [(Change, &str); 4] = [
        (
            |word| word & !Descriptor::CONTIGUOUS,
            "only 15 of 16 valid ones have the hint",
        ),
        (
            |word| word | Descriptor::NOT_GLOBAL,
            "number 5 has other attributes than the first: bits 0x800 differ",
        ),
        (
            |word| word + 0x1000,
            "the output of number 5 does not follow the first's",
        ),
        (
            |word| word ^ 1 << 20,
            "the output of number 5 does not follow the first's",
        ),
    ];
    for (change, expected) in cases {
        let mut world = clean();
        world.change(2 * group + 5 * PAGE, Level::L3, change);
        // The other rules see the entry too: an alias, or a leaf less in the hint.
        let found = findings(&world.pages, std::slice::from_ref(&world.tree));
        let found: Vec<_> = found
            .iter()
            .filter(|it| it.severity == Severity::Error)
            .collect();
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].rule, Rule::Contiguous);
        assert_eq!(
            (found[0].address, found[0].bytes),
            (BASE + 2 * group, group)
        );
        assert!(found[0].text.contains(expected), "{}", found[0].text);
    }
    // All sixteen follow each other, in other memory, from an output that is not aligned to the group.
    let mut world = clean();
    for page in 0..16 {
        world.change(group + page * PAGE, Level::L3, |word| {
            (word ^ 3 << 31) + PAGE
        });
    }
    let rule = (Rule::Contiguous, Severity::Error);
    is_found(&world, rule, (group, group), "is not aligned to the group");
    // Hardware's own updates, invalid members and software bits are not a fault.
    let mut world = clean();
    world.change(group, Level::L3, |word| word & !Descriptor::ACCESS_FLAG);
    world.change(2 * group, Level::L3, |_| 0);
    world.change(3 * group, Level::L3, |word| word | 1 << 55);
    let found = findings(&world.pages, &[world.tree]);
    assert!(
        found.iter().all(|it| it.severity == Severity::Info),
        "{found:#?}"
    );
}

#[test]
fn outputs_beyond_the_cpu() {
    let small = shape::Cpu {
        parange: 2,
        ..PLAIN
    };
    let piece = [(0, MEMORY, PAGE, RW, Leaves::PAGES)];
    let is_beyond = |world: &mut World, text: &str| {
        world.change(0, Level::L3, |word| word | 1 << 41);
        is_found(world, (Rule::OutputSize, Severity::Error), (0, PAGE), text);
    };
    let upper = small.geometry(PageSize::K4, 39, VaRange::Upper);
    let mut world = World::at(upper, TABLES, &piece);
    is_beyond(
        &mut world,
        "the output 0x20080000000 has more than the 40 bits of TCR.IPS",
    );
    // Without a value of TCR, its IPS is unknown.
    for origin in [Origin::Vmcoreinfo, Origin::KernelData, Origin::Guess] {
        world.tree.origin = origin;
        is_clean(&world);
    }
    // Each regime has a register of its own.
    let single = small.single(PageSize::K4, 39, Regime::El2);
    is_beyond(
        &mut World::at(single, TABLES, &piece),
        "the 40 bits of TCR.PS",
    );
    let guest = Stage2Geometry::new(&small.features(), PageSize::K4, 39).unwrap();
    let all = Stage2Attributes::normal(Stage2Permissions::ALL);
    let mut world = World::guest(guest, &[(0, MEMORY, PAGE, all, Leaves::PAGES)]);
    is_beyond(&mut world, "the 40 bits of VTCR.PS");
}

#[test]
fn tables_used_twice_and_loops() {
    let mut world = clean();
    let (table, _) = world.entry(0, Level::L3);
    world.change(BLOCK * 3, Level::L2, |_| table | 0b11);
    let text =
        format!("the table of level 3 at {table:#x} is that of 0xffffff8000000000 of kernel too");
    let rule = (Rule::SharedTable, Severity::Warning);
    is_found(&world, rule, (BLOCK * 3, BLOCK), &text);
    let mut world = clean();
    let root = world.tree.root.0;
    world.change(3 << 30, Level::L1, |_| root | 0b11);
    let text = "leads to itself as a table of level 2";
    let rule = (Rule::Loop, Severity::Warning);
    is_found(&world, rule, (3 << 30, 1 << 30), text);
}

#[test]
fn leaves_that_could_be_larger() {
    let (group, block) = (Rule::MissedContiguous, Rule::MissedBlock);
    let contiguous = Leaves {
        top: Level::L3,
        contiguous: true,
    };
    let pages = |offset: u64, bytes| (offset, MEMORY + offset, bytes, RW, Leaves::PAGES);
    for (pieces, rule, place, text) in [
        // 16 pages that could be a group, in a range of 20.
        (
            &[pages(0xe000, 20 * PAGE)][..],
            group,
            (0xe000, 20 * PAGE),
            "20 TLB entries hold 80K where 5 would: 1 group of 16 entries of 4K, 4 x 4K \
             would do, and an entry would reach 16K instead of 4K on average",
        ),
        // 4 MiB of pages and 4 MiB of contiguous pages that could be four blocks.
        (
            &[
                pages(0, 2 * BLOCK),
                (2 * BLOCK, MEMORY + 2 * BLOCK, 2 * BLOCK, RW, contiguous),
            ],
            block,
            (0, 4 * BLOCK),
            "1088 TLB entries hold 8M where 4 would: 4 x 2M would do and save 16K of table memory",
        ),
        // One of the two blocks is there already.
        (
            &[
                pages(0, BLOCK),
                (BLOCK, MEMORY + BLOCK, BLOCK, RW, Leaves::LARGEST),
            ],
            block,
            (0, 2 * BLOCK),
            "2 x 2M would do and save 4K of table memory",
        ),
    ] {
        is_found(&World::plain(pieces), (rule, Severity::Info), place, text);
    }
    // The output is off by a page: nothing larger fits.
    is_clean(&World::plain(&[(
        0,
        MEMORY + PAGE,
        2 * BLOCK,
        RW,
        Leaves::PAGES,
    )]));
}

#[test]
fn tables_that_are_not_there() {
    let rule = (Rule::UnreadableTable, Severity::Error);
    let mut world = clean();
    let (table, _) = world.entry(0, Level::L3);
    world.pages.0.remove(&table);
    let text =
        format!("the table of level 3 at {table:#x} cannot be read, no memory at {table:#x}");
    is_found(&world, rule, (0, BLOCK), &text);
    // Not even the root.
    world.pages = Pages::default();
    is_found(&world, rule, (0, 1 << 39), "the table of level 1");
}

#[test]
fn accepted_findings_are_taken_out_and_unused_lines_reported() {
    let mut world = clean();
    let root = world.tree.root.0;
    world.change(3 << 30, Level::L1, |_| root | 0b11);
    let (accepted, bad) = Accepted::parse(
        "loop 0xffffff80c0000000-0xffffff80ffffffff the map of the tables\n\
         loop 0-0xffff nobody\n",
    );
    assert!(bad.is_empty());
    let options = LintOptions {
        accepted,
        ..most(10)
    };
    let linted = lint(&world.pages, &[world.tree], &options, &mut |_| {});
    let accepted = &linted.findings.accepted;
    assert_eq!(accepted.uses(), 1);
    assert_eq!(linted.findings.worst(), None);
    let unused = |rules: &[Rule]| {
        let unused = accepted.unused(rules);
        unused.map(|it| it.to_string()).collect::<Vec<_>>()
    };
    let remark = ["line 2: no loop from 0x0 to 0xffff (nobody): remove the line"];
    assert_eq!(unused(&[]), remark);
    assert_eq!(unused(&[Rule::Loop]), remark);
    // A rule that was not requested has no result.
    assert_eq!(unused(&[Rule::Contiguous]), [""; 0]);
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let mut world = World::plain(&[(0, MEMORY, 0x8000, RW, Leaves::PAGES)]);
    for page in [0, 2, 4] {
        world.change(page * PAGE, Level::L3, |word| word | 1 << 49);
    }
    let linted = lint(&world.pages, &[world.tree], &most(2), &mut |_| {});
    assert_eq!(linted.findings.list.len(), 2);
    let more: Vec<_> = linted.findings.more.into_iter().collect();
    assert_eq!(more, [((Rule::ReservedBits, Severity::Warning), 1)]);
}

/// Accepted findings and those of other rules are not counted either, and take nobody's place.
#[test]
fn accepted_and_unwanted_findings_hide_none_beyond_the_limit() {
    let mut world = World::plain(&[(0, MEMORY, 0x8000, RW, Leaves::PAGES)]);
    for page in [0, 2, 4] {
        world.change(page * PAGE, Level::L3, |word| word | 1 << 49);
    }
    let linted = |rules: &[Rule], pages: u64| {
        let last = BASE + pages * PAGE - 1;
        let text = format!("reserved-bits {BASE:#x}-{last:#x} x");
        let options = LintOptions {
            rules: rules.to_vec(),
            accepted: Accepted::parse(&text).0,
            ..most(1)
        };
        lint(
            &world.pages,
            std::slice::from_ref(&world.tree),
            &options,
            &mut |_| {},
        )
        .findings
    };
    let found = linted(&[], 3);
    assert_eq!(found.list.len(), 1, "{found:?}");
    assert_eq!(
        (found.list[0].address, found.accepted.uses()),
        (BASE + 4 * PAGE, 2)
    );
    assert!(found.more.is_empty(), "{found:?}");
    // One is accepted, one listed, one counted.
    let found = linted(&[Rule::ReservedBits], 1);
    assert_eq!(
        (found.list.len(), found.more.len(), found.accepted.uses()),
        (1, 1, 1)
    );
    let found = linted(&[Rule::Loop], 1);
    assert!(found.list.is_empty() && found.more.is_empty() && found.worst().is_none());
}

#[test]
fn a_table_beyond_the_limit_is_reported() {
    let world = clean();
    let options = LintOptions {
        most_tables: 2,
        ..most(10)
    };
    let tree = std::slice::from_ref(&world.tree);
    assert!(lint(&world.pages, tree, &options, &mut |_| {}).beyond_limit > 0);
    assert_eq!(
        lint(&world.pages, tree, &most(10), &mut |_| {}).beyond_limit,
        0
    );
}
