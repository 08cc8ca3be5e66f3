//! ACPI's tables: the nodes that they become, and tables that lie.

use super::machine::{
    MAP, MIB, Machine, PAGE, TABLES, bare, expanded, expanded_into, machine, memory, notes,
    numbers, tables, usual, value,
};
use dtoolkit::Node as _;
use dtoolkit::fdt::Fdt;
use granule_boot::acpi::Fault;
use granule_boot::expand::{ExpandError, Note};
use granule_boot::words::Acpi;
use granule_testing::firmware as firm;

#[test]
fn a_machine_without_a_tree_is_described_by_its_tables() {
    let machine = machine(&usual(), &tables());
    let (bytes, made) = expanded(&machine, &bare(&machine), None).unwrap();
    assert!(made.is_acpi);
    assert_eq!(notes(&made), []);
    let tree = Fdt::new(&bytes).unwrap();
    let domain = |domain: u8| Some(vec![0, 0, 0, domain]);
    assert_eq!(
        memory(&tree),
        [
            (0x4000_0000, 0x2000_0000, domain(0)),
            (0x6000_0000, 0x1080_0000, domain(5)),
            (0x70a0_0000, 0x7f10_0000 - 0x70a0_0000, domain(5)),
            (0x7f30_0000, 0xd0_0000, domain(5)),
        ]
    );
    let reserved: Vec<_> = tree
        .memory_reservations()
        .map(|it| (it.address(), it.size()))
        .collect();
    let map = (MAP, machine.map.len() as u64);
    assert_eq!(reserved, [map, (TABLES, MIB)]);
    let at = |path: &str| tree.find_node(path).unwrap_or_else(|| panic!("{path}"));
    for (path, start, bytes) in [
        ("efi-runtime@70800000", 0x7080_0000, MIB),
        ("efi-runtime@70900000", 0x7090_0000, MIB),
    ] {
        let node = at(&format!("/reserved-memory/{path}"));
        assert_eq!(numbers(&value(&node, "reg").unwrap()), [start, bytes]);
        assert!(node.property("no-map").is_some());
    }
    // A device is not memory: its node would forbid to map it, and it may be the console.
    assert_eq!(at("/reserved-memory").children().count(), 2);
    let text = |path: &str, name: &str| value(&at(path), name).unwrap();
    assert_eq!(text("/chosen", "bootargs"), b"words\0");
    assert_eq!(text("/chosen", "stdout-path"), b"/serial@9000000\0");
    assert_eq!(
        text("/serial@9000000", "compatible"),
        b"arm,pl011\0arm,primecell\0"
    );
    assert_eq!(text("/psci", "method"), b"hvc\0");
    let cpus: Vec<_> = at("/cpus")
        .children()
        .map(|cpu| {
            assert_eq!(value(&cpu, "enable-method").unwrap(), b"psci\0");
            assert_eq!(value(&cpu, "device_type").unwrap(), b"cpu\0");
            let domain = value(&cpu, "numa-node-id");
            (numbers(&value(&cpu, "reg").unwrap())[0], domain)
        })
        .collect();
    assert_eq!(
        cpus,
        [(0, domain(0)), (1, None), (0x1_0000_0203, domain(5))]
    );
    let gic = at("/interrupt-controller@8000000");
    assert_eq!(value(&gic, "compatible").unwrap(), b"arm,gic-v3\0");
    assert_eq!(
        numbers(&value(&gic, "reg").unwrap()),
        [0x800_0000, 0x1_0000, 0x80a_0000, 0xf6_0000]
    );
    let cells: Vec<_> = text("/timer", "interrupts")
        .as_chunks()
        .0
        .iter()
        .map(|it| u32::from_be_bytes(*it))
        .collect();
    assert_eq!(cells, [1, 13, 4, 1, 14, 4, 1, 11, 8, 1, 10, 1]);
}

/// Each of a machine's tables with a fault: it is reported, and the rest is used.
#[test]
fn a_malformed_table_is_reported_and_costs_that_table_alone() {
    let broken = |place: usize, at: usize, xor: u8| {
        let mut tables = tables();
        tables[place][at] ^= xor;
        tables
    };
    let summed = |place: usize, at: usize, value: &[u8]| {
        let mut tables = tables();
        tables[place][at..at + value.len()].copy_from_slice(value);
        firm::sum_up(&mut tables[place], 9);
        tables
    };
    let fault = |tables: &[Vec<u8>]| {
        let machine = machine(&usual(), tables);
        let (bytes, made) = expanded(&machine, &bare(&machine), None).unwrap();
        let all = notes(&made);
        let tree = Fdt::new(&bytes).unwrap();
        let has = |path: &str| tree.find_node(path).is_some();
        let parts = [
            has("/cpus/cpu@1"),
            has("/timer"),
            has("/psci"),
            has("/serial@9000000"),
        ];
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        (all.join("; "), parts)
    };
    let no_cpus = [false; 4];
    for (tables, words, parts) in [
        (broken(1, 50, 1), "APIC has a wrong checksum", no_cpus),
        (broken(1, 0, 1), "APIC is missing", no_cpus),
        (summed(1, 4, &[0; 4]), "APIC is too short", no_cpus),
        (summed(1, 4, &[0xff; 4]), "APIC is too short", no_cpus),
        // Behind the memory that firmware lists.
        (
            summed(1, 4, &[0, 0, 8, 0]),
            "APIC does not lie in memory",
            no_cpus,
        ),
        // An entry without a length ends the list; here at the third.
        (
            summed(1, 44 + 24 + 80 + 1, &[0]),
            "APIC has an entry",
            [false, true, true, true],
        ),
        (
            summed(1, 44 + 24 + 80 + 80 + 1, &[1]),
            "APIC has an entry",
            [true; 4],
        ),
        (
            broken(2, 50, 1),
            "GTDT has a wrong checksum",
            [true, false, true, true],
        ),
        (
            summed(0, 129, &[0]),
            "FACP has no PSCI",
            [true, true, false, true],
        ),
        (
            broken(0, 40, 1),
            "FACP has a wrong checksum",
            [true, true, false, true],
        ),
        (
            summed(3, 36, &[9]),
            "SPCR has a console of an unknown kind",
            [true, true, true, false],
        ),
        (
            summed(3, 40, &[1]),
            "SPCR has a console of an unknown kind",
            [true, true, true, false],
        ),
        (broken(4, 60, 1), "SRAT has a wrong checksum", [true; 4]),
        (tables()[..1].to_vec(), "APIC is missing", no_cpus),
    ] {
        let (reported, found) = fault(&tables);
        assert!(reported.contains(words), "{reported:?} for {words}");
        assert_eq!(found, parts, "{words}");
    }
    let mut twice = tables();
    twice.extend(tables());
    assert_eq!(fault(&twice), (String::new(), [true; 4]));
}

#[test]
fn a_root_that_lies_leaves_the_memory_alone() {
    let wrong = |damage: &dyn Fn(&mut Machine, u64, u64)| {
        let mut made = machine(&usual(), &[]);
        let pointer = made.memory.put(&[]);
        let list = firm::xsdt(&[pointer + 64, pointer + 64, 0, u64::MAX, 8]);
        let rsdp = made.memory.put(&firm::rsdp(pointer + 64));
        made.memory
            .bytes
            .resize((pointer + 64 - TABLES) as usize, 0);
        assert_eq!(made.memory.put(&list), pointer + 64);
        made.system = firm::system(&mut made.memory, &[(firm::ACPI_20, rsdp)]);
        let at = (rsdp - TABLES, pointer + 64 - TABLES);
        damage(&mut made, at.0, at.1);
        let tree = bare(&made);
        assert!(matches!(
            expanded(&made, &tree, Some(Acpi::Force)),
            Err(ExpandError::Acpi(_))
        ));
        let (bytes, expanded) = expanded(&made, &tree, None).unwrap();
        assert!(!expanded.is_acpi);
        assert_eq!(memory(&Fdt::new(&bytes).unwrap()).len(), 3);
        notes(&expanded)
    };
    let fault = |notes: Vec<Note>| match notes[..] {
        [Note::Acpi(error)] => (error.table, error.fault),
        _ => panic!("{notes:?}"),
    };
    // The list names itself, twice, and addresses that hold no table.
    assert_eq!(fault(wrong(&|_, _, _| {})), (*b"APIC", Fault::Unlisted));
    let byte = |at: u64, value: u8| {
        fault(wrong(&move |machine, rsdp, _| {
            machine.memory.bytes[(rsdp + at) as usize] = value;
        }))
    };
    assert_eq!(byte(0, b'X'), (*b"RSDP", Fault::Signature));
    assert_eq!(byte(15, 1), (*b"RSDP", Fault::Revision));
    assert_eq!(byte(20, 35), (*b"RSDP", Fault::Length));
    assert_eq!(byte(10, 1), (*b"RSDP", Fault::Checksum));
    assert_eq!(byte(33, 1), (*b"RSDP", Fault::Checksum));
    assert_eq!(
        fault(wrong(&|machine, _, list| {
            machine.memory.bytes[list as usize + 12] ^= 1;
        })),
        (*b"XSDT", Fault::Checksum)
    );
    assert_eq!(
        wrong(&|machine, _, _| machine.system = 8)[0].to_string(),
        "the EFI system table does not lie in memory of the EFI memory map; not read"
    );
    let none = wrong(&|machine, _, _| {
        let at = (machine.system - TABLES) as usize;
        machine.memory.bytes[at + 104..at + 112].copy_from_slice(&u64::MAX.to_le_bytes());
    });
    assert!(none[0].to_string().contains("1024 at most"), "{none:?}");
}

#[test]
fn controllers_and_consoles_of_each_kind_have_their_binding() {
    let made = |madt: &[Vec<u8>], spcr: Vec<u8>| {
        let machine = machine(&usual(), &[firm::madt(madt), spcr]);
        let (bytes, _) = expanded(&machine, &bare(&machine), None).unwrap();
        bytes
    };
    let gic = |madt: &[Vec<u8>]| {
        let bytes = made(madt, firm::spcr(3, 32, 3, 0x900_0000));
        let tree = Fdt::new(&bytes).unwrap();
        let node = tree.find_node("/interrupt-controller@8000000");
        node.map(|node| {
            let kind = value(&node, "compatible").unwrap();
            (kind, numbers(&value(&node, "reg").unwrap()))
        })
    };
    let v2 = |reg: &[u64]| Some((b"arm,gic-400\0".to_vec(), reg.to_vec()));
    let v3 = |reg: &[u64]| Some((b"arm,gic-v3\0".to_vec(), reg.to_vec()));
    let cpu = |mpidr, interface, redistributor| firm::gicc(0, mpidr, 1, interface, redistributor);
    let reg_2 = [0x800_0000, 0x1000, 0x801_0000, 0x2000];
    for version in [0, 1, 2] {
        let madt = [firm::gicd(0x800_0000, version), cpu(0, 0x801_0000, 0)];
        assert_eq!(gic(&madt), v2(&reg_2), "{version}");
    }
    for (version, step) in [(0, 0x2_0000), (3, 0x2_0000), (4, 0x4_0000)] {
        let madt = [
            cpu(1, 0, 0x80a_0000 + step),
            cpu(0, 0, 0x80a_0000),
            cpu(2, 0, 0x900_0000),
            firm::gicd(0x800_0000, version),
        ];
        let reg = [0x800_0000, 0x1_0000, 0x80a_0000, 2 * step, 0x900_0000, step];
        assert_eq!(gic(&madt), v3(&reg), "{version}");
    }
    assert_eq!(gic(&[cpu(0, 0x801_0000, 0)]), None);
    assert_eq!(gic(&[firm::gicd(0x800_0000, 2), cpu(0, 0, 0)]), None);
    assert_eq!(
        gic(&[firm::gicd(0x800_0000, 3), cpu(0, 0x801_0000, 0)]),
        None
    );
    for (kind, width, access, compatible, shape) in [
        (0xe, 32, 3, &b"arm,sbsa-uart\0"[..], None),
        (0xd, 32, 3, b"arm,sbsa-uart\0", None),
        (0x10, 32, 3, b"brcm,bcm2835-aux-uart\0", None),
        (0, 8, 1, b"ns16550a\0ns16550\0", Some([0, 1])),
        (0x12, 32, 3, b"ns16550a\0ns16550\0", Some([2, 4])),
        (0x12, 32, 0, b"ns16550a\0ns16550\0", Some([2, 4])),
        (0x12, 32, 1, b"ns16550a\0ns16550\0", Some([2, 1])),
    ] {
        let bytes = made(&[], firm::spcr(kind, width, access, 0xfe21_5040));
        let tree = Fdt::new(&bytes).unwrap();
        let node = tree.find_node("/serial@fe215040").unwrap();
        assert_eq!(value(&node, "compatible").unwrap(), compatible);
        let cell = |name| value(&node, name).map(|it| it[3]);
        let found = cell("reg-shift").zip(cell("reg-io-width"));
        assert_eq!(found.map(|(shift, width)| [shift, width]), shape);
    }
}

/// The CPUs of the tree: how many, and how many have a NUMA node.
fn cpus(bytes: &[u8]) -> (usize, usize) {
    let tree = Fdt::new(bytes).unwrap();
    let all = tree.find_node("/cpus").unwrap();
    let near = all
        .children()
        .filter(|cpu| cpu.property("numa-node-id").is_some());
    (all.children().count(), near.count())
}

/// More CPUs than a tree has room for: the first come up, and one line reports the rest.
#[test]
fn of_too_many_cpus_the_first_are_described() {
    let made = |count: u32| {
        let mut madt = vec![firm::gicd(0x800_0000, 3), firm::gicr(0x80a_0000, 0xf6_0000)];
        madt.extend((0..count).map(|uid| firm::gicc(uid, uid.into(), 1, 0, 0)));
        let machine = machine(&usual(), &[firm::madt(&madt), firm::fadt(3)]);
        let mut into = vec![0; 512 << 10];
        let made = expanded_into(&machine, &bare(&machine), None, &mut into).unwrap();
        into.truncate(made.bytes);
        let tree = Fdt::new(&into).unwrap();
        assert!(tree.find_node("/interrupt-controller@8000000").is_some());
        assert!(tree.find_node("/psci").is_some());
        let of_cpus = |note: &Note| matches!(note, Note::Cpus(_));
        (
            cpus(&into).0,
            made.notes.iter().filter(of_cpus).collect::<Vec<_>>(),
        )
    };
    assert_eq!(made(2048), (2048, vec![]));
    assert_eq!(made(2049), (2048, vec![Note::Cpus(2049)]));
    assert_eq!(made(13_000), (2048, vec![Note::Cpus(13_000)]));
}

/// The NUMA nodes of a thousand CPUs, in any order, and of CPUs that a huge table does not name.
#[test]
fn looking_cpus_up_ends() {
    let uids: Vec<u32> = (0..1024).collect();
    let gicc = |uid: &u32| firm::gicc(*uid, u64::from(*uid), 1, 0, 0);
    let madt = firm::madt(&uids.iter().map(gicc).collect::<Vec<_>>());
    let made = |near: &[Vec<u8>]| {
        let machine = machine(&usual(), &[madt.clone(), firm::srat(near)]);
        let (bytes, made) = expanded(&machine, &bare(&machine), None).unwrap();
        let is_cut = made.notes.iter().any(|note| note == Note::Near);
        (cpus(&bytes), is_cut)
    };
    let near = |uid: &u32| firm::near_cpu(*uid, uid % 4);
    let forward: Vec<_> = uids.iter().map(near).collect();
    let backward: Vec<_> = uids.iter().rev().map(near).collect();
    assert_eq!(made(&forward), ((1024, 1024), false));
    assert_eq!(made(&backward), ((1024, 1024), false));
    let others: Vec<_> = (0..58_000).map(|_| firm::near_cpu(9999, 1)).collect();
    let all = [forward, others].concat();
    // The first thousand, and no second look for those that are not there.
    assert_eq!(made(&all[..1023]), ((1024, 1023), false));
    assert_eq!(made(&all[1024..]), ((1024, 0), true));
}

/// Memory in more places than get nodes of their own is described all the same.
#[test]
fn a_tree_has_room_for_memory_that_is_near_many_things() {
    let near = |page: u64| firm::near_memory(0x4000_0000 + page * PAGE, PAGE, page as u32 % 4);
    let all: Vec<_> = (0..5000).map(near).collect();
    let machine = machine(&usual(), &[firm::madt(&[]), firm::srat(&all)]);
    let (bytes, made) = expanded(&machine, &bare(&machine), None).unwrap();
    let tree = Fdt::new(&bytes).unwrap();
    let ram = memory(&tree);
    let sum: u64 = ram.iter().map(|(_, bytes, _)| bytes).sum();
    let usual = 0x3080_0000 + (0x7f10_0000 - 0x70a0_0000) + 0xd0_0000;
    assert_eq!(
        (sum, made.notes.iter().any(|note| note == Note::Near)),
        (usual, true)
    );
    assert_eq!(
        ram.iter().filter(|(_, _, domain)| domain.is_some()).count(),
        256
    );
}

#[test]
fn redistributors_that_cannot_be_described_are_reported() {
    let apart = |count: u64| {
        let mut madt = vec![firm::gicd(0x800_0000, 3)];
        madt.extend((0..count).map(|place| firm::gicr(0x80a_0000 + (place << 20), 0x2_0000)));
        let machine = machine(&usual(), &[firm::madt(&madt)]);
        let (bytes, made) = expanded(&machine, &bare(&machine), None).unwrap();
        let tree = Fdt::new(&bytes).unwrap();
        let gic = tree.find_node("/interrupt-controller@8000000").unwrap();
        let regions = numbers(&value(&gic, "reg").unwrap()).len() / 2 - 1;
        let of_the_gic = |note: &Note| matches!(note, Note::NoGic | Note::Redistributors(_));
        (
            regions,
            made.notes.iter().filter(of_the_gic).collect::<Vec<_>>(),
        )
    };
    assert_eq!(apart(32), (32, vec![]));
    let first = 0x80a_0000 + (32 << 20);
    assert_eq!(apart(33), (32, vec![Note::Redistributors(first)]));
}
