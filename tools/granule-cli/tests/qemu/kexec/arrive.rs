//! The arrival of the next kernel: the facts that it gets, its own checks, and the cost of the way.

use granule_cli::{Outcome, PageSize};

use crate::kexec::chain::{HopRecord, How, goes_through, machine, number, records};
use crate::kexec::machine::{NEXT, archive, ends};

/// Instructions between two counts, under `-icount shift=0`, where one is a nanosecond.
fn between(recorded: &HopRecord, from: &str, to: &str) -> u64 {
    let at = |key: &str| number(recorded, &format!("kexec.count.{key}"));
    (at(to) - at(from)) * (1_000_000_000 / at("hz"))
}

/// Fewer than Linux takes from `machine_kexec` to `paging_init`.
const MOST_INSTRUCTIONS: u64 = 28_000_000;

#[test]
fn the_way_takes_few_instructions() {
    let [k4, k16, k64] = PageSize::ALL;
    for (copy, sizes) in [(false, [k4, k64, k16, k4]), (true, [k64, k4, k16, k64])] {
        let how = How {
            copy,
            uncached: false,
        };
        let request = machine(1, 2, 3, "neoverse-n1").counted();
        // This CPU has 16K pages, too.
        let recorded = goes_through(&sizes, &request, how, "");
        for one in &recorded[1..] {
            let all = between(one, "call", "console");
            let relocation = between(one, "leave", "entry");
            let get = |key: &str| number(one, &format!("kexec.{key}"));
            let (copied, lines) = (get("bytes_copied"), get("lines_cleaned"));
            println!("{all} in all, {relocation} for {copied} bytes and {lines} lines");
            assert!(all < MOST_INSTRUCTIONS, "{all}");
            if copy {
                // The yardstick: 9.5 for 64 bytes and one for cleaning them; 2.5 for a line that is cleaned
                // and not copied (zeros behind the image's bytes).
                let both = copied / 64;
                let yardstick = copied * 95 / 640 + both + lines.saturating_sub(both) * 5 / 2;
                assert!(
                    relocation * 10 <= yardstick * 11,
                    "{relocation}, {yardstick}"
                );
            } else {
                // Nothing is copied, and what must be clean was cleaned when it was loaded: what is left
                // are the switches of tables, and turning the MMU off.
                assert_eq!((copied, lines), (0, 0));
                assert!(relocation < 500, "{relocation}");
            }
        }
    }
}

#[test]
fn digests_are_made_only_on_request() {
    let lines = format!("load {NEXT} --initrd /etc/kexec --append quiet\nexec\n");
    let ran = ends(&machine(1, 1, 3, "max"), archive(&lines), Outcome::Ok);
    let recorded = records(&ran);
    assert_eq!(
        number(&recorded[1], "kexec.segment.initrd.bytes"),
        lines.len() as u64
    );
    let arrived = recorded[1]
        .keys()
        .find(|key| key.starts_with("kexec.arrived"));
    assert_eq!(arrived, None);
}
