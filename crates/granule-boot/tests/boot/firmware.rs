//! Asking firmware what the machine is: only what the answers before allow, at any age of firmware.

use crate::trees::{leaf, peek, tree, virt};
use granule_boot::firmware::soc_id;

const GRACE: u32 = 0x036b_0241;
const NOT_SUPPORTED: u32 = u32::MAX;

/// Function, first argument and the answer of a firmware that has everything, in order.
const ALL: [((u32, u32), u32); 5] = [
    ((0x8400_0000, 0), 0x1_0001),
    ((0x8400_000a, 0x8000_0000), 0),
    ((0x8000_0000, 0), 0x1_0002),
    ((0x8000_0001, 0x8000_0002), 0),
    ((0x8000_0002, 0), GRACE),
];

/// Reads the identity from a firmware with these answers; returns it and the calls that were made.
fn asked(dtb: &[u8], answers: &[((u32, u32), u32)]) -> (Option<u32>, Vec<(u32, u32)>) {
    let psci = peek(dtb).psci.unwrap();
    let mut asked = vec![];
    let soc = soc_id(&psci, |function, argument| {
        asked.push((function, argument));
        let found = answers
            .iter()
            .find(|(call, _)| *call == (function, argument));
        found.unwrap().1
    });
    (soc, asked)
}

#[test]
fn the_identity_is_asked_for_step_by_step() {
    let (soc, calls) = asked(&virt(), &ALL);
    assert_eq!(soc, Some(GRACE));
    assert_eq!(calls, ALL.map(|(call, _)| call));
}

/// After an answer that rules out further functions, none is called: older firmware may take a
/// call that it does not support for an undefined instruction.
#[test]
fn nothing_is_asked_that_may_not_exist() {
    for (step, answer) in [
        (0, 0x0_0002), // PSCI 0.2
        (0, NOT_SUPPORTED),
        (1, NOT_SUPPORTED),
        (2, 0x1_0000), // SMCCC 1.0
        (2, 0x1_0001),
        (2, NOT_SUPPORTED),
        (3, NOT_SUPPORTED),
        (4, NOT_SUPPORTED),
        (4, 0x8000_0000),
    ] {
        let mut answers = ALL;
        answers[step].1 = answer;
        let (soc, calls) = asked(&virt(), &answers);
        assert_eq!((soc, calls.len()), (None, step + 1), "{step} {answer:#x}");
    }
    for (compatible, calls) in [
        (&b"arm,psci\0"[..], 0),
        (b"", 0),
        (b"arm,psci-0.2\0arm,psci\0", 5),
        (b"arm,psci-1.0\0", 5),
    ] {
        let properties = [("compatible", compatible), ("method", &b"smc\0"[..])];
        let dtb = tree(&[], vec![leaf("psci", &properties)]);
        assert_eq!(asked(&dtb, &ALL).1.len(), calls, "{compatible:?}");
    }
}
