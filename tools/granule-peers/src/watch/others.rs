//! Systems other than Linux under `granule watch`: this kernel with each page size, U-Boot at three
//! exception levels, EDK2, and Xen with a Linux guest.
//!
//! The last three have no symbols, and their addresses change with each version, so whole rules are
//! accepted of them, each with a reason.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, ensure};
use granule_cli::{Initramfs, PageSize};
use serde_json::Value;
use xtask::files;
use xtask::workspace::image_path;

use super::run::{Expected, Run, Watched, events, findings};
use super::{NEWEST, OLDER};
use crate::machine::{last_line, program};
use crate::peers::{EDK2, Peers, U_BOOT, XEN};
use crate::{shell, together};

/// The input at U-Boot's prompt: `q` is sent to the monitor by the second serial port, and ends
/// QEMU.
const U_BOOT_INPUT: &str = "\n\n\nmw.l 0x9040000 0x71\nmw.l 0x9040000 0xa\n";
/// The file that EDK2's shell executes without any input.
const EDK2_SCRIPT: &[u8] = b"reset -s\r\n";

/// The size of a flash of QEMU's virt machine.
const FLASH: usize = 64 << 20;

/// A system on a machine.
#[derive(Debug, Default)]
pub(super) struct System {
    pub(super) name: String,
    options: Vec<OsString>,
    input: &'static str,
    /// The text on its console at its end.
    prints: &'static str,
    /// Whether its locks wait by WFE. QEMU 11.1 is the first whose WFE waits, and there both CPUs
    /// were seen to wait forever for a lock that was free for one of them.
    waits_by_wfe: bool,
    page_sizes: Vec<u64>,
    least: &'static [(&'static str, u64)],
    /// The exact list of things that are not checked.
    unchecked: &'static [&'static str],
    /// Rules that it is known to violate, each with the reason.
    accepted: &'static [(&'static str, &'static str)],
}

fn options(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

impl System {
    /// Adds an option with a value that may have spaces.
    fn with(mut self, option: &str, value: impl Into<OsString>) -> Self {
        self.options.extend([option.into(), value.into()]);
        self
    }

    /// Adds our kernel, its initramfs, and words for it.
    fn granule(self, initrd: &Path, words: String) -> Self {
        self.with("-kernel", image_path())
            .with("-initrd", initrd)
            .with("-append", format!("console=ttyAMA0 arm64.pagesize={words}"))
    }

    pub(super) const fn qemu(&self) -> usize {
        if self.waits_by_wfe { OLDER } else { NEWEST }
    }

    pub(super) fn watch(&self, qemu: &Path, folder: &Path) -> Result<String> {
        let watched = Run {
            qemu,
            options: self.options.clone(),
            input: self.input,
            accepted: None,
            is_recorded: false,
            folder,
        }
        .watch()?;
        self.judge(&watched)?;
        Ok(format!(
            "{} stores to tables, {} TLBIs, {} known findings, {} things not checked",
            events(&watched.report, "table_stores"),
            events(&watched.report, "tlbi"),
            findings(&watched.report).len(),
            self.unchecked.len()
        ))
    }

    fn judge(&self, watched: &Watched) -> Result<()> {
        let Watched { report, console } = watched;
        ensure!(
            console.contains(self.prints),
            "it did not print {:?}; its last line is {:?}",
            self.prints,
            last_line(console)
        );
        let is_accepted = |it: &Value| self.accepted.iter().any(|(rule, _)| it["rule"] == *rule);
        let expected = Expected {
            page_sizes: &self.page_sizes,
            least: self.least,
            unchecked: self.unchecked,
            is_known: &|it| !it["undecided"].is_null() || is_accepted(it),
        };
        expected.judge(report)?;
        for (rule, _) in self.accepted {
            let mut decided = findings(report).iter();
            let is_found = decided.any(|it| it["rule"] == *rule && it["undecided"].is_null());
            ensure!(is_found, "{rule} is accepted and was not found");
        }
        Ok(())
    }
}

pub(super) fn all(peers: &Peers<'_>) -> Result<Vec<System>> {
    let initramfs = |name: &str, archive| peers.files.initramfs(name, archive);
    let tests = Initramfs::new().program("/init", &program("granule-user")?);
    let tests = initramfs("watched-tests.cpio", tests)?;
    let shell = initramfs("watched-shell.cpio", shell::archive(&peers.busybox))?;
    let mut all = Vec::new();
    for page_size in PageSize::ALL {
        for (cpus, el, (words, initrd)) in [
            (1, 1, ("groups", &tests)),
            (4, 2, ("storm", &tests)),
            (2, 1, ("", &shell)),
        ] {
            all.push(granule(page_size, (cpus, el), words, initrd));
        }
    }
    let together = initramfs("watched-together.cpio", together::archive(&peers.busybox)?)?;
    all.push(programs_of_all_sizes(&together));
    let is_u_boot = |path: &str| path == "usr/lib/u-boot/qemu_arm64/u-boot.bin";
    let u_boot = peers.file(&U_BOOT, is_u_boot)?;
    let u_boot = peers.files.put("u-boot.bin", &u_boot)?;
    all.extend([1, 2, 3].map(|el| at(&u_boot, el)));
    all.push(edk2(peers)?);
    all.push(xen(peers)?);
    Ok(all)
}

/// Makes this kernel with a program that is called with `words`, on a CPU with all features of
/// QEMU.
fn granule(page_size: PageSize, (cpus, el): (u32, u8), words: &str, initrd: &Path) -> System {
    let virtualization = if el == 2 { ",virtualization=on" } else { "" };
    let machine =
        format!("-machine virt,gic-version=3{virtualization} -cpu max -m 512M -smp {cpus}");
    let size = page_size.word();
    System {
        name: format!("Granule, {size}, CPUs: {cpus}, EL{el} {words}"),
        options: options(&machine),
        prints: "@granule outcome=ok",
        page_sizes: vec![page_size.bytes()],
        least: &[
            ("table_stores", 2000),
            ("tables", 8),
            ("tlbi", 100),
            ("dsb", 100),
            ("isb", 100),
            ("exceptions", 100),
            ("frames_reused", 10),
        ],
        ..System::default()
    }
    .granule(initrd, format!("{size} -- {words}"))
}

/// Makes this kernel with programs of every page size at once.
fn programs_of_all_sizes(initrd: &Path) -> System {
    System {
        name: "Granule, programs of every page size at once, CPUs: 4".into(),
        options: options("-machine virt,gic-version=3 -cpu max -m 2G -smp 4"),
        prints: together::END,
        page_sizes: vec![4096, 16384, 65536],
        least: &[
            ("table_stores", 20_000),
            ("tables", 100),
            ("tlbi", 1000),
            ("exceptions", 1000),
            ("frames_reused", 100),
        ],
        ..System::default()
    }
    .granule(initrd, format!("16k {} -- few", together::WORDS))
}

fn at(u_boot: &Path, el: u8) -> System {
    let more = match el {
        3 => ",secure=on",
        2 => ",virtualization=on",
        _ => "",
    };
    System {
        name: format!("U-Boot, EL{el}"),
        options: options(&format!(
            "-machine virt,gic-version=3{more} -cpu neoverse-n1 -m 512M"
        )),
        input: U_BOOT_INPUT,
        prints: "=> mw.l 0x9040000 0x71",
        waits_by_wfe: false,
        page_sizes: vec![4096],
        least: &[("tables", 5), ("registers", 6), ("tlbi", 1), ("isb", 8)],
        unchecked: &[],
        accepted: &[(
            "not-invalidated",
            "tables are made with the caches off and not invalidated by address before the MMU goes on; the \
             invalidation by set and way before reaches no cache outside of the CPU",
        )],
    }
    .with("-bios", u_boot)
}

/// Makes EDK2, up to its shell.
fn edk2(peers: &Peers<'_>) -> Result<System> {
    let is_code = |path: &str| path == "usr/share/qemu-efi-aarch64/QEMU_EFI.fd";
    let code = peers.file(&EDK2, is_code)?;
    let flash = |name: &str, mut bytes: Vec<u8>| {
        bytes.resize(FLASH, 0);
        let path = peers.files.put(name, &bytes)?;
        anyhow::Ok(format!("if=pflash,format=raw,file={}", path.display()))
    };
    let folder = peers.files.folder("edk2")?;
    files::write(&folder.join("startup.nsh"), EDK2_SCRIPT)?;
    let folder = folder.display();
    Ok(System {
        name: "EDK2".into(),
        options: options("-machine virt,gic-version=3 -cpu neoverse-n1 -m 1G"),
        prints: "UEFI Interactive Shell",
        page_sizes: vec![4096],
        least: &[("table_stores", 1000), ("tables", 8), ("tlbi", 1000)],
        // Its first tables are in flash.
        unchecked: &["what happens with tables outside of RAM"],
        ..System::default()
    }
    .with("-drive", flash("edk2.fd", code)? + ",readonly=on")
    .with("-drive", flash("edk2-variables.fd", Vec::new())?)
    .with(
        "-drive",
        format!("file=fat:{folder},format=raw,if=virtio,readonly=on"),
    ))
}

/// Makes Xen at EL2 with the oldest Linux as its first guest, whose own tables are under stage 2.
fn xen(peers: &Peers<'_>) -> Result<System> {
    let xen = peers.file(&XEN, |path| {
        path.starts_with("boot/xen-") && !path.ends_with(".config") && !path.ends_with(".efi")
    })?;
    let xen = peers.files.put("xen", &xen)?;
    let image = peers.linux(0)?.image.display();
    let archive = super::archive(&peers.busybox);
    let initrd = peers.files.initramfs("watched-domain.cpio", archive)?;
    let domain =
        format!("guest-loader,addr=0x50000000,kernel={image},bootargs=console=hvc0 panic=-1 quiet");
    let ramdisk = format!("guest-loader,addr=0x58000000,initrd={}", initrd.display());
    Ok(System {
        name: "Xen with Linux".into(),
        options: options(
            "-machine virt,gic-version=3,virtualization=on -cpu neoverse-n1 -m 2G -smp 2",
        ),
        prints: super::LAST_LINE,
        waits_by_wfe: true,
        page_sizes: vec![4096],
        least: &[
            ("table_stores", 5000),
            ("tables", 100),
            ("tlbi", 500),
            ("exceptions", 100),
        ],
        unchecked: &[
            "what happens with a guest's own tables",
            "what happens with tables outside of RAM",
        ],
        accepted: &[(
            "not-invalidated",
            "the boot tables are made with the caches off and never invalidated, so lines that the boot loader left \
             may be walked",
        )],
        ..System::default()
    }
    .with("-kernel", xen)
    .with(
        "-append",
        "console=dtuart dtuart=/pl011@9000000 dom0_mem=256M",
    )
    .with("-device", domain)
    .with("-device", ramdisk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use xtask::boot::{changed, unjudged};

    #[test]
    fn new_and_missing_findings_are_refused() {
        let system = System {
            unchecked: &["what happens with tables outside of RAM"],
            ..at(Path::new("u-boot.bin"), 3)
        };
        let whole = json!({
            "guest": {"page_sizes": [4096]},
            "events": {"tables": 5, "registers": 6, "tlbi": 1, "isb": 8},
            "complete": false,
            "unchecked": ["what happens with tables outside of RAM"],
            "findings": [{"rule": "not-invalidated", "places": [{"address": "0x1"}], "example": "e"}],
        });
        let judge = |report: &Value, console: &str| {
            let (report, console) = (report.clone(), console.into());
            system.judge(&Watched { report, console })
        };
        let ended = "=> mw.l 0x9040000 0x71";
        judge(&whole, ended).unwrap();
        let error = judge(&whole, "=> ").unwrap_err().to_string();
        assert!(error.contains("did not print"), "{error}");
        let unjudged = unjudged(&whole, |report| judge(report, ended).is_ok());
        let of_findings = ["/findings/0/example", "/findings/0/places/0/address"];
        assert_eq!(unjudged, of_findings);
        for (pointer, value, part) in [
            ("/events/tlbi", json!(0), "tlbi"),
            ("/complete", json!(true), "complete"),
            (
                "/findings/0/rule",
                json!("missing-isb"),
                "1 new findings, the first: missing-isb in 0x1",
            ),
            ("/findings", json!([]), "was not found"),
        ] {
            let error = judge(&changed(&whole, pointer, value), ended).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
