//! What is loaded, where it lies, and how it is listed, replaced and unloaded.

use granule_cli::{Outcome, Request};

use crate::machine::{NEXT, Ran, SIZES, archive, ends, machine};

/// A line of `/sys/kernel/kexec_segments`: name, start, bytes, memory, bytes in place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    name: String,
    start: u64,
    bytes: u64,
    memory: u64,
    in_place: u64,
}

/// What the first listing behind a line of its own says.
fn listed(console: &str) -> Vec<Segment> {
    console
        .lines()
        .skip_while(|line| !line.starts_with("kexec_loaded"))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            ["kernel", "initrd", "tree"].contains(&name).then_some(())?;
            let start = words.next()?.strip_prefix("0x")?;
            let mut number = || words.next()?.parse().ok();
            Some(Segment {
                name: name.into(),
                start: u64::from_str_radix(start, 16).ok()?,
                bytes: number()?,
                memory: number()?,
                in_place: number()?,
            })
        })
        .collect()
}

#[test]
fn try_it() {
    let lines = format!("load {NEXT} --initrd /etc/kexec --append quiet\nstatus\nunload\nstatus\n");
    for size in SIZES {
        let ran = ends(&machine(size, 1), archive(&lines), Outcome::Ok);
        println!("{}", ran.console);
        println!("{:?}", listed(&ran.console));
    }
}
