//! The report of `granule boot --kexec` about several kernels on one console: from every page size
//! into every other, each with its record, and the bytes that arrived held against the files.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Initramfs, Kexec, Outcome, Request};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::NamedTempFile;

use test_case::test_case;

use crate::boot::guests;
use crate::booted::Booted;
use crate::image::{built, image};
use crate::kernel::machine::{MIB, RAM};
use crate::kernel::trees::{Crafted, cells};
use crate::kexec::machine::{NEXT, archive, boots, machine};

/// That machine, leaving for the same image with pages of that size.
fn into(size: PageSize, request: Request, change: impl FnOnce(&mut Kexec)) -> Request {
    let mut kexec = Kexec {
        page_size: Some(size),
        ..Kexec::default()
    };
    change(&mut kexec);
    Request {
        kexec: Some(kexec),
        ..request
    }
}

/// Checks that hold whenever a kernel has left for another of ours.
#[track_caller]
fn arrived(ran: &Booted, from: PageSize, to: PageSize) {
    assert_eq!(ran.boot.boots.len(), 2);
    for (boot, size) in [("boots.0", from), ("boots.1", to)] {
        ran.has(&format!("{boot}.page_size"), size.bytes());
        ran.has(&format!("{boot}.ended"), true);
        ran.has(&format!("{boot}.outcome"), "ok");
    }
    ran.has("page_size", to.bytes());
    ran.has("kexec.from_page_size", from.bytes());
    ran.has("kexec.to_page_size", to.bytes());
    ran.has("kexec.digest_ok", true);
    let image = std::fs::metadata(image()).unwrap().len();
    assert!(ran.number("kexec.bytes_total") > image);
    // Bytes in place were cleaned when they were loaded.
    assert_eq!(
        ran.number("kexec.lines_cleaned") > 0,
        ran.number("kexec.bytes_copied") > 0
    );
    assert!((1..10).contains(&ran.number("kexec.dsb")), "{}", ran.json);
    // The next one has as many CPUs as the first.
    ran.has("boots.0.cpus", ran.value("boots.1.cpus").clone());
}

/// From each page size into each, on one CPU and on several, entered at either level.
#[test_case(K4)]
#[test_case(K16)]
#[test_case(K64)]
fn from_one_into_every_page_size(size: PageSize) {
    for (to, (cpus, el)) in PageSize::ALL.into_iter().zip([(1, 2), (2, 1), (4, 2)]) {
        let first = machine(size, cpus).el(el);
        let ran = boots(&into(to, first, |_| ()), Outcome::Ok);
        arrived(&ran, size, to);
        // The machine has plenty of room.
        ran.has("kexec.bytes_copied", 0);
        ran.has("boots.1.entry_el", el);
    }
}

#[test]
fn everything_can_be_copied_with_the_mmu_on_or_off() {
    for (size, to, uncached) in [(K4, K64, false), (K64, K16, true), (K16, K4, true)] {
        let request = into(to, machine(size, 2), |kexec| {
            kexec.copy = true;
            kexec.uncached = uncached;
        });
        let ran = boots(&request, Outcome::Ok);
        arrived(&ran, size, to);
        assert!(ran.number("kexec.bytes_copied") >= ran.number("kexec.bytes_total"));
        assert_eq!(ran.value("boots.1.kexec.uncached"), &json!(uncached));
        ran.has("kexec.instructions", Value::Null);
    }
}

#[test]
fn with_icount_the_relocation_is_counted() {
    let counted = |copy| {
        let first = machine(K4, 1).counted();
        let request = into(K16, first, |kexec| kexec.copy = copy);
        let ran = boots(&request, Outcome::Ok);
        arrived(&ran, K4, K16);
        assert!(ran.number("linear_map.instructions") > 0);
        (
            ran.number("kexec.instructions"),
            ran.number("kexec.bytes_copied"),
        )
    };
    let ((in_place, none), (copying, bytes)) = (counted(false), counted(true));
    assert_eq!(none, 0);
    // An instruction copies at most 16 bytes.
    assert!(
        in_place > 0 && copying > in_place + bytes / 16,
        "{in_place} without, {copying} with {bytes} bytes to copy"
    );
}

#[test]
fn the_next_kernel_has_its_own_initramfs_and_command_line() {
    let user = std::fs::read(built("granule-user", "cargo xtask user")).unwrap();
    let disk = file(&Initramfs::new().program("/init", &user).bytes());
    for (size, to) in [(K4, K64), (K64, K4)] {
        let request = into(to, machine(size, 2), |kexec| {
            kexec.initrd = Some(disk.path().to_owned());
            kexec.append = Some("quiet -- hello you".into());
        });
        let ran = boots(&request, Outcome::Ok);
        arrived(&ran, size, to);
        for line in ["hello from process 1", "argument you"] {
            ran.prints_line(line);
        }
        ran.has("boots.1.user.exit_code", 0);
    }
}

#[test]
fn a_failure_of_the_next_kernel_is_its_own() {
    let request = into(K16, machine(K4, 2), |kexec| {
        kexec.append = Some("granule.test=panic".into());
    });
    let ran = boots(&request, Outcome::Panic);
    let reason = ran.boot.reason.as_deref().unwrap_or_default();
    assert!(reason.starts_with("the next kernel: "), "{reason}");
    ran.has("boots.0.outcome", "ok");
    ran.has("boots.1.outcome", "panic");
}

/// Before its tables are built it refuses with its MMU off, where it has only its tree.
#[test]
fn a_refusal_of_the_next_kernel_is_its_own() {
    let request = into(K4, machine(K64, 1), |kexec| {
        kexec.append = Some("granule.trace=1".into());
    });
    let ran = boots(&request, Outcome::Refused);
    let reason = ran.boot.reason.as_deref().unwrap_or_default();
    let line = "the next kernel: granule.trace= cannot be read";
    assert!(reason.starts_with(line), "{reason}");
    ran.has("boots.0.outcome", "ok");
}

/// That machine, leaving for another image.
fn for_image(image: &Path, request: Request) -> Request {
    Request {
        kexec: Some(Kexec {
            image: Some(image.to_owned()),
            ..Kexec::default()
        }),
        ..request
    }
}

fn file(bytes: &[u8]) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

/// Without a console there is only the boot record, and that lies where the first kernel put the image.
#[test]
fn a_next_kernel_that_parks_without_a_word_is_reported_with_its_reason() {
    let next = file(&guests::parks("nothing to boot on"));
    for (size, cpus) in [(K4, 2), (K16, 1), (K64, 1)] {
        let ran = boots(
            &for_image(next.path(), machine(size, cpus)),
            Outcome::Refused,
        );
        let line = "the next kernel: nothing to boot on";
        assert_eq!(ran.reason(), line);
        assert!(ran.boot.boot_record.as_ref().unwrap().is_parked());
        assert_eq!(ran.boot.boots.len(), 1);
    }
}

#[test]
fn a_next_kernel_of_others_may_print_what_it_likes() {
    for (size, el) in [(K4, 2), (K16, 1), (K64, 2)] {
        let machine = machine(size, 2).el(el);
        let next = file(&guests::prints("another kernel\n", el));
        let ran = boots(&for_image(next.path(), machine.clone()), Outcome::Ok);
        ran.prints_line("another kernel");
        // The known facts are those of the first one.
        ran.has("page_size", size.bytes());
        ran.has("kexec.from_page_size", size.bytes());
        assert!(ran.number("kexec.bytes_total") > 0);
        for unknown in [
            "kexec.to_page_size",
            "kexec.digest_ok",
            "kexec.instructions",
        ] {
            ran.has(unknown, Value::Null);
        }
        let panics = file(&guests::prints("Kernel panic - not syncing: none\n", el));
        boots(&for_image(panics.path(), machine), Outcome::Panic);
    }
}

/// Three kernels: the second is left for with an initramfs that leaves again.
#[test]
fn a_kernel_that_was_left_for_leaves_in_its_turn() {
    // With another disk than the host gave: its disk is not a measure for the third.
    let again = format!(
        "load {NEXT} --initrd /etc/kexec --append arm64.pagesize=64k granule.kexec=digest\nexec\n"
    );
    let disk = file(&archive(&again).bytes());
    let request = into(K16, machine(K4, 2), |kexec| {
        kexec.initrd = Some(disk.path().to_owned());
    });
    let ran = boots(&request, Outcome::Ok);
    let sizes: Vec<_> = (0..3)
        .map(|at| ran.number(&format!("boots.{at}.page_size")))
        .collect();
    assert_eq!(sizes, [4096, 16384, 65536]);
    ran.has("kexec.from_page_size", 16384);
    // The host never had what the second was given.
    ran.has("kexec.digest_ok", Value::Null);
}

/// Memory that is handed over is stamped with the page size of who wrote it.
#[test]
fn handed_over_data_is_read_under_another_page_size() {
    let first = machine(K4, 1).append("granule.persist=0x4f000000,0x1000");
    let ran = boots(&into(K64, first, |_| ()), Outcome::Ok);
    arrived(&ran, K4, K64);
    ran.has("boots.0.persist.boots", 1);
    ran.has("boots.1.persist.boots", 2);
    ran.has("boots.1.persist.last_page_size", 4096);
}

/// The kernel's own line about what it will not load is the reason, and the exit code shows that it
/// was not done.
#[test]
fn a_refusal_is_printed_in_the_kernels_words() {
    let whole = std::fs::read(image()).unwrap();
    let mut endless = whole.clone();
    endless[16..24].copy_from_slice(&(8_u64 << 30).to_le_bytes());
    for (size, bytes) in [
        (K4, &b"no Image at all"[..]),
        (K16, &whole[..63]),
        (K64, &endless),
    ] {
        let next = file(bytes);
        let request = for_image(next.path(), machine(size, 2));
        let ran = boots(&request, Outcome::Refused);
        assert_eq!(ran.boot.exit_code(), 1);
        let refused = ran.value("kexec.refused").as_str().unwrap();
        assert_eq!(ran.reason(), refused);
        assert!(
            refused.lines().count() == 1 && refused.len() > 20,
            "{refused}"
        );
        // It went on, and ended as a kernel does whose first process gave up.
        ran.has("boots.0.outcome", "guest-exit");
        ran.has("boots.0.user.exit_code", 1);
    }
}

/// The dump of a crashed kernel may be in the rest of RAM: no kernel after it may write there.
#[test]
fn memory_that_another_kernel_keeps_is_kept_by_the_next_kernel() {
    let disk = file(&archive(&format!("load {NEXT}\nexec\n")).bytes());
    let mut tree = Crafted::new(&machine(K4, 1));
    let (start, bytes) = (RAM + 128 * MIB, disk.as_file().metadata().unwrap().len());
    tree.set("/chosen", "linux,initrd-start", start);
    tree.set("/chosen", "linux,initrd-end", start + bytes);
    let usable = cells(&[(RAM, 384 * MIB)]);
    tree.set("/chosen", "linux,usable-memory-range", usable);
    let (request, _files) = tree.request();
    let request = request.initrd(disk.path().to_owned());
    let ran = boots(&request, Outcome::Ok);
    let line = format!(
        "linux,usable-memory-range leaves {} bytes of RAM",
        384 * MIB
    );
    assert_eq!(ran.console.matches(&line).count(), 2, "{}", ran.console);
}
