//! Reports of failures of a running kernel: panic, exceptions, the stack's end, and time, in
//! [`live`].

use granule_cli::{Outcome, PageSize};

use crate::kernel::machine::{ends, sized};

#[test]
fn each_way_to_die_has_its_reason() {
    for size in PageSize::ALL {
        for el in [1, 2] {
            for (what, reason) in [
                ("panic", "granule.test=panic asked for this"),
                ("exception", "data abort: translation fault"),
                (
                    "write-text",
                    "data abort: permission fault, level 3, writing 0xffffffff80000000",
                ),
                (
                    "overflow",
                    "kernel stack overflow: data abort: translation fault",
                ),
            ] {
                let kernel = ends(
                    &sized(size).append(format!("granule.test={what}")).el(el),
                    Outcome::Panic,
                );
                kernel.fails_with(reason);
                kernel.mentions("backtrace");
                kernel.mentions("x0");
                assert_eq!(kernel.boot.exit_code(), 1);
            }
        }
    }
}

mod live {
    use std::time::Duration;

    use granule_cli::{Outcome, PageSize};

    use crate::kernel::machine::{GIB, ends, sized};

    /// Half a terabyte takes a guest many times longer than a second.
    #[test]
    fn a_kernel_that_takes_too_long_is_ended() {
        let kernel = ends(
            &sized(PageSize::K4)
                .memory(512 * GIB)
                .timeout(Duration::from_secs(1)),
            Outcome::Timeout,
        );
        kernel.fails_with("no end after 1 s");
    }
}
