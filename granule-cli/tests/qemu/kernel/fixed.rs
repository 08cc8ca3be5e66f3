//! Images that have code for one page size only: nothing else about them is fixed, and what cannot
//! be had is said in a line.

use granule_cli::{Outcome, PageSize, Request};

use crate::image::image;
use crate::kernel::machine::{ends, fixed_image, ok, request};

/// The soak builds and boots the images for the others (`cargo xtask size`).
const SIZE: PageSize = PageSize::K16;

fn fixed() -> Request {
    Request {
        image: Some(fixed_image(SIZE)),
        ..request()
    }
}

/// Bits 2:1 of the Image header's flags: 1 to 3 for 4K to 64K.
#[test]
fn the_header_names_the_page_size() {
    let number = |image: std::path::PathBuf| std::fs::read(image).unwrap()[24] >> 1 & 3;
    assert_eq!(number(fixed_image(SIZE)), 2);
    assert_eq!(number(image()), 0);
}

#[test]
fn it_boots_with_its_size_asked_or_not() {
    for page_size in [None, Some(SIZE)] {
        let kernel = ok(&Request {
            page_size,
            ..fixed()
        });
        assert_eq!(kernel.number("page_size"), SIZE.bytes());
        kernel.does_not_say("ignored");
    }
}

#[test]
fn another_size_falls_through_with_a_line() {
    let kernel = ok(&Request {
        page_size: Some(PageSize::K4),
        ..fixed()
    });
    assert_eq!(kernel.number("page_size"), SIZE.bytes());
    assert_eq!(kernel.text("page_size_source"), "fallback");
    kernel.says("command line: page size 4k ignored: this kernel was built for 16k only");
}

#[test]
fn address_sizes_are_chosen_at_boot() {
    for (cpu, bits, formats) in [
        ("max", 39, true),
        ("max", 52, true),
        ("max,lpa2=off", 48, false),
    ] {
        let kernel = ok(&Request {
            cpu: cpu.into(),
            va_bits: Some(bits),
            ..fixed()
        });
        assert_eq!(kernel.number("va_bits"), u64::from(bits));
        assert_eq!(kernel.flag("lpa2"), formats, "{cpu} {bits}");
    }
}

/// The self-check, several CPUs, and live splits while the kernel runs, with the one instance there is.
#[test]
fn everything_else_is_there_too() {
    let kernel = ok(&Request {
        cpu: "max".into(),
        smp: 2,
        append: Some("granule.bench=permissions:1000".into()),
        ..fixed()
    });
    assert_eq!(kernel.number("cpus"), 2);
    assert!(kernel.number("bench.page.random.stores") > 0);
}

#[test]
fn a_cpu_without_the_size_is_told() {
    let request = Request {
        cpu: "cortex-a72".into(),
        ..fixed()
    };
    let kernel = ends(&request, Outcome::Refused);
    let expected = "none of the page sizes that this kernel was built for";
    assert!(kernel.reason().contains(expected), "{}", kernel.reason());
}
