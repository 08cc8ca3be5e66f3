//! Several kernels on one console, with guests of a few instructions in place of both: what
//! `granule boot` makes of ends that no kernel should come to.

use granule_cli::{Kexec, Outcome, Request};
use serde_json::Value;

use crate::boot::guests;
use crate::booted::Booted;

/// Where the guests lie: QEMU puts an image that has no place of its own there.
const LOADED: u64 = 0x4020_0000;

/// Boots `first`, which is to leave for `next`; the program that would see to it is not looked at.
pub(super) fn leaves(first: &[u8], next: &[u8], change: impl FnOnce(&mut Request)) -> Booted {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    file("granule-kexec", b"no program");
    let mut request = Request {
        image: Some(file("Image", first)),
        memory: 256 << 20,
        kexec: Some(Kexec {
            image: Some(file("next", next)),
            ..Kexec::default()
        }),
        ..Request::default()
    };
    change(&mut request);
    Booted::by(&request)
}

pub(super) const LEAVING: &str = "first\n@granule page_size=4096\n@granule kexec.leaving.dsb=3\n\
                       @granule outcome=ok\n@granule end\n";

fn leaver(rest: &str) -> Vec<u8> {
    guests::prints(&format!("{LEAVING}{rest}"), 2)
}

#[test]
fn each_kernel_has_its_record() {
    let second = "second\n@granule page_size=65536\n@granule kexec.from_page_size=4096\n\
                  @granule outcome=ok\n@granule end\n";
    let done = leaves(&leaver(second), &guests::parks("unused"), |_| ());
    done.ended(Outcome::Ok);
    assert_eq!(done.console, "first\nsecond\n");
    done.has("page_size", 65536);
    done.has("boots.0.page_size", 4096);
    done.has("boots.0.linear_map.tables", Value::Null);
    done.has("boots.1.page_size", 65536);
    done.has("boots.1.ended", true);
    assert_eq!(done.boot.boots.len(), 2);
    done.has("kexec.from_page_size", 4096);
    done.has("kexec.to_page_size", 65536);
    done.has("kexec.dsb", 3);
    // It did not report what it got.
    done.has("kexec.digest_ok", Value::Null);
}

#[test]
fn a_second_record_that_is_cut_short_is_not_a_good_end() {
    for rest in [
        "@granule page_size=65536\n",
        "@granule outcome=ok\n",
        "@granule outcome=ok\n@granule en",
    ] {
        let done = leaves(&leaver(rest), &guests::parks("unused"), |_| ());
        done.ended(Outcome::GuestExit);
        done.fails_with("the next kernel: ");
        assert_eq!(done.boot.exit_code(), 1);
    }
}

#[test]
fn of_one_of_ours_something_must_be_heard() {
    let done = leaves(&leaver("no record\n"), &guests::parks("unused"), |_| ());
    done.ended(Outcome::GuestExit);
    // Any other may be silent.
    let other = guests::prints("", 2);
    let done = leaves(&leaver("Linux version\n"), &other, |_| ());
    done.ended(Outcome::Ok);
    done.has("page_size", 4096);
    done.has("kexec.dsb", 3);
    assert_eq!(done.boot.boots.len(), 1);
    let panics = leaver("[    1.0] Kernel panic - not syncing: no init\n");
    let done = leaves(&panics, &other, |_| ());
    done.ended(Outcome::Panic);
}

#[test]
fn bytes_that_changed_on_the_way_are_reported() {
    let second = "@granule page_size=65536\n@granule kexec.segment.kernel.bytes=7\n\
                  @granule kexec.segment.kernel.digest=0x1\n@granule outcome=ok\n@granule end\n";
    let done = leaves(&leaver(second), &guests::parks("unused"), |_| ());
    done.ended(Outcome::SelfCheckFailed);
    done.fails_with("the image as it was loaded has 7 bytes");
    done.has("kexec.digest_ok", false);
}

#[test]
fn a_first_kernel_that_stays_is_not_a_good_end() {
    let stays = "@granule page_size=4096\n@granule outcome=ok\n@granule end\n";
    let done = leaves(&guests::prints(stays, 2), &guests::parks("unused"), |_| ());
    done.ended(Outcome::GuestExit);
    let refuses = "@granule kexec.refused=no room\n@granule outcome=guest-exit\n@granule end\n";
    let done = leaves(
        &guests::prints(refuses, 2),
        &guests::parks("unused"),
        |_| (),
    );
    assert_eq!(done.last_line(), "granule: refused: no room");
    assert_eq!(done.boot.exit_code(), 1);
}

/// A next kernel that parks with its MMU off never prints: its reason lies where its image was put.
#[test]
fn a_next_kernel_that_parks_is_reported_with_its_reason() {
    let message = "no page size that this CPU has";
    let (guest, record) = guests::prints_and_parks_elsewhere(
        |record| {
            let next = guests::parks(message);
            let at = next
                .windows(16)
                .position(|it| it == b"GRANULE-BOOTREC\0")
                .unwrap();
            format!(
                "@granule kexec.leaving.segment.kernel.start={:#x}\n@granule outcome=ok\n@granule end\n",
                LOADED + record - at as u64
            )
        },
        message,
    );
    assert!(record > 64);
    let done = leaves(&guest, &guests::parks(message), |_| ());
    assert_eq!(
        done.last_line(),
        format!("granule: refused: the next kernel: {message}")
    );
}

#[test]
fn files_that_cannot_be_read_are_bad_usage() {
    let first = guests::prints("", 2);
    type Change = fn(&mut Kexec);
    let changes: [(Change, &str); 4] = [
        (
            |k| k.image = Some("/nonexistent".into()),
            "--kexec /nonexistent",
        ),
        (
            |k| k.image = Some("/".into()),
            "--kexec /: is not a regular file",
        ),
        (|k| k.initrd = Some("/none".into()), "--kexec-initrd /none"),
        (
            |k| k.page_size = Some(granule_cli::PageSize::K64),
            "--kexec-page-size 64k",
        ),
    ];
    for (change, part) in changes {
        let done = leaves(&first, &first, |r| change(r.kexec.as_mut().unwrap()));
        assert_eq!(done.boot.exit_code(), 2, "{}", done.last_line());
        done.fails_with(part);
    }
}
