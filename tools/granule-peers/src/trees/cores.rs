//! Compares Arm's cores in device trees with the tables of errata and of CPUs that split live leaves. A core that a tree
//! names is in one of them, or was judged here to need neither.

use granule::arch::bbm_policy::KNOWN;
use granule::arch::errata::TABLE;
use granule_boot::tree::Tree;

/// Cores that are in neither table, each with the reason.
const NEITHER: &[(&str, &str)] = &[
    ("cortex-a34", OLD),
    ("cortex-a35", OLD),
    ("cortex-a53", OLD),
    ("cortex-a57", OLD),
    ("cortex-a65", OLD),
    ("cortex-a72", OLD),
    ("cortex-a73", OLD),
    ("cortex-a75", OLD),
    ("cortex-a320", UNSURE),
    ("cortex-a520", UNSURE),
    ("cortex-a720", UNSURE),
];
/// FEAT_BBM is of Armv8.4.
const OLD: &str =
    "its level is 0, and it has no erratum of translation that the kernel works around";
const UNSURE: &str = "no erratum is known, and its maker promises no level 3";

/// Checks the cores of a tree.
pub(super) fn judged(tree: &Tree<'_>) -> Result<(), String> {
    let cpus = tree.nodes().filter(|node| {
        let kind = node.property(b"device_type");
        kind.is_some_and(|kind| kind == b"cpu\0")
    });
    let names = cpus.filter_map(|cpu| cpu.property(b"compatible"));
    for name in names.flat_map(|names| names.split(|byte| *byte == 0)) {
        let Some(core) = name.strip_prefix(b"arm,") else {
            continue;
        };
        let core = String::from_utf8_lossy(core);
        // Models and cores of 32 bits.
        let is_of_64_bits = ["cortex-a", "cortex-x", "neoverse-", "c1-"]
            .iter()
            .any(|family| core.starts_with(family));
        if is_of_64_bits && !is_judged(&core) {
            return Err(format!(
                "arm,{core} is in no row of errata.rs and bbm_policy.rs in crates/granule/src/arch: add it, or judge it in \
                 tools/granule-peers/src/trees/cores.rs"
            ));
        }
    }
    Ok(())
}

fn is_judged(core: &str) -> bool {
    let has_erratum = TABLE.iter().any(|erratum| {
        let number = erratum.name.strip_prefix(core);
        number.is_some_and(|number| number.starts_with('-'))
    });
    has_erratum
        || KNOWN
            .iter()
            .any(|known| known.name.eq_ignore_ascii_case(core))
        || NEITHER.iter().any(|(name, _)| *name == core)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_were_judged_are_in_no_table() {
        for (core, reason) in NEITHER {
            assert!(is_judged(core) && !reason.is_empty());
            let own = format!("{core}-");
            assert!(
                TABLE.iter().all(|erratum| !erratum.name.starts_with(&own)),
                "{core}"
            );
            let is_known = |name: &str| name.eq_ignore_ascii_case(core);
            assert!(KNOWN.iter().all(|known| !is_known(known.name)), "{core}");
        }
    }

    #[test]
    fn each_cpu_that_splits_live_leaves_was_judged_for_errata_too() {
        // Those of the tables whose makers are not Arm, or that have no erratum of any revision.
        let without = [
            "Cortex-A520AE",
            "Cortex-A720AE",
            "Cortex-A725",
            "Neoverse-N3",
            "C1-Nano",
            "C1-Pro",
            "AmpereOne",
            "AmpereOne A",
        ];
        for known in KNOWN {
            let has = TABLE.iter().any(|erratum| {
                let (one, other) = (erratum.cpus, known.cpus);
                (one.implementer, one.part) == (other.implementer, other.part)
            });
            assert_eq!(has, !without.contains(&known.name), "{}", known.name);
        }
    }
}
