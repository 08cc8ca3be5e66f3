//! A gdb server made by hand, whole and cut off, and QEMU's memory maps. A real QEMU is read by the
//! QEMU tests of `granule-cli`.

use super::*;

fn packet(body: &str) -> String {
    let sum = body.bytes().fold(0_u8, u8::wrapping_add);
    format!("+${body}#{sum:02x}")
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

const MAP: &str = "FlatView #0\n AS \"I/O\", root: io\n  0000000000000000-000000000000ffff (prio 0, ram): io\n\n\
    FlatView #1\n AS \"memory\", root: system\n AS \"cpu-memory-0\", root: system\n Root memory region: system\n  \
    0000000000000000-0000000003ffffff (prio 0, romd): virt.flash0\n  \
    0000000009000000-0000000009000fff (prio 0, i/o): pl011\n  \
    0000000040000000-0000000040000fff (prio 0, ram): ram\n  \
    0000000040001000-000000005fffffff (prio 0, ram): ram @0000000000001000\n\n\
    FlatView #2\n AS \"cpu-secure-memory-0\", root: all\n  \
    0000000000000000-0000000003ffffff (prio 0, romd): virt.flash0\n  \
    000000000e000000-000000000effffff (prio 0, ram): virt.secure-ram\n";

/// The answers of a QEMU with one CPU until its first memory is read.
fn script() -> String {
    let core = "<reg name=\"x0\" bitsize=\"64\"/><reg name=\"pc\" bitsize=\"64\"/>";
    let system =
        "<reg name=\"TCR_EL1\" bitsize=\"64\" regnum=\"90\"/><reg name=\"VBAR\" bitsize=\"64\"/>";
    [
        "T05thread:01;".into(),
        "PacketSize=1000".into(),
        "l<target><xi:include href=\"core.xml\"/><xi:include href=\"system.xml\"/></target>".into(),
        format!("l{core}"),
        format!("m{}", &system[..10]),
        format!("l{}", &system[10..]),
        "m01".into(),
        "l".into(),
        "OK".into(),
        "3412000000000000".into(),
        "efcdab8967452301".into(),
        "0008000000000000".into(),
        "OK".into(),
        format!("O{}", hex(&MAP[..100])),
        format!("O{}", hex(&MAP[100..])),
        "OK".into(),
        "11".repeat(MOST_MEMORY),
        "22".repeat(MOST_MEMORY),
    ]
    .iter()
    .map(|body: &String| packet(body))
    .collect()
}

fn machine(script: &str) -> Answer<(Machine<Script<'_>>, Facts)> {
    Machine::new(Gdb::new(Script(script.as_bytes())))
}

#[test]
fn registers_and_memory() {
    let script = script();
    let (machine, facts) = machine(&script).unwrap();
    assert_eq!(facts.cpus[0].get("pc"), Some(0x1234));
    assert_eq!(facts.cpus[0].get("tcr_el1"), Some(0x0123_4567_89ab_cdef));
    assert_eq!(facts.cpus[0].get("vbar_el1"), Some(0x800));
    assert_eq!(machine.ranges, [0..0x400_0000, 0x4000_0000..0x6000_0000]);
    let mut bytes = [0; 4];
    // Once from the server, and again from the cache: the server has no more answers.
    for _ in 0..2 {
        let middle = PhysicalAddress(0x4000_0000 + MOST_MEMORY as u64 - 2);
        machine.read(middle, &mut bytes).unwrap();
        assert_eq!(bytes, [0x11, 0x11, 0x22, 0x22]);
    }
    // A device is never read.
    let absent = machine
        .read(PhysicalAddress(0x900_0000), &mut bytes)
        .unwrap_err();
    assert_eq!(absent.to_string(), "no memory at 0x9000000");
    // The tables of firmware are in memory that another address space has.
    let secure = machine
        .read(PhysicalAddress(0xe00_0000), &mut bytes)
        .unwrap_err();
    assert!(
        secure
            .to_string()
            .starts_with("the memory at 0xe000000 is secure RAM"),
        "{secure}"
    );
    let gone = machine
        .read(PhysicalAddress(0x4100_0000), &mut bytes)
        .unwrap_err();
    assert!(
        gone.to_string().contains("the connection was closed"),
        "{gone}"
    );
}

#[test]
fn a_server_that_stops_anywhere_is_an_error() {
    let whole = script();
    let needed = whole.len() - 2 * packet(&"11".repeat(MOST_MEMORY)).len();
    for end in 0..whole.len() {
        assert_eq!(machine(&whole[..end]).is_ok(), end >= needed, "{end}");
    }
}

#[test]
fn missing_answers_of_qemu_are_reported() {
    for (from, to, words) in [
        ("TCR_EL1", "TCR_EL9", "no system registers of arm64"),
        ("3412000000000000", "E00", ""),
    ] {
        let mut answers = String::new();
        for body in script().split("+$").skip(1) {
            let body = body.rsplit_once('#').unwrap().0.replace(from, to);
            answers.push_str(&packet(&body));
        }
        match machine(&answers) {
            Ok((_, facts)) => assert_eq!((facts.cpus[0].get("pc"), words), (None, "")),
            Err(error) => assert!(error.contains(words) && !words.is_empty(), "{error}"),
        }
    }
}

#[test]
fn memory_maps() {
    let line = |text: &str| memory_range(text);
    let range = 0x4000_0000..0x4000_1000;
    let ram = "  0000000040000000-0000000040000fff (prio 0, ram): ram";
    assert_eq!(line(ram), Some(range));
    for other in [
        "0000000040000000-0000000040000fff (prio 0, i/o): pl011",
        "0000000040000fff-0000000040000000 (prio 0, ram): ram",
        "0000000000000000-ffffffffffffffff (prio 0, ram): all",
        "x-y (prio 0, ram): ram",
        " AS \"memory\", root: system",
    ] {
        assert_eq!(line(other), None, "{other}");
    }
    let unordered = format!("FlatView #0\n AS \"memory\"\n{ram}\n{ram}\n");
    assert_eq!(memory_map(&unordered, &["cpu-memory-0", "memory"]).len(), 1);
}
