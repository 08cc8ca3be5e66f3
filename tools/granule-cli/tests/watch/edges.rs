//! Runs that cannot begin, or cannot do all that was requested: findings stay, and no empty file
//! does.

use super::*;

/// The line for people of a run that does not begin, and its exit code.
fn refused(child: Child) -> String {
    let output = output(child);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty());
    stderr.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_qemu_starts() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let fifo = fifo.to_str().unwrap();
    for option in ["--record", "--report"] {
        for (path, part) in [
            ("/dev/full", "not a regular file"),
            (fifo, "not a regular file"),
            ("/", "a directory"),
        ] {
            let fake = Fake::new("10.0.2", "exec sleep 60");
            let line = refused(fake.watch(&[option, path]));
            let begin = format!("granule: {option} {path}: ");
            assert!(line.starts_with(&begin) && line.contains(part), "{line}");
            assert!(!fake.path("arguments").exists());
        }
    }
}

#[test]
fn a_run_that_does_not_begin_leaves_no_file() {
    let fake = Fake::new("10.0.2", "echo 'qemu: no such thing' >&2; exit 1");
    let (record, page) = (fake.path("trace.gz"), fake.path("page.html"));
    let files = [&record, &page].map(|it| it.to_str().unwrap());
    let line = refused(fake.watch(&["--record", files[0], "--report", files[1]]));
    assert!(line.contains("no such thing"), "{line}");
    assert!(!record.exists() && !page.exists());
}

#[test]
fn a_page_that_cannot_be_written_at_the_end_takes_nothing_else_away() {
    for (moves, code) in [(true, 1), (false, 2)] {
        let fake = Fake::new("10.0.2", &format!("{WAIT}\nexit 0"));
        let page = fake.path("page.html");
        let child = fake.watch(&["--json", "--report", page.to_str().unwrap()]);
        let mut stream = fake.connect();
        fs::remove_file(&page).unwrap();
        fs::create_dir(&page).unwrap();
        send(&mut stream, &[machine(moves), vec![end()]].concat());
        drop(stream);
        fake.go();
        let output = output(child);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = json["findings"].as_array().unwrap().len();
        assert_eq!(findings, usize::from(moves), "{json:#}");
        let stderr = text(&output.stderr);
        let line = stderr.lines().last().unwrap();
        assert!(line.starts_with("granule: --report "), "{stderr}");
        assert_eq!(output.status.code(), Some(code));
    }
}

#[test]
fn a_fault_that_cannot_be_planted_takes_no_finding_away() {
    for (moves, expected) in [(true, 1), (false, 2)] {
        let all = [machine(moves), vec![end()]].concat();
        let (json, code, _) = watched(&all, "exit 0", &["--plant", "f:tlbi"]);
        let findings = json["findings"].as_array().unwrap().len();
        assert_eq!(findings, usize::from(moves), "{json:#}");
        let unchecked = json["unchecked"].to_string();
        assert!(unchecked.contains("nothing was planted"), "{unchecked}");
        assert_eq!((&json["complete"], code), (&false.into(), Some(expected)));
    }
}

#[test]
fn a_recording_ends_before_an_event_that_the_model_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("trace.gz");
    let odd = Seen::Event(Event::Store {
        address: 0x4000_1004,
        count: 1,
        descriptor: 0,
        step: 0,
        visibility: Visibility::Live,
    });
    let all = [machine(true), vec![odd, Seen::Exception, end()]].concat();
    let (json, code, _) = watched(&all, "exit 0", &["--record", record.to_str().unwrap()]);
    let unchecked = json["unchecked"].to_string();
    assert!(unchecked.contains("the model refuses"), "{unchecked}");
    assert_eq!(code, Some(1));
    let (checked, code) = check_with(&record, &[]);
    assert_eq!((&checked["complete"], code), (&false.into(), Some(1)));
    assert_eq!(checked["findings"], json["findings"]);
    assert_eq!(checked["events"], json["recorded"]);
}

#[test]
fn a_recording_is_complete_if_the_run_was() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("trace.gz");
    let options = ["--record", record.to_str().unwrap()];
    for (all, options, complete) in [
        (vec![end()], &options[..], false),
        (machine(false), &options[..], false),
        // Nothing is left out of a recording that nobody judged meanwhile.
        (
            [machine(false), vec![end()]].concat(),
            &["--no-check", options[0], options[1]],
            true,
        ),
    ] {
        let (json, ..) = watched(&all, "exit 0", options);
        assert_eq!(json["complete"], false, "{json:#}");
        assert_eq!(check(&record)["complete"], complete);
    }
}

#[test]
fn a_user_who_gives_up_before_the_plugin_is_there_is_understood() {
    let fake = Fake::new("10.0.2", "exec sleep 60");
    let child = fake.watch(&[]);
    fake.arguments();
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &id]).status().unwrap();
    assert!(sent.success());
    let line = refused(child);
    assert!(line.starts_with("granule: interrupted before "), "{line}");
}

#[test]
fn accepted_findings_that_were_not_found_are_one_note() {
    let folder = tempfile::tempdir().unwrap();
    let accept = folder.path().join("accepted");
    fs::write(&accept, "RWHZWS 0x40 meant\nRWHZWS f old\nRDDMVT f old\n").unwrap();
    let all = [machine(true), vec![end()]].concat();
    let (json, code, _) = watched(&all, "exit 0", &["--accept", accept.to_str().unwrap()]);
    let notes = json["notes"].to_string();
    let part = "2 of 3 accepted findings not found (lines 2, 3)";
    assert_eq!(notes.matches("--accept").count(), 1, "{notes}");
    assert!(notes.contains(part), "{notes}");
    assert_eq!(code, Some(0));
}

#[test]
fn options_without_an_effect_are_refused() {
    let fake = Fake::new("10.0.2", "exit 0");
    let line = refused(fake.watch(&["--qemu", "other"]));
    assert!(line.contains("--qemu"), "{line}");
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("text");
    fs::write(&image, [b'x'; 64]).unwrap();
    let linux = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_granule"));
        command.args(["watch", "--linux"]).args(options);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        refused(command.spawn().unwrap())
    };
    let line = linux(&[image.to_str().unwrap()]);
    assert!(line.contains("it is not an arm64 Image"), "{line}");
    let mut header = [0; 64];
    header[17] = 1;
    header[56..60].copy_from_slice(b"ARM\x64");
    fs::write(&image, header).unwrap();
    let line = linux(&[image.to_str().unwrap(), "--qemu", "/none/qemu"]);
    for part in [
        "/none/qemu was not found",
        "bookworm-backports",
        "--qemu PATH",
    ] {
        assert!(line.contains(part), "{line}");
    }
}
