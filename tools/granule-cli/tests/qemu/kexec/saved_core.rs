//! `granule boot --crash`: from each page size a kernel crashes into the same image with another one, which saves its
//! memory; the core is read with the tables that the dead kernel had.

use std::fs;

use granule::arch::PhysicalAddress;
use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Crash, Outcome, Request};
use granule_inspect::source::Source;
use granule_inspect::{Options, open};

use crate::booted::Booted;
use crate::image::image;
use crate::kexec::machine::machine;

const RAM: u64 = 0x4000_0000;
const MEMORY: u64 = 512 << 20;
const RESERVED: u64 = 128 << 20;

fn crashing(request: &Request, crash: Crash) -> Booted {
    Booted::by(&Request {
        append: Some("crashkernel=128M".into()),
        crash: Some(Crash {
            crash: true,
            ..crash
        }),
        ..request.clone()
    })
}

fn saves(from: PageSize, cpus: u32, to: PageSize) {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("core");
    let ran = crashing(
        &machine(from, cpus),
        Crash {
            page_size: Some(to),
            output: Some(output.clone()),
            ..Crash::default()
        },
    );
    ran.ended(Outcome::Ok);
    let reason = "sysrq: crash requested by process 1";
    assert!(ran.text("crash.reason").ends_with(reason));
    assert_eq!(ran.text("boots.0.reason"), ran.text("crash.reason"));
    ran.has("boots.0.outcome", "panic");
    ran.has("boots.1.page_size", to.bytes());
    ran.has("crash.core.page_size", from.bytes());
    ran.has("crash.core.va_bits", ran.number("boots.0.va_bits"));
    ran.has("crash.core.ram_bytes", MEMORY - RESERVED);
    let bytes = fs::metadata(&output).unwrap().len();
    ran.has("crash.core.bytes", bytes);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    // All RAM is mapped by the linear map, and other windows beside it.
    let mapped = ran.number("crash.core.totals.mapped_bytes");
    assert!(mapped > MEMORY, "{mapped}");
    // The image that crashed is where QEMU had put it.
    let opened = open(&Source::File(output), &Options::default()).unwrap();
    let range = RAM..RAM + MEMORY - RESERVED;
    assert_eq!(opened.memory.ranges().first(), Some(&range));
    let mut found = vec![0; 4096];
    let place = PhysicalAddress(RAM + (2 << 20));
    opened.memory.read(place, &mut found).unwrap();
    assert!(found == fs::read(image()).unwrap()[..4096]);
}

#[test]
fn a_kernel_of_4k_pages_leaves_a_core() {
    saves(K4, 1, K64);
}

#[test]
fn a_kernel_of_16k_pages_leaves_a_core() {
    saves(K16, 1, K4);
}

#[test]
fn a_kernel_of_64k_pages_on_four_cpus_leaves_a_core() {
    saves(K64, 4, K16);
}

#[test]
fn without_room_for_a_crash_kernel_nothing_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let crash = Crash {
        output: Some(dir.path().join("core")),
        ..Crash::default()
    };
    let ran = crashing(&machine(K4, 1).memory(128 << 20), crash);
    ran.ended(Outcome::Refused);
    ran.fails_with("no memory is reserved for a crash kernel");
    ran.has("crash", serde_json::Value::Null);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
