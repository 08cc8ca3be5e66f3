//! One address explained: every way in which a walk can end.

use crate::walk::RW;
use crate::world::{BASE, TABLES, World};
use granule::arch::{
    Attributes, Descriptor, Level, OutputSpace, PageSize, Permissions, PhysicalAddress, Regime,
    Stage2Attributes, Stage2Permissions,
};
use granule::table::Leaves;
use granule_inspect::explain::{End, explain};
use granule_inspect::walk::Tables;
use granule_testing::shape;

const MEMORY: u64 = 0x8000_0000;

fn world() -> World {
    World::plain(&[
        (0x1000, MEMORY + 0x1000, 0x2000, RW, Leaves::PAGES),
        (1 << 30, 1 << 30, 1 << 30, RW, Leaves::LARGEST),
    ])
}

fn end(world: &World, offset: u64) -> End {
    let tables = Tables::new(&world.pages, &world.tree);
    explain(&tables, &world.tree, BASE.wrapping_add(offset)).end
}

#[test]
fn every_level_is_described_in_words() {
    let mut world = world();
    world.change(0, Level::L2, |word| word | 1 << 62 | 1 << 59 | 1 << 50);
    world.change(0x1000, Level::L3, |word| word | 1 << 51 | 1 << 55 | 1 << 52);
    let tables = Tables::new(&world.pages, &world.tree);
    let explained = explain(&tables, &world.tree, BASE + 0x1234).to_string();
    let (first, second, third) = (
        world.entry(0, Level::L1).0,
        world.entry(0, Level::L2).0,
        world.entry(0, Level::L3).0,
    );
    let expected = format!(
        "0xffffff8000001234
  level  1  table {first:#x}  entry 0  {:#018x}  table at {second:#x}
  level  2  table {second:#x}  entry 0  {:#018x}  table at {third:#x}: no stores below (APTable[1]), \
no execution by the privileged level below (PXNTable), reserved bits 0x4000000000000 set
  level  3  table {third:#x}  entry 1  0x00f8000080001703  4K page at 0x80001000: RW PXN UXN AF ISH DBM \
normal-WB contiguous software=0x1
  translated to 0x80001234; permission fault for: stores, loads and stores of EL0, execution by the privileged level, execution at EL0
",
        second | 3,
        third | 3 | 1 << 62 | 1 << 59 | 1 << 50,
    );
    assert_eq!(explained, expected);
}

#[test]
fn the_output_space_of_firmware_is_named() {
    use OutputSpace::{NonSecure, Realm, Root, Unmarked};
    for (regime, space, words) in [
        (Regime::El3, Unmarked, ""),
        (Regime::El3, NonSecure, " Non-secure output (NS)"),
        (Regime::El3, Root, " Root output (NSE)"),
        (Regime::El3, Realm, " Realm output (NSE, NS)"),
        (Regime::El2, NonSecure, " Non-secure output (NS)"),
    ] {
        let geometry = shape::PLAIN.single(PageSize::K4, 39, regime);
        let leaf = Attributes {
            output_space: space,
            ..RW
        };
        let world = World::at(
            geometry,
            TABLES,
            &[(0, MEMORY, 0x1000, leaf, Leaves::PAGES)],
        );
        let tables = Tables::new(&world.pages, &world.tree);
        let explained = explain(&tables, &world.tree, 0).to_string();
        let line = format!("RW XN AF ISH normal-WB{words}\n");
        assert!(explained.contains(&line), "{explained}");
    }
}

#[test]
fn a_tag_is_ignored_as_the_registers_say() {
    let mut world = world();
    let tagged = 0x5aff_ff80_0000_1234;
    for (tags, words) in [
        (Some(true), "translated to 0x80001234; "),
        (None, "translated to 0x80001234; "),
        (
            Some(false),
            "outside: these tables translate 0xffffff8000000000 to 0xffffffffffffffff, without a tag",
        ),
    ] {
        world.tree.tags = tags;
        let tables = Tables::new(&world.pages, &world.tree);
        let explained = explain(&tables, &world.tree, tagged);
        let end = explained.end_in_words();
        assert!(end.starts_with(words), "{end}");
        let tag = end.split_once("the tag ").map(|(_, words)| words);
        let expected = match tags {
            Some(true) => Some("0x5a in bits 63:56 is ignored by TCR.TBI"),
            Some(false) => None,
            None => Some("0x5a in bits 63:56 is ignored if TCR has TBI, which is not known"),
        };
        assert_eq!(tag, expected, "{end}");
        assert!(
            !explain(&tables, &world.tree, BASE + 0x1234)
                .end_in_words()
                .contains("tag")
        );
    }
}

#[test]
fn every_end_is_distinguished() {
    let mut world = world();
    let (first, last) = (BASE, u64::MAX);
    assert_eq!(
        end(&world, 1 << 39),
        End::Outside {
            first,
            last,
            tags: None
        }
    );
    assert!(
        matches!(end(&world, 0), End::Translation { level: Level::L3, why } if why.contains("bit 0"))
    );
    assert!(matches!(
        end(&world, 5 << 30),
        End::Translation {
            level: Level::L1,
            ..
        }
    ));
    let block = (1 << 30) + 0x12_3456;
    assert!(matches!(
        end(&world, block),
        End::Output {
            output: PhysicalAddress(0x4012_3456),
            ..
        }
    ));
    world.change(0x1000, Level::L3, |word| word & !Descriptor::ACCESS_FLAG);
    let output = PhysicalAddress(MEMORY + 0x1000);
    assert_eq!(
        end(&world, 0x1000),
        End::AccessFlag {
            level: Level::L3,
            output
        }
    );
    world.change(0x2000, Level::L3, |word| word & !0b10);
    assert!(matches!(end(&world, 0x2000), End::Translation { why, .. } if why.contains("0b01")));
    world.change(0x2000, Level::L3, |word| {
        word & !Descriptor::VALID | Descriptor::PRESENT_INVALID
    });
    assert!(matches!(end(&world, 0x2000), End::Translation { why, .. } if why.contains("present")));
    // A CPU walks a table that leads to itself.
    let root = world.tree.root.0;
    world.change(2 << 30, Level::L1, |_| root | 0b11);
    assert!(matches!(
        end(&world, (2 << 30) + (1 << 21)),
        End::Output { .. }
            | End::AccessFlag { .. }
            | End::Translation {
                level: Level::L3,
                ..
            }
    ));
    let (table, _) = world.entry(0, Level::L3);
    world.pages.0.remove(&table);
    assert_eq!(
        end(&world, 0x1000),
        End::Unreadable {
            table: PhysicalAddress(table),
            level: Level::L3
        }
    );
}

#[test]
fn an_address_beyond_the_output_size_faults_at_its_level() {
    let small = shape::Cpu {
        parange: 2,
        ..shape::PLAIN
    };
    let geometry = small.geometry(PageSize::K4, 39, granule::arch::VaRange::Upper);
    let mut world = World::at(geometry, TABLES, &[(0, MEMORY, 0x1000, RW, Leaves::PAGES)]);
    world.change(0, Level::L2, |word| word | 1 << 40);
    assert_eq!(
        end(&world, 0),
        End::AddressSize {
            level: Level::L2,
            bits: 40,
            field: "TCR.IPS"
        }
    );
}

#[test]
fn privileges_are_distinguished() {
    let faults_of = |permissions| {
        let piece = (
            0,
            MEMORY,
            0x1000,
            Attributes::normal(permissions),
            Leaves::PAGES,
        );
        match end(&World::plain(&[piece]), 0) {
            End::Output { faults, .. } => faults.join("; "),
            other => panic!("{other:?}"),
        }
    };
    let all = Permissions {
        user: true,
        user_execute: true,
        privileged_execute: true,
        ..Permissions::READ_WRITE
    };
    // What EL0 may write, EL1 never executes.
    assert_eq!(faults_of(all), "execution by the privileged level");
    let read = Permissions {
        writable: false,
        ..all
    };
    assert_eq!(faults_of(read), "stores");
    let clean = Permissions {
        dirty_modifier: true,
        ..read
    };
    let managed = "stores (unless hardware manages the dirty state, which DBM enables)";
    assert_eq!(faults_of(clean), managed);
    let kernel = "stores; loads and stores of EL0; execution at EL0";
    assert_eq!(faults_of(Permissions::READ_EXECUTE), kernel);
    let nothing = Stage2Permissions {
        readable: false,
        ..Stage2Permissions::READ
    };
    let geometry = shape::stage2()[0];
    let none = Stage2Attributes::normal(nothing);
    let world = World::guest(geometry, &[(0, MEMORY, 0x1000, none, Leaves::PAGES)]);
    let tables = Tables::new(&world.pages, &world.tree);
    let text = explain(&tables, &world.tree, 0).to_string();
    assert!(
        text.contains("loads of the guest, stores of the guest, execution by the guest"),
        "{text}"
    );
}

/// The walk of one address agrees with the walk of all, for every shape and in every root table.
#[test]
fn it_agrees_with_the_ranges() {
    for geometry in shape::stage2() {
        let page = geometry.shape().page_size().bytes();
        let all = Stage2Attributes::normal(Stage2Permissions::ALL);
        let at = (1 << geometry.shape().va_bits()) - 3 * page;
        let world = World::guest(geometry, &[(at, MEMORY, 2 * page, all, Leaves::PAGES)]);
        let tables = Tables::new(&world.pages, &world.tree);
        let found = explain(&tables, &world.tree, at + page + 8).end;
        assert!(
            matches!(found, End::Output { output, .. } if output.0 == MEMORY + page + 8),
            "{geometry:?}: {found:?}"
        );
        assert!(matches!(
            explain(&tables, &world.tree, at - 8).end,
            End::Translation { .. }
        ));
    }
}
