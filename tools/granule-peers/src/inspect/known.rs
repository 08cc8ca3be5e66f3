//! What is known of Debian's kernels: which of their tables they count, and what `granule lint` finds in
//! them. A kernel that differs is worth a look; addresses are not compared.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use anyhow::{Result, ensure};
use granule_inspect::lint::Rule;

/// The major and minor number of a version such as `6.12.107`.
fn release(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether a dump of the kernel has its processes: Debian 12's 6.1 is built without KALLSYMS_ALL, and the
/// System.map in its package is a stub.
pub(super) fn has_processes(version: &str) -> bool {
    release(version) > (6, 1)
}

/// By how many tables `PageTables` can grow with a process that has those tables by level.
pub(super) fn counted(version: &str, tables: &BTreeMap<i32, u64>) -> Vec<u64> {
    let all: u64 = tables.values().sum();
    match release(version) {
        // Tables of pages and of the level above.
        at if at <= (6, 1) => vec![tables.iter().rev().take(2).map(|(_, number)| number).sum()],
        // All but the root.
        at if at <= (6, 12) => vec![all - 1],
        // The root too. That of an ended process is kept while an idle CPU still has it in TTBR0, so
        // one may be freed as the process begins.
        _ => vec![all, all - 1],
    }
}

/// As many findings as there may be.
const ANY: u64 = u64::MAX;

/// How many findings of a rule are known, with that value of `rodata=`.
fn known(rule: Rule, version: &str, rodata: &str) -> RangeInclusive<u64> {
    match rule {
        // Pools of memory for DMA, at most three, which the linear map has as cached memory too.
        Rule::MemoryClash => 1..=3,
        // Kernel text, in up to three ranges, and the entry code.
        Rule::WritableExecutable if rodata == "off" => 2..=4,
        // The linear map's alias of what eBPF's compiler made.
        Rule::WritableText if rodata == "off" => 1..=ANY,
        Rule::WritableText if rodata == "on" && release(version) <= (6, 12) => 1..=ANY,
        // The map is of pages, where only large pages may be in it.
        Rule::MissedBlock | Rule::MissedContiguous => 0..=ANY,
        _ => 0..=0,
    }
}

/// Holds the number of findings by rule against what is known.
pub(super) fn judge(found: &BTreeMap<Rule, u64>, version: &str, rodata: &str) -> Result<String> {
    let mut words = Vec::new();
    for &rule in Rule::ALL {
        let (found, known) = (
            found.get(&rule).copied().unwrap_or(0),
            known(rule, version, rodata),
        );
        ensure!(
            known.contains(&found),
            "{found} findings of {}, expected {}",
            rule.name(),
            match (*known.start(), *known.end()) {
                (least, ANY) => format!("at least {least}"),
                (least, most) if least == most => least.to_string(),
                (least, most) => format!("{least} to {most}"),
            }
        );
        if found > 0 {
            words.push(format!("{} {found}", rule.name()));
        }
    }
    Ok(format!("as is known: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_counts_its_tables_as_is_known() {
        let tables = BTreeMap::from([(0, 1), (1, 2), (2, 3), (3, 4)]);
        assert_eq!(counted("6.1.176", &tables), [7]);
        assert_eq!(counted("6.12.107", &tables), [9]);
        assert_eq!(counted("7.3.4", &tables), [10, 9]);
        assert!(!has_processes("6.1.176") && has_processes("6.12.107"));
    }

    #[test]
    fn a_finding_more_or_less_is_told() {
        let clash = (Rule::MemoryClash, 3);
        let writable = BTreeMap::from([
            clash,
            (Rule::WritableText, 1),
            (Rule::WritableExecutable, 4),
        ]);
        let alias = BTreeMap::from([clash, (Rule::WritableText, 5)]);
        let none = BTreeMap::from([clash, (Rule::MissedBlock, 7)]);
        for (version, rodata, right) in [
            ("6.12.107", "full", &none),
            ("6.12.107", "on", &alias),
            ("6.12.107", "off", &writable),
            ("7.3.4", "on", &none),
        ] {
            for found in [&writable, &alias, &none] {
                let judged = judge(found, version, rodata);
                assert_eq!(
                    judged.is_ok(),
                    found == right,
                    "{version} {rodata} {judged:?}"
                );
            }
        }
        let looped = BTreeMap::from([clash, (Rule::Loop, 1)]);
        let error = judge(&looped, "7.3.4", "full").unwrap_err().to_string();
        assert_eq!(error, "1 findings of loop, expected 0");
    }
}
