//! Parses the output of the guest's script: the pages of a process by its kernel, and the amount of
//! memory that the kernel counts as tables. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// The first and the last line of the output.
pub(super) const BEGIN: &str = "inspect begins";
pub(super) const END: &str = "inspect ends";

/// Bits of an entry of `/proc/PID/pagemap` (Linux's Documentation/admin-guide/mm/pagemap.rst): the
/// page is in memory, and the number of its frame.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Output {
    /// The inspected process.
    pub(super) pid: u32,
    /// Its pages in memory: the frame number by page number.
    pub(super) pages: BTreeMap<u64, u64>,
    /// The number of pages that were looked up.
    pub(super) looked_up: u64,
    /// The KiB of tables without the root (`VmPTE`), by process.
    pub(super) tables: BTreeMap<u32, u64>,
    /// The KiB by which the kernel's count of tables (`PageTables` of `/proc/meminfo`) grew with
    /// the process, without the growth of the first process.
    pub(super) grown: i64,
}

/// Reads the console of a kernel with this page size. Returns `None` while the script is running.
pub(super) fn read(console: &str, page_bytes: u64) -> Result<Option<Output>> {
    let lines: Vec<&str> = console.lines().map(str::trim).collect();
    let find = |edge: &str| lines.iter().position(|line| *line == edge);
    let (Some(begin), Some(end)) = (find(BEGIN), find(END)) else {
        if let Some((_, panic)) = console.split_once("Kernel panic - not syncing: ") {
            bail!(
                "Linux ended with: {}",
                panic.lines().next().unwrap_or_default()
            );
        }
        return Ok(None);
    };
    let mut output = Output::default();
    // The area's next page, and the number of pages left.
    let mut area = (0_u64, 0_u64);
    // The counts without the first process, by `before` and `with`.
    let mut counts = BTreeMap::new();
    for line in lines.get(begin + 1..end).unwrap_or_default() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let mut number = |radix: u32| {
            let word = words.next().unwrap_or_default();
            u64::from_str_radix(word, radix).with_context(|| format!("the script printed {line:?}"))
        };
        match first {
            "process" => output.pid = u32::try_from(number(10)?)?,
            "area" => {
                ensure!(area.1 == 0, "{} pages before {line:?} are missing", area.1);
                area = (number(16)? / page_bytes, number(10)?);
                output.looked_up += area.1;
            }
            "tables" => {
                let pid = u32::try_from(number(10)?)?;
                output.tables.insert(pid, number(10)?);
            }
            "before" | "with" => {
                let all = i64::try_from(number(10)?)?;
                counts.insert(first, all - i64::try_from(number(10)?)?);
            }
            entry => {
                let entry = u64::from_str_radix(entry, 16).ok().filter(|_| area.1 > 0);
                let entry = entry.with_context(|| format!("the script printed {line:?}"))?;
                if entry & PRESENT != 0 {
                    output.pages.insert(area.0, entry & FRAME);
                }
                area = (area.0 + 1, area.1 - 1);
            }
        }
    }
    ensure!(area.1 == 0, "{} pages are missing at the end", area.1);
    let (Some(before), Some(with)) = (counts.get("before"), counts.get("with")) else {
        bail!("the script did not print the kernel's count of tables twice");
    };
    output.grown = with - before;
    ensure!(output.pid != 0, "the script did not name a process");
    Ok(Some(output))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "boot\r\ninspect begins\r\nbefore 50 44\r\nwith 90 48\r\nprocess 57\r\narea 400000 3\r\n \
                        8100000000012345\r\n 0000000000000000\r\n 8000000000000007\r\ntables 1 44\r\ntables 57 40\r\n\
                        inspect ends\r\n";

    #[test]
    fn pages_and_tables_are_read() {
        let output = read(GOOD, 4096).unwrap().unwrap();
        assert_eq!((output.pid, output.looked_up, output.grown), (57, 3, 36));
        assert_eq!(output.pages, BTreeMap::from([(0x400, 0x12345), (0x402, 7)]));
        assert_eq!(output.tables, BTreeMap::from([(1, 44), (57, 40)]));
    }

    #[test]
    fn missing_or_unexpected_lines_are_reported() {
        assert_eq!(read("boot\ninspect begins\n", 4096).unwrap(), None);
        for (from, to, words) in [
            ("400000 3", "400000 4", "1 pages are missing"),
            (
                "400000 3",
                "400000 2",
                "the script printed \"8000000000000007\"",
            ),
            ("before 50 44\r\n", "", "count of tables twice"),
            ("process 57\r\n", "", "did not name a process"),
            (
                "tables 1 44",
                "tables 1 x",
                "the script printed \"tables 1 x\"",
            ),
            (
                "area 400000 3",
                "no such file",
                "the script printed \"no such file\"",
            ),
        ] {
            let console = GOOD.replace(from, to);
            let error = match read(&console, 4096) {
                Err(error) => format!("{error:#}"),
                Ok(output) => panic!("{from:?}: {output:?}"),
            };
            assert!(error.contains(words), "{error}");
        }
        let error = read("x\nKernel panic - not syncing: no init\n", 4096).unwrap_err();
        assert_eq!(error.to_string(), "Linux ended with: no init");
    }
}
