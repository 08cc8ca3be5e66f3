//! The rules that compare trees with the memory, with stage 2, and with what hardware may leave behind.

use crate::lint::{MEMORY, PAGE, clean, findings, is_clean, is_found};
use crate::walk::RW;
use crate::world::{BASE, Pages, TABLES, World};
use granule::arch::{
    Attributes, Descriptor, Level, PageSize, Permissions, Regime, Stage2Attributes,
    Stage2Permissions, VaRange,
};
use granule::table::Leaves;
use granule_inspect::lint::{LintOptions, Rule, Severity, lint};
use granule_inspect::memory_map::MemoryMap;
use granule_inspect::tree::{Owner, Tree};
use granule_testing::shape::{self, LARGE, PLAIN};

#[test]
fn members_of_a_group_that_hardware_updated_alone() {
    let group = 0x1_0000;
    let state = |world: &World| {
        let mut found = findings(&world.pages, std::slice::from_ref(&world.tree));
        found.retain(|it| it.rule == Rule::ContiguousState);
        found
    };
    let mut world = clean();
    world.change(2 * group + 5 * PAGE, Level::L3, |word| {
        word & !Descriptor::ACCESS_FLAG
    });
    let found = state(&world);
    assert_eq!(
        (found.len(), found[0].severity),
        (1, Severity::Info),
        "{found:#?}"
    );
    assert_eq!(
        (found[0].address, found[0].bytes),
        (BASE + 2 * group, group)
    );
    assert!(
        found[0]
            .text
            .contains("15 of 16 valid ones have the access flag: a walker"),
        "{}",
        found[0].text
    );
    // The dirty state of all that hardware manages, and one store.
    let mut world = clean();
    let dirty = Descriptor::DIRTY_MODIFIER | Descriptor::AP_READ_ONLY;
    for page in 0..16 {
        world.change(group + page * PAGE, Level::L3, |word| word | dirty);
    }
    assert_eq!(state(&world), []);
    world.change(group, Level::L3, |word| word & !Descriptor::AP_READ_ONLY);
    let found = state(&world);
    assert!(
        found.len() == 1 && found[0].text.contains("15 of 16 valid ones have AP[2]"),
        "{found:#?}"
    );
    // Members that are invalid have no state.
    let mut world = clean();
    world.change(group, Level::L3, |_| 0);
    assert_eq!(state(&world), []);
}

#[test]
fn shareability_that_became_bits_of_the_output() {
    for (size, bits) in [
        (PageSize::K4, 52),
        (PageSize::K16, 52),
        (PageSize::K64, 52),
        (PageSize::K4, 48),
    ] {
        let cpu = if bits == 52 { LARGE } else { PLAIN };
        let shape = cpu.geometry(size, bits, VaRange::Upper);
        let page = size.bytes();
        let mut world = World::at(shape, TABLES, &[(0, TABLES, page, RW, Leaves::PAGES)]);
        is_clean(&world);
        if (size, bits) == (PageSize::K64, 52) || bits == 48 {
            continue;
        }
        world.change(0, Level::L3, |word| word | 0b11 << 8);
        let text = "bits 9:8 are 0b11, which with TCR.DS are bits 51:50 of the output 0xc000090000000; memory is at \
                    0x90000000 and not there";
        is_found(
            &world,
            (Rule::KeptShareability, Severity::Info),
            (0, page),
            text,
        );
        // Memory there makes the address a right one.
        world
            .pages
            .0
            .insert(0xc_0000_9000_0000, vec![0; size.entries()]);
        is_clean(&world);
    }
}

#[test]
fn memory_that_must_not_be_mapped() {
    let world = World::plain(&[
        (0, MEMORY, 4 * PAGE, RW, Leaves::PAGES),
        (
            8 * PAGE,
            MEMORY + 8 * PAGE,
            PAGE,
            Attributes::device(),
            Leaves::PAGES,
        ),
    ]);
    let map = MemoryMap {
        no_map: vec![
            MEMORY + PAGE..MEMORY + 2 * PAGE,
            MEMORY + 3 * PAGE..MEMORY + 20 * PAGE,
        ],
        origin: "a file".into(),
    };
    let options = LintOptions {
        memory_map: Some(map),
        ..LintOptions::default()
    };
    let look = |owner: Owner| {
        let tree = Tree {
            owner,
            ..world.tree.clone()
        };
        lint(&world.pages, &[tree], &options, &mut |_| {})
            .findings
            .list
    };
    let found = look(Owner::Kernel);
    let found: Vec<_> = found
        .iter()
        .map(|it| (it.rule, it.severity, it.address - BASE, it.bytes))
        .collect();
    let expected = [
        (Rule::NoMap, Severity::Warning, PAGE, PAGE),
        (Rule::NoMap, Severity::Warning, 3 * PAGE, PAGE),
        (Rule::NoMap, Severity::Info, 8 * PAGE, PAGE),
    ];
    assert_eq!(found, expected);
    let text = &look(Owner::Kernel)[0].text;
    assert!(
        text.starts_with("0x80001000 to 0x80001fff is no-map memory of a file, and normal-WB here"),
        "{text}"
    );
    // Firmware may map what the kernel must not.
    assert_eq!(look(Owner::Firmware), []);
}

/// A hypervisor whose tables and code stage 2 maps (or not): its table, a page of its code, a table of stage 2.
#[test]
fn a_hypervisor_within_reach_of_its_guest() {
    let code = Attributes::normal(Permissions::READ_EXECUTE);
    let el2 = shape::PLAIN.single(PageSize::K4, 39, Regime::El2);
    let pieces = [
        (0, MEMORY, PAGE, code, Leaves::PAGES),
        (PAGE, MEMORY + PAGE, PAGE, RW, Leaves::PAGES),
    ];
    let hypervisor = World::at(el2, 0xa000_0000, &pieces);
    let (all, read) = (Stage2Permissions::ALL, Stage2Permissions::READ);
    let root = hypervisor.tree.root.0;
    for (output, permissions, expected) in [
        (
            MEMORY,
            all,
            Some((Severity::Error, "0x80000000 is code of hypervisor")),
        ),
        (
            MEMORY,
            read,
            Some((Severity::Warning, "0x80000000 is code of hypervisor")),
        ),
        // What it shares.
        (MEMORY + PAGE, all, None),
        (
            root,
            all,
            Some((Severity::Error, "is a table of hypervisor")),
        ),
        (
            TABLES,
            read,
            Some((Severity::Warning, "0x90000000 is a table of guest of CPU 0")),
        ),
        (MEMORY + 9 * PAGE, all, None),
    ] {
        let attributes = Stage2Attributes::normal(permissions);
        let guest = World::guest(
            shape::stage2()[0],
            &[(5 * PAGE, output, PAGE, attributes, Leaves::PAGES)],
        );
        let pages = Pages(
            guest
                .pages
                .0
                .into_iter()
                .chain(hypervisor.pages.0.clone())
                .collect(),
        );
        let above = Tree {
            owner: Owner::Hypervisor,
            ..hypervisor.tree.clone()
        };
        let mut found = findings(&pages, &[above, guest.tree]);
        found.retain(|it| it.rule == Rule::HypervisorMemory);
        match (expected, found.as_slice()) {
            (None, []) => {}
            (Some((severity, text)), [one]) => {
                assert_eq!(
                    (one.severity, one.address, one.bytes),
                    (severity, 5 * PAGE, PAGE)
                );
                assert!(one.text.contains(text), "{}", one.text);
            }
            other => panic!("{other:#?}"),
        }
    }
}
