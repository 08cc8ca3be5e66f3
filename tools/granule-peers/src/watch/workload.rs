//! The workload of a watched Linux: an initramfs with a script, Debian's shell, our program that
//! tests memory, modules, and our kernel as the next one.

use anyhow::{Result, bail, ensure};
use granule::arch::Level;
use granule_cli::{Initramfs, PageSize};
use xtask::files;
use xtask::workspace::image_path;

use crate::machine::{self, last_line, program};

pub(crate) const SCRIPT: &[u8] = include_bytes!("workload.sh");

/// The steps of the script, which prints a line after each.
const STEPS: [&str; 8] = [
    "programs", "memory", "thp", "hugetlb", "modules", "cpus", "hotplug", "kexec",
];
/// The function that fails when Linux 6.12 with five levels of tables copies its linear map for the
/// next kernel: docs/findings.md.
const COPIES: &str = "pc : trans_pgd_create_copy+";
/// The line of the guest when `fork` lost a huge page: docs/findings.md.
const LOST: &str = "lost in fork: ";
/// The last line of our kernel, which has no program to run.
const NEXT: &str = "@granule outcome=ok";

pub(crate) const APPLETS: &str =
    "cat dd echo grep insmod ls mount poweroff rmmod sed seq sh sha256sum sleep test true";

/// Modules in the order in which they can be loaded; a kernel that lacks one has it built in.
pub(super) const MODULES: [&str; 5] = [
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_mem",
    "dummy",
];
/// Modules that are not built into any of Debian's kernels.
const ALWAYS: [&str; 2] = ["virtio_mem", "dummy"];

/// Makes the initramfs for a kernel with these modules.
pub(super) fn archive(busybox: &[u8], modules: &[(String, Vec<u8>)]) -> Result<Initramfs> {
    for name in ALWAYS {
        let is_there = modules.iter().any(|(it, _)| it == name);
        ensure!(is_there, "the package has no module {name}");
    }
    let archive = machine::archive(busybox, "/proc /sys /dev /bin /modules", APPLETS)
        .program("/bin/granule-user-memory", &program("granule-user-memory")?)
        .program("/bin/granule-user-leave", &program("granule-user-leave")?)
        .file("/next", &files::read(&image_path())?);
    let archive = modules.iter().fold(archive, |archive, (name, bytes)| {
        archive.file(&format!("/modules/{name}.ko"), bytes)
    });
    Ok(archive.program("/init", SCRIPT))
}

/// Checks that every step was done and the next kernel reached its end, or that Linux failed to
/// start it where that is known.
pub(super) fn judge(console: &str, leaves: bool) -> Result<()> {
    let has = |line: &str| console.lines().any(|it| it.trim_end() == line);
    let last = last_line(console);
    for name in STEPS {
        if !has(&format!("done: {name}")) {
            let failed = format!("FAILED: {name}");
            let lines = || console.lines().map(str::trim_end);
            let before = lines().zip(lines().skip(1)).find(|pair| pair.1 == failed);
            let last = before.map(|pair| pair.0).or(last);
            bail!("the guest's step `{name}` was not done; the last line is {last:?}");
        }
    }
    if !leaves {
        ensure!(
            console.contains(COPIES) && has("FAILED: kexec") && !has(NEXT),
            "Linux is known to fail in kexec_load here and did not; the last line is {last:?}"
        );
        return Ok(());
    }
    ensure!(
        has(NEXT),
        "the next kernel did not reach its end; the last line is {last:?}"
    );
    Ok(())
}

/// Counts how often `fork` lost huge pages. This is known only for the size of a contiguous group
/// of page descriptors.
pub(super) fn lost(console: &str, pages: PageSize) -> Result<usize> {
    let pages = pages.value();
    let group_kib = pages.contiguous_entries(Level::L3) as u64 * pages.bytes() / 1024;
    let known = format!("{LOST}{group_kib} KiB");
    let lines = console.lines().map(str::trim_end);
    let lost: Vec<&str> = lines.filter(|line| line.starts_with(LOST)).collect();
    match lost.iter().find(|line| **line != known) {
        Some(line) => bail!("{line:?}, which is known for {group_kib} KiB only"),
        None => Ok(lost.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_lost_in_fork_are_counted() {
        let script = str::from_utf8(SCRIPT).unwrap();
        assert!(script.contains(&format!("echo \"{LOST}$1 KiB\"")));
        let line = format!("{LOST}64 KiB\r\n");
        let console = format!("{line}all was right\r\n{line}");
        assert_eq!(lost(&console, PageSize::K4).unwrap(), 2);
        assert_eq!(lost("done: hugetlb\r\n", PageSize::K4).unwrap(), 0);
        let error = lost(&console, PageSize::K16).unwrap_err().to_string();
        assert!(error.contains("64 KiB"), "{error}");
        assert_eq!(
            lost(&console.replace("64", "2048"), PageSize::K16).unwrap(),
            2
        );
    }

    #[test]
    fn a_step_that_was_not_done_is_named() {
        let mut console: String = STEPS.iter().map(|it| format!("done: {it}\r\n")).collect();
        let error = judge(&console, true).unwrap_err().to_string();
        assert!(error.contains("next kernel"), "{error}");
        console += NEXT;
        judge(&console, true).unwrap();
        judge(&console, false).unwrap_err();
        let fails = console.replace(
            NEXT,
            &format!("x] {COPIES}0x1f8/0x790\r\nFAILED: kexec\r\n"),
        );
        judge(&fails, false).unwrap();
        judge(&fails, true).unwrap_err();
        for name in STEPS {
            let failed = console.replace(&format!("done: {name}\r"), &format!("FAILED: {name}\r"));
            let error = judge(&failed, true).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
            let with_reason = failed.replace("FAILED", "of memory\r\nFAILED");
            let error = judge(&with_reason, true).unwrap_err().to_string();
            assert!(
                error.ends_with(r#"the last line is Some("of memory")"#),
                "{error}"
            );
        }
    }

    #[test]
    fn the_script_has_each_step_and_uses_every_module() {
        let script = str::from_utf8(SCRIPT).unwrap();
        let order = STEPS[..7].join(" ");
        assert!(script.contains(&format!("for name in {order}; do")));
        for name in &STEPS[..7] {
            assert!(script.contains(&format!("\n{name}() {{")), "{name}");
        }
        for module in MODULES {
            assert!(script.contains(module), "{module}");
        }
    }

    #[test]
    fn a_package_without_a_module_is_refused() {
        let error = archive(b"", &[("dummy".into(), Vec::new())]).unwrap_err();
        assert!(error.to_string().contains("virtio_mem"));
    }
}
