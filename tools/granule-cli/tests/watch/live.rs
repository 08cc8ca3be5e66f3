//! Runs that a signal, a time limit or the death of `granule watch` ends.

use std::time::{Duration, Instant};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_recording_outlives_its_recorder() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("trace.gz");
    let fake = Fake::new("10.0.2", "exec sleep 60");
    // Files that a killed command cannot remove stay in the test's own folder.
    let own = format!("TMPDIR={}", folder.path().display());
    let options = ["--record", record.to_str().unwrap()];
    let mut child = fake.run_by(&["env", &own], &["watch"], &options);
    let mut stream = fake.connect();
    send(&mut stream, &[machine(true), stores(60_000)].concat());
    let begun = Instant::now();
    while fs::metadata(&record).map_or(0, |it| it.len()) < 1 << 19 {
        assert!(begun.elapsed() < PATIENCE, "nothing is recorded");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // QEMU does not stay behind.
    while stream.write(&[0]).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "the program stays behind");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (checked, code) = check_with(&record, &[]);
    assert!(checked["events"].as_u64().unwrap() > 1000, "{checked:#}");
    assert_eq!((&checked["complete"], code), (&false.into(), Some(1)));
}

#[test]
fn a_guest_that_goes_on_is_ended_by_its_limit_or_by_the_user() {
    for signal in [false, true] {
        let fake = Fake::new("10.0.2", "exec sleep 60");
        let limit: &[&str] = if signal { &[] } else { &["--timeout", "1"] };
        let child = fake.watch(&[&["--json"], limit].concat());
        let mut stream = fake.connect();
        send(&mut stream, &machine(false));
        if signal {
            std::thread::sleep(Duration::from_millis(300));
            let id = child.id().to_string();
            assert!(
                Command::new("kill")
                    .args(["-INT", &id])
                    .status()
                    .unwrap()
                    .success()
            );
        } else {
            std::thread::sleep(Duration::from_millis(1500));
        }
        drop(stream);
        let output = output(child);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let outcome = if signal { "interrupted" } else { "timeout" };
        assert_eq!(json["outcome"], outcome, "{json:#}");
        assert_eq!(json["events"]["tlbi"], 1);
        assert_eq!(output.status.code(), Some(3));
    }
}
