//! Traces of CPUs that run beside each other, each in a thread of the host: they write one trace, in one order. And
//! one of a boot that a limit of time ends.

use std::time::Duration;

use granule_cli::{LinearMap, Outcome, PageSize};

use crate::trace::programs::{check, runs};
use crate::trace::several_cpus::{is_clean, several};
use crate::trace::traces::record;

#[test]
fn several_come_up_and_are_parked() {
    for size in PageSize::ALL {
        let recorded = several("granule.test=park", |request| {
            request.page_size = Some(size);
        });
        is_clean(&recorded, &format!("{size:?}"));
    }
}

#[test]
#[ignore = "stress in real time: a case of the soak"]
fn programs_meet() {
    for size in PageSize::ALL {
        let recorded = runs("storm", |request| {
            request.page_size = Some(size);
            request.smp = 4;
        });
        let checked = check(&recorded.text());
        assert!(checked.header.complete, "{size:?}");
        assert!(checked.is_clean(), "{size:?}:\n{}", checked.text());
    }
}

#[test]
fn a_kernel_that_never_comes_to_its_end_leaves_what_it_did_until_then() {
    let recorded = record(|request| {
        // Half a minute of work here.
        request.memory = 16 << 30;
        request.linear_map = Some(LinearMap::Base);
        request.page_size = Some(PageSize::K4);
        request.timeout = Duration::from_secs(2);
        request.append = Some("arm64.bbm=0".into());
    });
    let boot = &recorded.ran.boot;
    assert_eq!(boot.outcome, Outcome::Timeout, "{}", boot.last_line());
    let trace = boot.trace.as_ref().unwrap();
    assert!(!trace.complete);
    assert_eq!(recorded.text().lines().count() as u64, trace.events + 1);
}
