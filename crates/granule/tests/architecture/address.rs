//! Addresses and permissions: how they print, and addresses as numbers.

use granule::arch::{Permissions, PhysicalAddress, VirtualAddress};

const TOP: VirtualAddress = VirtualAddress(u64::MAX);

#[test]
fn addresses_print_in_hexadecimal() {
    let address = PhysicalAddress(0x8000_abcd);
    assert_eq!(address.to_string(), "0x8000abcd");
    assert_eq!(format!("{address:?}"), "PhysicalAddress(0x8000abcd)");
    assert_eq!(format!("{address:x}"), "8000abcd");
    assert_eq!(format!("{address:#018X}"), "0x000000008000ABCD");
    assert_eq!(
        format!("{:?}", Some(VirtualAddress(10))),
        "Some(VirtualAddress(0xa))"
    );
}

#[test]
fn addresses_convert_to_numbers_and_back() {
    assert_eq!(PhysicalAddress::from(7), PhysicalAddress(7));
    assert_eq!(u64::from(TOP), u64::MAX);
}

#[test]
fn permissions_print_for_both_privileges() {
    let user = Permissions {
        user: true,
        ..Permissions::READ_WRITE
    };
    let executes = Permissions {
        user_execute: true,
        guarded: true,
        ..Permissions::READ
    };
    let clean = Permissions {
        user: true,
        dirty_modifier: true,
        software: 3,
        ..Permissions::READ_EXECUTE
    };
    for (permissions, text) in [
        (Permissions::READ, "r--/---"),
        (Permissions::READ_EXECUTE, "r-x/---"),
        (user, "rw-/rw-"),
        (executes, "r--/--x guarded"),
        (clean, "r-x/r-- dbm software=3"),
    ] {
        assert_eq!(permissions.to_string(), text);
    }
}
