//! The example is run, and says what it is an example of.

#![allow(dead_code, reason = "its `main` only prints")]

#[path = "../examples/wrong_kernel.rs"]
mod wrong_kernel;

#[test]
fn the_wrong_kernel_is_found_out_and_the_right_one_is_not() {
    let said = match wrong_kernel::run() {
        Ok(said) => said,
        Err(error) => panic!("{error}"),
    };
    let [right, right_writes, wrong, wrong_writes, violation] = &said[..] else {
        panic!("{said:#?}");
    };
    assert_eq!(right, "forgets the TLBI: false");
    assert_eq!(
        right_writes,
        "  CPU 1 writes to the page: [Fault(Permission)]"
    );
    assert_eq!(wrong, "forgets the TLBI: true");
    assert!(wrong_writes.contains("Memory(") && wrong_writes.contains("Fault(Permission)"));
    assert!(
        violation.contains(": stale-translation: CPU "),
        "{violation}"
    );
    assert!(
        violation.contains("may still use the old translation"),
        "{violation}"
    );
}
