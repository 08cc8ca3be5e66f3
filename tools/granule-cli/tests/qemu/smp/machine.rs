//! Boots a machine of several CPUs and reads its record: code that all rooms share.

use granule_cli::{Outcome, Request};
use serde_json::Value;

use crate::booted::Booted;
pub(crate) use crate::hooked::ends;
use crate::image::image;

/// A machine of 512 MiB with so many CPUs, whose bootargs have these words.
pub(crate) fn machine(cpus: u32, words: &str) -> Request {
    Request::default()
        .image(image())
        .memory(512 << 20)
        .smp(cpus)
        .append(words)
}

/// Boots what must end well, with every fact of the CPUs that are up as it must be.
#[track_caller]
pub(crate) fn ok(request: &Request) -> Booted {
    let machine = ends(request, Outcome::Ok);
    machine.check_facts();
    machine
}

impl Booted {
    pub(crate) fn facts(&self) -> &[Value] {
        self.value("cpu_facts").as_array().unwrap()
    }

    /// The reasons why CPUs are not up; the console has each, too.
    pub(crate) fn mismatches(&self) -> Vec<&str> {
        let lines = self.texts("cpu_mismatch");
        for line in &lines {
            let mut printed = self.console.lines().filter(|one| one.ends_with(line));
            assert!(
                printed.next().is_some() && printed.next().is_none(),
                "{line}"
            );
        }
        lines
    }

    /// The one reason why a CPU is not up.
    #[track_caller]
    pub(crate) fn mismatch(&self) -> &str {
        let [line] = self.mismatches()[..] else {
            panic!("{:?}", self.mismatches());
        };
        line
    }

    #[track_caller]
    fn check_facts(&self) {
        let facts = self.facts();
        assert_eq!(self.number("cpus"), facts.len() as u64);
        let mut places: Vec<&str> = Vec::new();
        for (index, cpu) in facts.iter().enumerate() {
            let number = |key: &str| {
                cpu[key]
                    .as_u64()
                    .unwrap_or_else(|| panic!("{key} is not a number in {cpu}"))
            };
            assert_eq!(
                number("number") == 0,
                index == 0,
                "the boot CPU comes first"
            );
            for key in ["entry_el", "run_el"] {
                assert_eq!(number(key), self.number(key), "{key} in {cpu}");
            }
            // Every CPU has used its own walker.
            assert!(number("translations") >= 4096, "{cpu}");
            // One call, that of the self-check, and one to park while the linear map is rewritten;
            // the boot CPU makes them.
            let each = 1 + u64::from(self.flag("linear_map.rewritten_to_pages"));
            let calls = if index == 0 { 0 } else { each };
            assert_eq!(number("calls"), calls, "{cpu}");
            places.push(cpu["mpidr"].as_str().unwrap());
        }
        places.sort_unstable();
        places.dedup();
        assert_eq!(
            places.len(),
            facts.len(),
            "two CPUs in one place: {facts:?}"
        );
    }
}
