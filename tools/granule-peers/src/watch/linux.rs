//! Debian's kernels under `granule watch`: the run must be observed completely and to its end, the
//! guest must complete its workload, and every finding must be accepted by name, with a reason.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, ensure};
use granule_cli::PageSize;
use serde_json::Value;

use super::run::{Expected, Run, events, findings, is_new};
use super::workload;

/// The accepted findings, which are real or deliberate, each with its reason; docs/findings.md has
/// more.
pub(super) const ACCEPTED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/accepted-findings.txt"
);

/// The least number of events of a boot with the workload.
const LEAST: [(&str, u64); 9] = [
    ("table_stores", 10_000),
    ("tables", 100),
    ("tables_freed", 20),
    ("registers", 100),
    ("tlbi", 100),
    ("dsb", 1000),
    ("isb", 1000),
    ("exceptions", 100),
    ("frames_reused", 100),
];

/// One kernel on one machine.
#[derive(Debug)]
pub(super) struct LinuxRun<'a> {
    pub(super) qemu: &'a Path,
    /// The required version of QEMU's plugin interface.
    pub(super) interface: u64,
    pub(super) image: &'a Path,
    pub(super) initrd: &'a Path,
    pub(super) page_size: PageSize,
    pub(super) cpu: &'a str,
    pub(super) cpus: u32,
    pub(super) is_recorded: bool,
    /// Whether the kernel uses permission indirection where the CPU has it.
    pub(super) knows_indirection: bool,
    /// Whether it can load the next kernel and leave for it: 6.12 with five levels of tables fails
    /// to.
    pub(super) leaves: bool,
    /// Whether its `fork` can lose huge pages: docs/findings.md.
    pub(super) loses: bool,
}

impl LinuxRun<'_> {
    fn options(&self) -> Vec<OsString> {
        // The memory of the device is added while the guest runs, and removed; it has no tables.
        let words = format!(
            "-machine virt,gic-version=3 -cpu {} -m 1G,maxmem=2G -smp {} \
             -object memory-backend-ram,id=more,size=256M \
             -device virtio-mem-pci,id=hotplug,memdev=more,requested-size=256M",
            self.cpu, self.cpus
        );
        let mut options: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        // The last word is for the next kernel.
        let append = format!(
            "console=ttyAMA0 panic=-1 quiet memhp_default_state=online_movable arm64.pagesize={}",
            self.page_size.word()
        );
        options.extend(["-kernel".into(), self.image.into()]);
        options.extend(["-initrd".into(), self.initrd.into()]);
        options.extend(["-append".into(), append.into()]);
        options
    }

    pub(super) fn watch(&self, folder: &Path) -> Result<String> {
        let watched = Run {
            qemu: self.qemu,
            options: self.options(),
            input: "",
            accepted: Some(Path::new(ACCEPTED)),
            is_recorded: self.is_recorded,
            folder,
        }
        .watch()?;
        workload::judge(&watched.console, self.leaves)?;
        let lost = workload::lost(&watched.console, self.page_size)?;
        ensure!(
            lost == 0 || self.loses,
            "`fork` lost huge pages {lost} times, which is not a known fault of this kernel"
        );
        self.judge(&watched.report)?;
        let stores = events(&watched.report, "table_stores");
        let is_accepted = |it: &&Value| !it["accepted"].is_null();
        let accepted = findings(&watched.report).iter().filter(is_accepted).count();
        let undecided = &watched.report["undecided"];
        Ok(format!(
            "{stores} stores to tables, {accepted} accepted findings, {undecided} undecided violations, \
             huge pages lost {lost} times in fork"
        ))
    }

    /// Lists the unmodelled features of a machine: permission indirection, which QEMU's `max` has
    /// from 11 on, and Linux uses from 6.12 on.
    fn unchecked(&self) -> Vec<&'static str> {
        if self.knows_indirection && self.cpu == "max" && self.interface >= 7 {
            vec!["what happens with tcr2_el1"]
        } else {
            Vec::new()
        }
    }

    /// Checks that the run was observed completely except for these, and has no new findings.
    fn judge(&self, report: &Value) -> Result<()> {
        let interface = &report["guest"]["plugin_interface"];
        ensure!(
            *interface == self.interface,
            "the plugin interface is {interface}"
        );
        // All CPUs but the first are unplugged, and switched off again before the next kernel.
        let times = 1 + u64::from(self.leaves);
        let off = ("cpus_off", times * u64::from(self.cpus - 1));
        let expected = Expected {
            page_sizes: &[self.page_size.bytes()],
            least: &[&LEAST[..], &[off]].concat(),
            unchecked: &self.unchecked(),
            is_known: &|finding| !is_new(finding),
        };
        expected.judge(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use xtask::boot::{changed, unjudged};

    #[test]
    fn an_incomplete_run_or_one_with_new_findings_is_refused() {
        let path = Path::new("x");
        let case = LinuxRun {
            qemu: path,
            interface: 7,
            image: path,
            initrd: path,
            page_size: PageSize::K4,
            cpu: "max",
            cpus: 4,
            is_recorded: false,
            knows_indirection: false,
            leaves: true,
            loses: false,
        };
        let whole = json!({
            "complete": true,
            "unchecked": [],
            "guest": {"plugin_interface": 7, "page_sizes": [4096]},
            "events": {
                "table_stores": 10_000, "tables": 100, "tables_freed": 20, "registers": 100,
                "tlbi": 100, "dsb": 1000, "isb": 1000, "exceptions": 100, "frames_reused": 100,
                "cpus_off": 6,
            },
            "findings": [{"rule": "r", "function": "f", "accepted": "it is known"}],
        });
        case.judge(&whole).unwrap();
        let unjudged = unjudged(&whole, |report| case.judge(report).is_ok());
        assert_eq!(unjudged, ["/findings/0/function", "/findings/0/rule"]);
        for (pointer, value) in [
            ("/guest/page_sizes", json!([4096, 16384])),
            ("/events/tlbi", json!(99)),
            ("/events/cpus_off", json!(5)),
        ] {
            case.judge(&changed(&whole, pointer, value)).unwrap_err();
        }
        let new = changed(&whole, "/findings/0/accepted", Value::Null);
        let error = case.judge(&new).unwrap_err().to_string();
        assert_eq!(error, "1 new findings, the first: r in f: ?");
        // The known unchecked features must be reported.
        let newer = LinuxRun {
            knows_indirection: true,
            ..case
        };
        newer.judge(&whole).unwrap_err();
        let report = changed(&whole, "/complete", json!(false));
        let unchecked = json!(["what happens with tcr2_el1"]);
        newer
            .judge(&changed(&report, "/unchecked", unchecked))
            .unwrap();
    }

    #[test]
    fn the_accepted_findings_have_reasons() {
        let text = std::fs::read_to_string(ACCEPTED).unwrap();
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            assert!(line.split_whitespace().count() > 5, "no reason: {line}");
        }
    }
}
