//! The source of the page size: command line, machine, build, none; and VA bits likewise.

use granule_cli::{PageSize, Request};

use crate::image::built;
use crate::kernel::machine::{Kernel, SIZES, ok, request, sized};
use crate::kernel::trees::Crafted;

#[track_caller]
fn assert_choice(kernel: &Kernel, size: PageSize, source: &str) {
    assert_eq!(kernel.number("page_size"), size.bytes());
    assert_eq!(kernel.text("page_size_source"), source);
}

#[test]
fn nobody_asks_and_the_smallest_is_taken() {
    for cpu in ["cortex-a53", "cortex-a76", "max"] {
        let kernel = ok(&Request {
            cpu: cpu.into(),
            ..request()
        });
        assert_choice(&kernel, PageSize::K4, "fallback");
        assert_eq!(kernel.number("va_bits"), 48);
    }
}

#[test]
fn the_last_word_on_the_command_line_counts() {
    let kernel = ok(&Request {
        append: Some("arm64.pagesize=64k quiet -- arm64.pagesize=4k".into()),
        ..sized(PageSize::K16)
    });
    assert_choice(&kernel, PageSize::K64, "command-line");
}

fn machine(compatible: &str, request: &Request) -> Kernel {
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
    let a76 = Request {
        cpu: "cortex-a76".into(),
        ..request()
    };
    let with = |size| Request {
        page_size: Some(size),
        ..a76.clone()
    };
    assert_choice(
        &machine("apple,t8103", &a76),
        PageSize::K16,
        "machine-table",
    );
    assert_choice(&machine("apple,t7000", &a76), PageSize::K4, "machine-table");
    assert_choice(&machine("linux,dummy-virt", &a76), PageSize::K4, "fallback");

    // The command line wins over what the machine may not use, with a warning.
    let kernel = machine("apple,t8103", &with(PageSize::K4));
    assert_choice(&kernel, PageSize::K4, "command-line");
    kernel.prints("page size 4k taken, though the machine table forbids it");
    let kernel = machine("apple,t8103", &with(PageSize::K64));
    assert_choice(&kernel, PageSize::K64, "command-line");

    // A CPU without the size that is preferred, and a machine without the one that is left.
    let kernel = machine(
        "apple,t8103",
        &Request {
            cpu: "cortex-a72".into(),
            ..request()
        },
    );
    assert_choice(&kernel, PageSize::K64, "fallback");
    kernel.prints("page size 16k ignored: this CPU does not have it");
}

#[test]
fn a_size_that_the_cpu_lacks_falls_through() {
    for cpu in ["cortex-a53", "cortex-a72"] {
        let kernel = ok(&Request {
            cpu: cpu.into(),
            ..sized(PageSize::K16)
        });
        assert_choice(&kernel, PageSize::K4, "fallback");
        kernel.prints("command line: page size 16k ignored: this CPU does not have it");
    }
}

#[test]
fn a_garbled_size_falls_through() {
    for text in ["5k", "4", "4kk", "=4k", "0x1000", "\u{7f}"] {
        let kernel = ok(&Request {
            append: Some(format!("arm64.pagesize={text}")),
            ..request()
        });
        assert_choice(&kernel, PageSize::K4, "fallback");
        kernel.prints("ignored: expected 4k, 16k or 64k");
    }
}

#[test]
fn va_bits_that_cannot_be_had_fall_through() {
    let cases = [
        (
            "neoverse-n1",
            PageSize::K4,
            "52",
            "arm64.vabits=52 ignored: this CPU does not have FEAT_LPA2",
        ),
        (
            "neoverse-n1",
            PageSize::K64,
            "52",
            "arm64.vabits=52 ignored: this CPU does not have FEAT_LVA",
        ),
        (
            "max",
            PageSize::K16,
            "40",
            "arm64.vabits=40 ignored: expected 36, 39, 42, 47, 48 or 52",
        ),
        (
            "max",
            PageSize::K4,
            "wide",
            "arm64.vabits=wide ignored: expected 36",
        ),
        (
            "max",
            PageSize::K4,
            "99999999999",
            "arm64.vabits=99999999999 ignored: expected 36",
        ),
    ];
    for (cpu, size, bits, line) in cases {
        let kernel = ok(&Request {
            cpu: cpu.into(),
            append: Some(format!("arm64.vabits={bits}")),
            ..sized(size)
        });
        assert_eq!(kernel.number("va_bits"), 48);
        kernel.prints(line);
    }
}

#[test]
fn the_build_has_a_default() {
    let own = Request {
        image: Some(built(
            "Image-default-16k",
            "cargo xtask image --default 16k",
        )),
        ..request()
    };
    assert_choice(&ok(&own), PageSize::K16, "build-default");
    for size in SIZES {
        let asked = Request {
            page_size: Some(size),
            ..own.clone()
        };
        assert_choice(&ok(&asked), size, "command-line");
    }
    let lacking = Request {
        cpu: "cortex-a72".into(),
        ..own.clone()
    };
    let kernel = ok(&lacking);
    assert_choice(&kernel, PageSize::K4, "fallback");
    kernel.prints("build default: page size 16k ignored: this CPU does not have it");
    let machine = machine("apple,t7000", &own);
    assert_choice(&machine, PageSize::K4, "machine-table");
}
