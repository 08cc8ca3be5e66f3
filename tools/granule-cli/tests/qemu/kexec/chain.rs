//! Several kernels one after the other on one machine: archives in archives, and the record of
//! each.

use std::collections::HashMap;

use granule_cli::{Initramfs, Outcome, PageSize, Request};
use granule_kexec::Digest;
use serde_json::{Value, json};

use crate::booted::Booted;
use crate::image::image;
use crate::kexec::machine::{NEXT, ends, program};

/// Where an archive has that of the next kernel.
const INNER: &str = "/boot/next.cpio";

/// The way out of a kernel into the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// Nothing is loaded where it goes.
    pub(crate) copy: bool,
    /// With the MMU off.
    pub(crate) uncached: bool,
}

/// Where 4 KiB are handed over from kernel to kernel.
pub(crate) const PERSIST: &str = "granule.persist=0x4f000000,0x1000";

/// From each page size into each, itself among them.
pub(crate) fn every_pair(sizes: &[PageSize]) -> Vec<PageSize> {
    match *sizes {
        [a, b, c] => vec![a, a, b, b, c, c, a, c, b, a],
        [a, b] => vec![a, a, b, b, a],
        _ => panic!("{sizes:?}"),
    }
}

/// A kernel's record, by dotted key.
pub(crate) type HopRecord = HashMap<String, String>;

/// The records of a boot, one a kernel, each of which has ended.
pub(crate) fn records(ran: &Booted) -> Vec<HopRecord> {
    let boots = ran.value("boots").as_array().unwrap();
    let records = boots.iter().map(|boot| {
        assert_eq!(boot["ended"], true, "{boot}");
        assert_eq!(boot["record_faults"], json!([]), "{boot}");
        let mut recorded = HopRecord::new();
        flatten("", boot, &mut recorded);
        recorded
    });
    records.collect()
}

fn flatten(key: &str, value: &Value, into: &mut HopRecord) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let dot = if key.is_empty() { "" } else { "." };
                flatten(&format!("{key}{dot}{name}"), value, into);
            }
        }
        Value::Null => {}
        Value::String(text) => drop(into.insert(key.into(), text.clone())),
        other => drop(into.insert(key.into(), other.to_string())),
    }
}

pub(crate) fn number(recorded: &HopRecord, key: &str) -> u64 {
    let text = recorded
        .get(key)
        .unwrap_or_else(|| panic!("{key} in {recorded:?}"));
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.unwrap_or_else(|_| panic!("{key}={text}"))
}

fn digest(bytes: &[u8]) -> u64 {
    let mut digest = Digest::new();
    digest.bytes(bytes);
    digest.value()
}

/// The archive of a kernel that goes on through `rest`, which may be none.
fn archive(rest: &[PageSize], how: How, words: &str) -> Option<Vec<u8>> {
    let (next, behind) = rest.split_first()?;
    let inner = archive(behind, how, words);
    let copy = if how.copy { " --copy" } else { "" };
    let initrd = match inner {
        Some(_) => format!(" --initrd {INNER}"),
        None => String::new(),
    };
    let append = append(*next, how, words);
    let lines = format!("load {NEXT}{initrd}{copy} --append {append}\nexec\n");
    let mut archive = outer(&lines);
    if let Some(inner) = inner {
        archive = archive.file(INNER, &inner);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    archive.write(file.path()).unwrap();
    Some(std::fs::read(file.path()).unwrap())
}

fn outer(lines: &str) -> Initramfs {
    Initramfs::new()
        .program("/init", &program())
        .directory("/etc")
        .file("/etc/kexec", lines.as_bytes())
        .directory("/boot")
        .file(NEXT, &std::fs::read(image()).unwrap())
}

fn append(size: PageSize, how: How, words: &str) -> String {
    let uncached = if how.uncached { ",uncached" } else { "" };
    format!(
        "arm64.pagesize={} granule.kexec=digest{uncached} {words}",
        size.word()
    )
}

/// Goes through these page sizes, checks the record of each kernel, and returns the records.
#[track_caller]
pub(crate) fn goes_through(
    sizes: &[PageSize],
    first: &Request,
    how: How,
    words: &str,
) -> Vec<HopRecord> {
    let (size, rest) = sizes.split_first().unwrap();
    let inside = archive(rest, how, words).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &inside).unwrap();
    let request = Request {
        initrd: Some(file.path().to_owned()),
        page_size: None,
        append: Some(format!("{} {PERSIST}", append(*size, how, words))),
        ..first.clone()
    };
    let ran = crate::kexec::machine::boots(&request, Outcome::Ok);
    let recorded = records(&ran);
    assert_eq!(recorded.len(), sizes.len(), "{}", ran.console);
    let kernel = std::fs::read(image()).unwrap();
    for (index, (one, size)) in recorded.iter().zip(sizes).enumerate() {
        assert_eq!(one["outcome"], "ok", "kernel {index}");
        assert_eq!(number(one, "page_size"), size.bytes(), "kernel {index}");
        assert_eq!(number(one, "cpus"), u64::from(request.smp));
        assert_eq!(one["entry_el"], recorded[0]["entry_el"]);
        assert_eq!(one["run_el"], recorded[0]["run_el"]);
        // Handed-over data goes on, whatever the page sizes.
        assert_eq!(number(one, "persist.boots"), index as u64 + 1);
        if index == 0 {
            assert!(!one.contains_key("kexec.from_page_size"));
            continue;
        }
        let before = sizes[index - 1];
        assert_eq!(number(one, "persist.last_page_size"), before.bytes());
        arrived(one, &recorded[index - 1], before, *size, how, &kernel);
    }
    recorded
}

/// Checks the record of a kernel that was started by another.
fn arrived(
    one: &HopRecord,
    left: &HopRecord,
    from: PageSize,
    to: PageSize,
    how: How,
    kernel: &[u8],
) {
    assert_eq!(number(one, "kexec.from_page_size"), from.bytes());
    assert_eq!(number(one, "kexec.to_page_size"), to.bytes());
    assert_eq!(one["kexec.uncached"], how.uncached.to_string());
    for key in [
        "bytes_total",
        "bytes_copied",
        "lines_cleaned",
        "dsb",
        "tlbi",
    ] {
        let value = &one[&format!("kexec.{key}")];
        assert_eq!(value, &left[&format!("kexec.leaving.{key}")], "{key}");
    }
    assert_eq!(number(one, "kexec.dsb"), if how.uncached { 7 } else { 5 });
    let (total, copied) = (
        number(one, "kexec.bytes_total"),
        number(one, "kexec.bytes_copied"),
    );
    assert_eq!(copied >= total, how.copy, "{copied} of {total}");
    assert!(how.copy || copied == 0, "{copied}");
    // The counter goes on, so all of it can be measured.
    let counts =
        ["call", "leave", "entry", "console"].map(|it| number(one, &format!("kexec.count.{it}")));
    assert!(counts.is_sorted(), "{counts:?}");
    for name in ["initrd", "tree"] {
        let given = one.get(&format!("kexec.segment.{name}.digest"));
        let arrived = one.get(&format!("kexec.arrived.{name}.digest"));
        assert_eq!(given, arrived, "{name}");
        assert!(given.is_some() || name == "initrd");
    }
    let recorded = |key: &str| number(one, &format!("kexec.{key}"));
    assert_eq!(recorded("segment.kernel.bytes"), kernel.len() as u64);
    assert_eq!(recorded("segment.kernel.digest"), digest(kernel));
    let prefix = recorded("arrived.kernel.bytes") as usize;
    assert!(prefix > kernel.len() / 2);
    assert_eq!(recorded("arrived.kernel.digest"), digest(&kernel[..prefix]));
}

/// A request of 512 MiB.
pub(crate) fn machine(cpus: u32, el: u8, gic: u8, cpu: &str) -> Request {
    crate::kexec::machine::machine(PageSize::ALL[0], cpus)
        .el(el)
        .gic(gic)
        .cpu(cpu)
        .timeout(std::time::Duration::from_secs(60))
}

/// Boots with an archive whose first process is the program for tests of user space, which has the
/// image at [`NEXT`].
#[track_caller]
pub(crate) fn program_does(request: &Request, words: &str, outcome: Outcome) -> Booted {
    let program = std::fs::read(crate::image::built("granule-user", "cargo xtask user")).unwrap();
    let archive = Initramfs::new()
        .program("/init", &program)
        .directory("/boot")
        .file(NEXT, &std::fs::read(image()).unwrap());
    let append = request.append.clone().unwrap_or_default();
    let request = request.clone().append(format!("{append} -- {words}"));
    ends(&request, archive, outcome)
}
