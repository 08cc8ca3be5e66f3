//! The source of the page size: command line, machine, build, none; and VA bits likewise.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::Request;

use crate::booted::Booted;
use crate::image::built;
use crate::kernel::machine::{ok, request, sized};
use crate::kernel::trees::Crafted;

#[track_caller]
fn assert_choice(kernel: &Booted, size: PageSize, source: &str) {
    kernel.has("page_size", size.bytes());
    kernel.has("page_size_source", source);
}

#[test]
fn nobody_asks_and_the_smallest_is_taken() {
    for cpu in ["cortex-a53", "cortex-a76", "max"] {
        let kernel = ok(&request().cpu(cpu));
        assert_choice(&kernel, K4, "fallback");
        kernel.has("va_bits", 48);
    }
}

#[test]
fn the_last_word_on_the_command_line_counts() {
    let kernel = ok(&sized(K16).append("arm64.pagesize=64k quiet -- arm64.pagesize=4k"));
    assert_choice(&kernel, K64, "command-line");
}

fn machine(compatible: &str, request: &Request) -> Booted {
    let mut tree = Crafted::new(request);
    // A list, the most exact name first, as the specification has it.
    tree.set(
        "/",
        "compatible",
        format!("vendor,board\0{compatible}").as_str(),
    );
    tree.ok()
}

#[test]
fn the_machine_prefers_and_forbids() {
    let a76 = request().cpu("cortex-a76");
    let with = |size| a76.clone().page_size(size);
    assert_choice(&machine("apple,t8103", &a76), K16, "machine-table");
    assert_choice(&machine("apple,t7000", &a76), K4, "machine-table");
    assert_choice(&machine("linux,dummy-virt", &a76), K4, "fallback");

    // The command line wins over what the machine may not use, with a warning.
    let kernel = machine("apple,t8103", &with(K4));
    assert_choice(&kernel, K4, "command-line");
    kernel.prints("page size 4k taken, though the machine table forbids it");
    let kernel = machine("apple,t8103", &with(K64));
    assert_choice(&kernel, K64, "command-line");

    // A CPU without the size that is preferred, and a machine without the one that is left.
    let kernel = machine("apple,t8103", &request().cpu("cortex-a72"));
    assert_choice(&kernel, K64, "fallback");
    kernel.prints("page size 16k ignored: this CPU does not have it");
}

#[test]
fn a_size_that_the_cpu_lacks_falls_through() {
    for cpu in ["cortex-a53", "cortex-a72"] {
        let kernel = ok(&sized(K16).cpu(cpu));
        assert_choice(&kernel, K4, "fallback");
        kernel.prints("command line: page size 16k ignored: this CPU does not have it");
    }
}

#[test]
fn a_garbled_size_falls_through() {
    for text in ["5k", "4", "4kk", "=4k", "0x1000", "\u{7f}"] {
        let kernel = ok(&request().append(format!("arm64.pagesize={text}")));
        assert_choice(&kernel, K4, "fallback");
        kernel.prints("ignored: expected 4k, 16k or 64k");
    }
}

#[test]
fn va_bits_that_cannot_be_had_fall_through() {
    let expected = "expected 36, 39, 42, 47, 48 or 52";
    for (cpu, size, bits, why) in [
        ("neoverse-n1", K4, "52", "this CPU does not have FEAT_LPA2"),
        ("neoverse-n1", K64, "52", "this CPU does not have FEAT_LVA"),
        ("max", K16, "40", expected),
        ("max", K4, "wide", expected),
        ("max", K4, "99999999999", expected),
    ] {
        let words = format!("arm64.vabits={bits}");
        let kernel = ok(&sized(size).append(&words).cpu(cpu));
        kernel.has("va_bits", 48);
        kernel.prints(&format!("{words} ignored: {why}"));
    }
}

#[test]
fn the_build_has_a_default() {
    let own = request().image(built(
        "Image-default-16k",
        "cargo xtask image --default 16k",
    ));
    assert_choice(&ok(&own), K16, "build-default");
    for size in PageSize::ALL {
        let asked = own.clone().page_size(size);
        assert_choice(&ok(&asked), size, "command-line");
    }
    let lacking = own.clone().cpu("cortex-a72");
    let kernel = ok(&lacking);
    assert_choice(&kernel, K4, "fallback");
    kernel.prints("build default: page size 16k ignored: this CPU does not have it");
    let machine = machine("apple,t7000", &own);
    assert_choice(&machine, K4, "machine-table");
}
