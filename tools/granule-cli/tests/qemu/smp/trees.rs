//! Device trees that make it impossible to start other CPUs: the boot goes on with one, and reports
//! why.

use dtoolkit::model::{DeviceTree, DeviceTreeProperty};
use granule_cli::Request;
use granule_cli::boot::tree;
use granule_testing::text::{assert_contains, assert_starts_with};

use crate::booted::Booted;
use crate::smp::machine::{machine, ok};

/// Boots a machine of three CPUs with QEMU's tree for it, edited.
fn with(edit: impl FnOnce(&mut DeviceTree)) -> Booted {
    let mut request = Request {
        append: None,
        ..machine(3, "")
    };
    let dtb = tree::dump(&request).unwrap();
    let mut tree = tree::model(&dtb).unwrap();
    edit(&mut tree);
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("dtb");
    std::fs::write(&path, tree.to_dtb()).unwrap();
    request.dtb = Some(path);
    ok(&request)
}

fn set(tree: &mut DeviceTree, path: &str, name: &str, value: &[u8]) {
    let node = tree.find_node_mut(path).unwrap();
    node.add_property(DeviceTreeProperty::new_unchecked(name, value.to_vec()));
}

#[test]
fn a_cpu_that_another_method_starts_is_left_out() {
    let made = with(|tree| set(tree, "/cpus/cpu@1", "enable-method", b"acme,smp\0"));
    assert_eq!(
        made.mismatches(),
        [
            "the CPU /cpus/cpu@1 (MPIDR 0x1) is not started: its enable-method is neither \"psci\" nor \"spin-table\""
        ]
    );
    assert_eq!((made.number("cpus"), made.number("cpus_expected")), (2, 3));
}

#[test]
fn a_cpu_that_the_firmware_does_not_know() {
    let made = with(|tree| set(tree, "/cpus/cpu@1", "reg", &[0, 0, 0, 9]));
    let line = made.mismatch();
    assert_starts_with(
        line,
        "CPU 1 (MPIDR 0x9) is not started: the firmware refuses: ",
    );
    made.has("cpus", 2);
}

/// QEMU's redistributors follow each other at 0x20000. With twice that the step leads past every second one.
#[test]
fn redistributors_are_looked_for_at_their_stride() {
    for (stride, cpus) in [(0x2_0000_u64, 3), (0x4_0000, 2)] {
        let made = with(|tree| {
            let stride = &stride.to_be_bytes();
            set(tree, "/intc@8000000", "redistributor-stride", stride);
        });
        assert_eq!(made.number("cpus"), cpus, "{stride:#x}");
        let lost = "granule: CPU 1: no redistributor of the GIC has this CPU's affinity";
        assert_eq!(made.console.contains(lost), cpus == 2, "{}", made.console);
    }
}

#[test]
fn without_psci_or_a_controller_there_is_one_cpu() {
    type Edit = fn(&mut DeviceTree);
    let cases: [(Edit, &str); 3] = [
        (
            |tree| set(tree, "/psci", "compatible", b"arm,psci\0"),
            "the device tree has no psci node of version 0.2",
        ),
        (
            |tree| set(tree, "/intc@8000000", "compatible", b"acme,pic\0"),
            "the device tree names no interrupt controller that is known",
        ),
        (
            |tree| set(tree, "/intc@8000000", "reg", &[0; 16]),
            "the interrupt controller /intc@8000000 has a reg that does not lead to addresses",
        ),
    ];
    for (edit, why) in cases {
        let made = with(edit);
        let line = made.mismatch();
        assert_starts_with(line, "no other CPU is started: ");
        assert_contains(line, why);
        assert_eq!((made.number("cpus"), made.number("cpus_expected")), (1, 3));
    }
}
