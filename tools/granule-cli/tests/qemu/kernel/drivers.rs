//! Drivers that work with some page sizes only, checked when they are probed.

use granule_cli::PageSize::{self, K4, K16, K64};
use serde_json::{Value, json};

use crate::kernel::machine::{ok, sized};

fn drivers(json: &Value) -> Vec<(String, String, bool)> {
    let all = json["drivers"].as_array().unwrap().iter();
    all.map(|driver| {
        let text = |key: &str| driver[key].as_str().unwrap().to_owned();
        let in_use = driver["in_use"].as_bool().unwrap();
        (text("name"), text("page_sizes"), in_use)
    })
    .collect()
}

#[test]
fn a_driver_that_needs_another_page_size_is_left_out_and_the_boot_goes_on() {
    let needs: [(&str, &str, &[PageSize]); 5] = [
        ("needs-4k", "4k", &[K4]),
        ("needs-16k", "16k", &[K16]),
        ("needs-64k", "64k", &[K64]),
        ("needs-at-most-16k", "4k,16k", &[K4, K16]),
        ("needs-4k-or-64k", "4k,64k", &[K4, K64]),
    ];
    for size in PageSize::ALL {
        for (name, sizes, works) in needs {
            // The second CPU takes the interrupt controller.
            let kernel = ok(&sized(size).append(format!("granule.test={name}")).smp(2));
            let works = works.contains(&size);
            let every = "4k,16k,64k";
            let expected = [
                ("pl011", every, true),
                ("gic-v3", every, true),
                (name, sizes, works),
            ];
            let expected = expected.map(|(name, sizes, used)| (name.into(), sizes.into(), used));
            assert_eq!(drivers(&kernel.json), expected, "{size:?} {name}");
            let used = format!("granule: driver {name} is in use");
            assert_eq!(kernel.console.contains(&used), works, "{}", kernel.console);
            if works {
                assert_eq!(kernel.json["drivers_left_out"], json!([]));
                continue;
            }
            let [line] = &kernel.json["drivers_left_out"].as_array().unwrap()[..] else {
                panic!("{}", kernel.json);
            };
            let line = line.as_str().unwrap();
            for word in [
                format!("driver {name} works with "),
                format!("runs with {}", size.word()),
                "arm64.pagesize=".to_owned(),
            ] {
                assert!(line.contains(&word), "{line:?} lacks {word:?}");
            }
            kernel.mentions(line);
        }
    }
}

#[test]
fn the_other_interrupt_controller_is_probed_where_it_is_there() {
    let kernel = ok(&sized(K64).smp(2).gic(2));
    let names: Vec<_> = drivers(&kernel.json).into_iter().map(|one| one.0).collect();
    assert_eq!(names, ["pl011", "gic-v2"]);
}
