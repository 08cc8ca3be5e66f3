//! Rules about several mappings or several trees: the same memory twice, the same table twice.

use crate::lint::{BLOCK, MEMORY, PAGE, clean, findings, is_clean, is_found};
use crate::walk::RW;
use crate::world::World;
use granule::arch::{
    Attributes, Level, MemoryType, PageSize, Permissions, Shareability, Stage2Attributes,
    Stage2Memory, Stage2Permissions, VaRange,
};
use granule::table::Leaves;
use granule_inspect::lint::{Rule, Severity};
use granule_inspect::tree::{Origin, Owner, Tree};
use granule_testing::shape::{self, PLAIN};

#[test]
fn clashing_memory_types_within_a_tree_and_across_trees() {
    let device = Attributes::device();
    let world = World::plain(&[
        (0, MEMORY, 4 * PAGE, RW, Leaves::PAGES),
        (BLOCK, MEMORY + 2 * PAGE, PAGE, device, Leaves::PAGES),
    ]);
    let clash = (Rule::MemoryClash, Severity::Warning);
    let text = "0x80002000 is device-nGnRE OSH here and normal-WB ISH at 0xffffff8000002000 of kernel: \
                stores through one mapping may stay unseen through the other";
    is_found(&world, clash, (BLOCK, PAGE), text);
    // Shareability alone, in another tree.
    let lower = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let outer = Attributes {
        shareability: Shareability::Outer,
        ..RW
    };
    let user = World::at(
        lower,
        0xa000_0000,
        &[(PAGE, MEMORY, PAGE, outer, Leaves::PAGES)],
    );
    let kernel = World::plain(&[(0, MEMORY, 4 * PAGE, RW, Leaves::PAGES)]);
    let mut pages = user.pages.clone();
    pages.0.extend(kernel.pages.0);
    let user = Tree {
        owner: Owner::User(0),
        ..user.tree
    };
    let found = findings(&pages, &[kernel.tree.clone(), user.clone()]);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].rule, Rule::MemoryClash);
    // Of two mappings with one output, the one that begins at the lower address comes first.
    assert!(found[0].text.contains("normal-WB OSH"), "{}", found[0].text);
    // Of a guess shareability is not known, so it clashes with nothing.
    let guess = Tree {
        origin: Origin::Guess,
        ..user.clone()
    };
    assert_eq!(findings(&pages, &[kernel.tree.clone(), guess]), []);
    // Tags are not a clash, and neither is another index for the same type.
    let tagged = Attributes {
        memory: MemoryType::NormalTagged,
        ..RW
    };
    let world = World::plain(&[
        (0, MEMORY, 4 * PAGE, RW, Leaves::PAGES),
        (BLOCK, MEMORY + 2 * PAGE, PAGE, tagged, Leaves::PAGES),
    ]);
    is_clean(&world);
    // The same tree of another CPU is the same tree.
    let again = Tree {
        owner: Owner::User(1),
        ..user.clone()
    };
    assert_eq!(findings(&pages, &[user, again]), []);
}

#[test]
fn a_guest_clashes_too() {
    let geometry = shape::stage2()[1];
    let normal = Stage2Attributes::normal(Stage2Permissions::ALL);
    let device = Stage2Attributes {
        memory: Stage2Memory::Device,
        ..normal
    };
    let world = World::guest(
        geometry,
        &[
            (0, MEMORY, PAGE, normal, Leaves::PAGES),
            (PAGE * 7, MEMORY, PAGE, device, Leaves::PAGES),
        ],
    );
    let clash = (Rule::MemoryClash, Severity::Warning);
    is_found(&world, clash, (PAGE * 7, PAGE), "device-");
}

#[test]
fn a_table_of_two_trees() {
    let one = clean();
    let lower = PLAIN.geometry(PageSize::K4, 39, VaRange::Lower);
    let mut user = World::at(lower, 0xa000_0000, &[]);
    let (table, _) = one.entry(0, Level::L2);
    user.pages.0.extend(one.pages.0.clone());
    let root = user.tree.root.0;
    user.pages.0.get_mut(&root).unwrap()[7] = table | 0b11;
    let tree = Tree {
        owner: Owner::Process {
            pid: 7,
            name: "sh".to_owned(),
        },
        ..user.tree
    };
    let found = findings(&user.pages, &[one.tree, tree]);
    assert!(
        found.iter().all(|it| it.rule == Rule::SharedTable),
        "{found:#?}"
    );
    assert_eq!(found[0].address, 7 << 30);
    assert_eq!(found[0].owner.to_string(), "process 7 (sh)");
}

#[test]
fn writable_aliases_of_text() {
    let text = Attributes::normal(Permissions::READ_EXECUTE);
    for (first, second) in [(text, RW), (RW, text)] {
        let world = World::plain(&[
            (0, MEMORY, 4 * PAGE, first, Leaves::PAGES),
            (BLOCK, MEMORY + PAGE, PAGE, second, Leaves::PAGES),
        ]);
        let writable = if first == RW { PAGE } else { BLOCK };
        let rule = (Rule::WritableText, Severity::Warning);
        let text = "text at 0x80001000, which kernel executes at";
        is_found(&world, rule, (writable, PAGE), text);
    }
    // A program's text is written through the kernel's map of all memory: how it was loaded.
    let user = Attributes::normal(Permissions {
        user: true,
        user_execute: true,
        ..Permissions::READ
    });
    let world = World::plain(&[
        (0, MEMORY, 4 * PAGE, RW, Leaves::PAGES),
        (BLOCK, MEMORY + PAGE, PAGE, user, Leaves::PAGES),
    ]);
    is_clean(&world);
}
