//! The boots of the matrix; and every false value in a record is found.

use super::*;
use std::collections::BTreeSet;

#[test]
fn every_pair_is_left_in_every_way_on_every_machine() {
    let all = full();
    let unlike = 6 * CPUS.len() * 2 * WAYS.len();
    assert_eq!(all.len(), unlike + 3 * WAYS.len() + 9);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    for pair in pairs() {
        let of_pair = |machine| {
            all.iter()
                .filter(move |case| case.machine == machine && (case.from, case.to) == pair)
        };
        let ways: BTreeSet<_> = of_pair(WITH_VHE)
            .map(|case| (case.copy, case.uncached, case.cpus, case.el))
            .collect();
        let each = if pair.0 == pair.1 { 1 } else { CPUS.len() * 2 };
        assert_eq!(ways.len(), each * WAYS.len(), "{pair:?}");
        assert_eq!(of_pair(WITHOUT_VHE).count(), 1, "{pair:?}");
    }
    let without = || all.iter().filter(|case| case.machine == WITHOUT_VHE);
    let ways: BTreeSet<_> = without().map(|case| (case.copy, case.uncached)).collect();
    let cpus: BTreeSet<_> = without().map(|case| case.cpus).collect();
    assert_eq!((ways.len(), cpus.len()), (WAYS.len(), CPUS.len()));
    assert!(without().all(|case| case.el == 2));
}

#[test]
fn random_cases_follow_the_seed_and_have_a_disk() {
    assert_eq!(random(7, 30), random(7, 30));
    assert_ne!(random(7, 30), random(8, 30));
    let (mut small, mut large) = (false, false);
    for case in random(7, 30) {
        let payload = case.payload().unwrap();
        small |= payload < 1 << 16;
        large |= payload > 1 << 20;
        let text = case.to_string();
        let disk = format!("--kexec-initrd={}", payload::path(payload).display());
        assert!(text.contains(&disk), "{text}");
        assert!(MACHINES[case.machine].els.contains(&case.el), "{text}");
    }
    assert!(small && large);
}

fn record(case: &KexecBoot) -> Value {
    let stays = case.el == 2 && case.machine().vhe;
    let boot = |kib: u32| {
        json!({
            "page_size": kib << 10, "page_size_source": "command-line",
            "entry_el": case.el, "run_el": if stays { 2 } else { 1 }, "vhe": stays,
            "cpus": case.cpus, "cpu_mismatch": [], "outcome": "ok", "ended": true,
            "record_faults": [],
        })
    };
    let mut next = boot(case.to);
    next["kexec"] = json!({"uncached": case.uncached});
    if let Some(bytes) = case.payload {
        next["kexec"]["segment"]["initrd"]["bytes"] = json!(bytes + 300);
    }
    let total = 1_000_000 + case.payload.map_or(0, |bytes| bytes + 300) + 5000;
    json!({
        "image": {"sha256": "aa", "bytes": 1_000_000},
        "boots": [boot(case.from), next],
        "kexec": {
            "from_page_size": case.from << 10, "to_page_size": case.to << 10,
            "bytes_total": total, "bytes_copied": if case.copy { total } else { 0 },
            "lines_cleaned": if case.copy { total / 64 } else { 0 },
            "dsb": if case.uncached { 7 } else { 5 }, "digest_ok": true,
        },
    })
}

#[test]
fn a_true_record_passes_and_each_lie_is_found() {
    for case in full().into_iter().chain(random(3, 20)) {
        let good = record(&case);
        assert_eq!(case.mismatches(&good, "aa"), Vec::<String>::new(), "{case}");
        assert_eq!(case.mismatches(&good, "bb").len(), 1);
        let is_right = |record: &Value| case.mismatches(record, "aa").is_empty();
        assert_eq!(boot::unjudged(&good, is_right), [""; 0], "{case}");
        for (pointer, lie) in [
            ("/boots/1", Value::Null),
            ("/kexec/bytes_total", json!(1_000_000)),
            (
                "/kexec/bytes_copied",
                json!(if case.copy { 0 } else { 4096 }),
            ),
            ("/kexec/lines_cleaned", json!(if case.copy { 0 } else { 1 })),
        ] {
            assert!(
                !is_right(&boot::changed(&good, pointer, lie)),
                "{case}: {pointer}"
            );
        }
        let mut third = good.clone();
        third["boots"].as_array_mut().unwrap().push(json!({}));
        assert_eq!(case.mismatches(&third, "aa").len(), 1);
        let mut disk = good;
        disk["boots"][1]["kexec"]["segment"]["initrd"]["bytes"] = json!(case.payload.unwrap_or(1));
        assert_eq!(case.mismatches(&disk, "aa").len(), 1, "{case}");
    }
}
