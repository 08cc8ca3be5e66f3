//! Addresses: how they print, and arithmetic at both ends of the address space.

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
fn sums_say_what_happens_at_the_ends() {
    let low = VirtualAddress(0x1000);
    assert_eq!(low.checked_add(0x234), Some(VirtualAddress(0x1234)));
    assert_eq!(TOP.checked_add(1), None);
    assert_eq!(TOP.wrapping_add(2), VirtualAddress(1));
    assert_eq!(TOP.saturating_add(2), TOP);
    assert_eq!(low.checked_sub(0x1000), Some(VirtualAddress(0)));
    assert_eq!(low.checked_sub(0x1001), None);
    assert_eq!(low.wrapping_sub(0x1001), TOP);
    assert_eq!(low.saturating_sub(0x1001), VirtualAddress(0));
    assert_eq!(TOP.offset_from(low), Some(u64::MAX - 0x1000));
    assert_eq!(low.offset_from(low), Some(0));
    assert_eq!(low.offset_from(TOP), None);
}

#[test]
fn alignment_takes_any_number_of_bytes() {
    // Address, bytes, the multiple below, the multiple above, whether it is one.
    let rows = [
        (0x1fff, 0x1000, 0x1000, Some(0x2000), false),
        (0x2000, 0x1000, 0x2000, Some(0x2000), true),
        (0, 0x1_0000, 0, Some(0), true),
        (u64::MAX, 0x4000, u64::MAX - 0x3fff, None, false),
        (u64::MAX, 1, u64::MAX, Some(u64::MAX), true),
        (10, 3, 9, Some(12), false),
        (10, 0, 10, None, false),
    ];
    for (address, bytes, down, up, aligned) in rows {
        let address = PhysicalAddress(address);
        assert_eq!(address.align_down(bytes), PhysicalAddress(down));
        assert_eq!(address.align_up(bytes), up.map(PhysicalAddress));
        assert_eq!(
            address.is_aligned(bytes),
            aligned,
            "{address} to {bytes:#x}"
        );
    }
}

#[test]
fn permissions_print_for_both_privileges() {
    let user = Permissions::READ_WRITE.user(true);
    let executes = Permissions::READ.user_execute(true).guarded(true);
    let clean = Permissions::READ_EXECUTE
        .user(true)
        .dirty_modifier(true)
        .software(3);
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
