//! Known properties of Debian's kernels: which of their tables they count, and the findings of
//! `granule lint`. A kernel that differs must be examined; addresses are not compared.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use anyhow::{Result, ensure};
use granule_inspect::lint::Rule;

/// Parses the major and minor number of a version such as `6.12.107`.
fn release(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Returns whether a dump of the kernel has its processes: Debian 12's 6.1 is built without
/// KALLSYMS_ALL, and the System.map in its package is a stub.
pub(super) fn has_processes(version: &str) -> bool {
    release(version) > (6, 1)
}

/// Lists the numbers of tables by which `PageTables` can grow with a process, given its tables by
/// level.
pub(super) fn counted(version: &str, tables: &BTreeMap<i32, u64>) -> Vec<u64> {
    let all: u64 = tables.values().sum();
    match release(version) {
        // Tables of the last level and of the level above.
        at if at <= (6, 1) => vec![tables.iter().rev().take(2).map(|(_, number)| number).sum()],
        // All but the root.
        at if at <= (6, 12) => vec![all - 1],
        // The root too. The root of an ended process is kept while an idle CPU has it in TTBR0, so
        // one may be freed when the process begins.
        _ => vec![all, all - 1],
    }
}

/// No upper limit of findings.
const ANY: u64 = u64::MAX;

/// Returns the known number of findings of a rule, with a value of `rodata=`.
fn known(rule: Rule, version: &str, rodata: &str) -> RangeInclusive<u64> {
    match rule {
        // Pools of memory for DMA, at most three, which are also mapped as cached memory in the
        // linear map.
        Rule::MemoryClash => 1..=3,
        // Kernel text, in up to three ranges, and the entry code.
        Rule::WritableExecutable if rodata == "off" => 2..=4,
        // The linear map's alias of code of the eBPF compiler.
        Rule::WritableText if rodata == "off" => 1..=ANY,
        Rule::WritableText if rodata == "on" && release(version) <= (6, 12) => 1..=ANY,
        // The linear map has pages where larger leaves are possible.
        Rule::MissedBlock | Rule::MissedContiguous => 0..=ANY,
        // Hardware sets the access flag of one entry, and programs end at any moment.
        Rule::ContiguousState => 0..=ANY,
        _ => 0..=0,
    }
}

/// Compares the number of findings by rule with the known ones.
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
    Ok(format!("as known: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_counts_its_tables_as_known() {
        let tables = BTreeMap::from([(0, 1), (1, 2), (2, 3), (3, 4)]);
        assert_eq!(counted("6.1.176", &tables), [7]);
        assert_eq!(counted("6.12.107", &tables), [9]);
        assert_eq!(counted("7.3.4", &tables), [10, 9]);
        assert!(!has_processes("6.1.176") && has_processes("6.12.107"));
    }

    #[test]
    fn a_different_number_of_findings_is_refused() {
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
