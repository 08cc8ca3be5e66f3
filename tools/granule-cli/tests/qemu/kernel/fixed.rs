//! Images that have code for one page size only: nothing else about them is fixed, and a request
//! that they cannot serve gives one line.

use granule_cli::{Outcome, PageSize, Request};

use crate::kernel::machine::{ends, fixed_image, ok, request};

fn with(size: PageSize) -> Request {
    request().image(fixed_image(size))
}

/// Bits 2:1 of the Image header's flags: 1 to 3 for 4K to 64K.
#[test]
fn the_header_names_the_page_size() {
    let number = |image: std::path::PathBuf| std::fs::read(image).unwrap()[24] >> 1 & 3;
    for (size, expected) in PageSize::ALL.into_iter().zip(1..) {
        assert_eq!(number(fixed_image(size)), expected, "{size:?}");
    }
    assert_eq!(number(crate::image::image()), 0);
}

#[test]
fn it_boots_with_its_size_requested_or_not() {
    for size in PageSize::ALL {
        for page_size in [None, Some(size)] {
            let kernel = ok(&Request {
                page_size,
                ..with(size)
            });
            kernel.has("page_size", size.bytes());
            kernel.does_not_print("ignored");
        }
    }
}

#[test]
fn another_size_falls_through_with_a_line() {
    for size in PageSize::ALL {
        let other = PageSize::ALL
            .into_iter()
            .find(|other| *other != size)
            .unwrap();
        let kernel = ok(&with(size).page_size(other));
        kernel.has("page_size", size.bytes());
        kernel.has("page_size_source", "fallback");
        let (other, size) = (other.word(), size.word());
        kernel.prints(&format!(
            "command line: page size {other} ignored: this kernel was built for {size} only"
        ));
    }
}

#[test]
fn address_sizes_are_chosen_at_boot() {
    for size in PageSize::ALL {
        for (cpu, bits, formats) in [
            ("max", 39, true),
            ("max", 52, true),
            ("max,lpa2=off", 48, false),
        ] {
            let kernel = ok(&with(size).cpu(cpu).va_bits(bits));
            kernel.has("va_bits", bits);
            let formats = formats && size != PageSize::K64;
            assert_eq!(kernel.flag("lpa2"), formats, "{size:?} {cpu} {bits}");
        }
    }
}

/// The self-check, several CPUs, and live splits while the kernel runs, with the one instance there is.
#[test]
fn everything_else_is_there_too() {
    for size in PageSize::ALL {
        let kernel = ok(&with(size)
            .cpu("max")
            .smp(2)
            .append("granule.bench=permissions:1000"));
        kernel.has("cpus", 2);
        assert!(kernel.number("bench.page.random.stores") > 0);
    }
}

#[test]
fn a_cpu_without_the_size_is_reported() {
    let kernel = ends(&with(PageSize::K16).cpu("cortex-a72"), Outcome::Refused);
    let expected = "none of the page sizes that this kernel was built for";
    kernel.fails_with(expected);
}
