//! U-Boot's prompt, with the lines of docs/booting.md.

use granule_cli::boot::prompt::{Way, commands};
use granule_cli::{Firmware, Initramfs, Outcome, PageSize, Request};
use granule_testing::text::assert_ends_with;

use crate::boot::guests;
use crate::booted::Booted;
use crate::hooked;
use crate::image::image;
use crate::user::machine::{ends, machine, program};

/// The lines of the block behind a marker of docs/booting.md.
fn documented_lines(marker: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/booting.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (_, rest) = document.split_once(marker).unwrap();
    let block = rest.split("```").nth(1).unwrap();
    // The first line is the block's language; the last one is the end's indentation.
    let lines = block.lines().skip(1).map(str::trim);
    let lines = lines.filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// A boot by the lines behind a marker, which must be those that are typed for this way.
#[track_caller]
fn booted(marker: &str, way: Way, request: &Request, name: &str) -> Booted {
    let typed = documented_lines(marker);
    assert_eq!(
        typed,
        commands(way, &format!("arm64.pagesize={name}"), true)
    );
    let archive = Initramfs::new()
        .directory("/bin")
        .program("/bin/prog", &program())
        .program("/init", b"#!/bin/prog hello\n");
    let ran = ends(request, archive, Outcome::Ok);
    for line in &typed {
        ran.prints_line(&format!("=> {line}"));
    }
    let bytes = request.page_size.unwrap().bytes();
    ran.prints_line(&format!("page size {bytes}"));
    ran.has("page_size", bytes);
    ran
}

#[test]
fn documented_lines_boot_the_kernel_and_its_first_program() {
    let request = machine(PageSize::K16, 2).firmware(Firmware::UBoot);
    let ran = booted("<!-- typed: u-boot -->", Way::Booti, &request, "16k");
    ran.has("cpus", 2);
    ran.has("entry_el", 2);
    ran.has("linear_map.ram_bytes", 256 << 20);
    assert_eq!(ran.json["qemu"]["firmware"], "u-boot");
    assert_eq!(ran.json["page_size_source"], "command-line");
}

#[test]
fn documented_lines_boot_it_as_an_efi_program() {
    let request = machine(PageSize::K4, 1).firmware(Firmware::UBootEfi);
    booted("<!-- typed: u-boot-efi -->", Way::Bootefi, &request, "4k");
}

#[test]
fn long_bootargs_arrive_whole_and_no_initramfs_is_needed() {
    let words = "x=0123456789;$a ".repeat(30);
    let request = Request::default()
        .image(image())
        .memory(256 << 20)
        .firmware(Firmware::UBoot)
        .el(1)
        .append(format!("{words}arm64.pagesize=64k"));
    let boot = hooked::ends(&request, Outcome::Ok);
    boot.has("page_size", 64 << 10);
    boot.has("page_size_source", "command-line");
    boot.has("entry_el", 1);
}

#[test]
fn a_prompt_that_comes_back_ends_the_boot() {
    // Without a PE header it is not an EFI program.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), guests::prints("never", 2)).unwrap();
    let request = Request::default()
        .image(file.path().to_owned())
        .memory(256 << 20)
        .firmware(Firmware::UBootEfi);
    let boot = hooked::run(&request);
    assert_eq!(boot.outcome, Outcome::GuestExit, "{}", boot.last_line());
    assert!(!boot.console_text().contains("never"));
    let reason = boot.reason.unwrap();
    assert_ends_with(
        &reason,
        "prompt after `bootefi ${kernel_addr_r} ${fdt_addr}`",
    );
}
