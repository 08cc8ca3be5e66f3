//! `granule watch` and `granule bench tlb` as a person or a script meets them, with programs in QEMU's place: a
//! run that ends in any way is a line or a report, nothing hangs, and what was seen is kept. The test itself is
//! the plugin. Real QEMUs are watched by `granule-peers`.

#![allow(clippy::unwrap_used)]

mod edges;
mod live;
mod tlb;

use granule_testing::text::assert_contains;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use granule_cli::schema;
use granule_plugin::stream::{self, Head, Seen, Totals};
use granule_testing::schema::assert_matches;
use granule_trace::{Barrier, Event, System, Visibility};
use serde_json::Value;

/// A program that answers as QEMU does, waits, and ends in some way.
struct Fake {
    folder: tempfile::TempDir,
}

impl Fake {
    /// `then` is what the program does once its arguments are in a file.
    fn new(version: &str, then: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let script = format!(
            "#!/bin/sh\n\
             if [ \"$1\" = --version ]; then echo 'QEMU emulator version {version}'; exit; fi\n\
             printf '%s\\n' \"$@\" > '{at}/some' && mv '{at}/some' '{at}/arguments'\n\
             {then}\n"
        );
        let path = folder.path().join("qemu");
        fs::write(&path, script.replace("FOLDER", &at.to_string())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn watch(&self, options: &[&str]) -> Child {
        self.run_by(&["env"], &["watch"], options)
    }

    /// Runs a command of `granule` by a program that runs the command in its arguments.
    fn run_by(&self, by: &[&str], what: &[&str], options: &[&str]) -> Child {
        Command::new(by[0])
            .args(&by[1..])
            .arg(env!("CARGO_BIN_EXE_granule"))
            .args(what)
            .args(options)
            .arg("--")
            .arg(self.path("qemu"))
            .args(["-machine", "virt", "-m", "64M"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// The arguments that the program got, once it has them. How long that may take is the test runner's affair.
    fn arguments(&self) -> String {
        loop {
            if let Ok(text) = fs::read_to_string(self.path("arguments")) {
                return text;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The plugin's end of the socket.
    fn connect(&self) -> UnixStream {
        let arguments = self.arguments();
        let socket = arguments.split("socket=").nth(1).unwrap();
        UnixStream::connect(socket.split(',').next().unwrap()).unwrap()
    }

    /// Lets the program go on.
    fn go(&self) {
        fs::write(self.path("go"), "").unwrap();
    }
}

/// In the program: waits for the test's signal.
const WAIT: &str = "while [ ! -e FOLDER/go ]; do sleep 0.02; done";

fn send(stream: &mut UnixStream, all: &[Seen]) {
    let head = Head { api: 4, cpus: 1 }.words();
    let records = all.iter().map(|seen| stream::encode(0, 0x40, seen));
    let words = std::iter::once(head).chain(records).flatten();
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    stream.write_all(&bytes).unwrap();
}

/// Waits for the command to end.
fn output(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One CPU that turns its MMU on with a table of 1 GiB blocks, and moves one of them or not.
fn machine(moves: bool) -> Vec<Seen> {
    let store = |descriptor, count, visibility| Event::Store {
        address: 0x4000_1000,
        count,
        descriptor,
        step: 0,
        visibility,
    };
    let (start, bytes) = (0x4000_1000, 0x1000);
    let mut events = vec![
        Event::Barrier(Barrier::DSB_SY),
        Event::System(System::VMALLE1, 0),
        Event::Barrier(Barrier::DSB_SY),
        Event::Barrier(Barrier::ISB),
        Event::System(System::MAIR_EL1, 0xff),
        Event::System(System::TCR_EL1, 0x2_0080_3519),
        Event::System(System::TTBR0_EL1, 0x4000_1000),
        Event::Barrier(Barrier::ISB),
        Event::Obtained { start, bytes },
        store(0, 512, Visibility::Earlier),
        store(0x4000_0701, 1, Visibility::Earlier),
        Event::System(System::SCTLR_EL1, 0x30d0_180d),
        Event::Barrier(Barrier::ISB),
    ];
    if moves {
        events.push(store(0x8000_0701, 1, Visibility::Live));
        events.push(Event::Barrier(Barrier::DSB_ISHST));
        events.push(Event::System(System::VMALLE1IS, 0));
        events.push(Event::Barrier(Barrier::DSB_ISH));
        events.push(Event::Barrier(Barrier::ISB));
    }
    events.into_iter().map(Seen::Event).collect()
}

fn end() -> Seen {
    Seen::End(Totals::default())
}

/// Returns the JSON object of a run in which the plugin sends these records and the program then
/// ends.
fn watched(all: &[Seen], then: &str, options: &[&str]) -> (Value, Option<i32>, Fake) {
    let fake = Fake::new("10.0.2", &format!("{WAIT}\n{then}"));
    let child = fake.watch(&[&["--json"], options].concat());
    let mut stream = fake.connect();
    send(&mut stream, all);
    drop(stream);
    fake.go();
    let output = output(child);
    let json = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert_matches(&schema::of("watch").unwrap(), &json);
    (json, output.status.code(), fake)
}

#[test]
fn a_good_run_is_clean_and_a_broken_rule_is_found_where_it_was_broken() {
    let (json, code, _) = watched(&[machine(false), vec![end()]].concat(), "exit 0", &[]);
    assert_eq!(
        (&json["outcome"], &json["complete"]),
        (&"ended".into(), &true.into()),
        "{json:#}"
    );
    assert_eq!(json["findings"].as_array().unwrap().len(), 0, "{json:#}");
    assert_eq!(code, Some(0));
    let (json, code, _) = watched(&[machine(true), vec![end()]].concat(), "exit 0", &[]);
    assert_eq!(json["findings"][0]["rule"], "RWHZWS", "{json:#}");
    assert_eq!(json["findings"][0]["places"][0]["address"], "0x40");
    assert_eq!(json["events"]["tlbi"], 2);
    assert_eq!(code, Some(1));
}

#[test]
fn the_command_gets_what_watching_needs_and_people_see_it() {
    let fake = Fake::new("10.0.2", WAIT);
    let child = fake.watch(&[]);
    drop(fake.connect());
    fake.go();
    let output = output(child);
    let arguments = fake.arguments();
    for added in [
        "tcg,thread=multi",
        "memory-backend-memfd,id=granule-ram,size=67108864,share=on,reserve=off",
        "memory-backend=granule-ram",
    ] {
        assert!(arguments.lines().any(|line| line == added), "{arguments}");
        assert!(text(&output.stderr).contains(added));
    }
    assert!(arguments.contains("ram-base=1073741824,ram-bytes=67108864"));
}

#[test]
fn a_guest_without_an_mmu_is_not_called_clean_and_complete() {
    let (json, code, _) = watched(&[end()], "exit 0", &[]);
    assert_eq!(json["complete"], false);
    let unchecked = json["unchecked"].to_string();
    assert!(unchecked.contains("no MMU was turned on"), "{unchecked}");
    assert_eq!(code, Some(2));
}

#[test]
fn events_before_the_death_of_qemu_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("trace.gz");
    let options = ["--record", record.to_str().unwrap()];
    let (json, code, _) = watched(&machine(true), "kill -9 $$", &options);
    assert_eq!(
        (&json["outcome"], code),
        (&"died".into(), Some(1)),
        "{json:#}"
    );
    assert_eq!(json["complete"], false);
    // And the one instruction that all of it comes from.
    assert_eq!(json["recorded"], machine(true).len() + 1);
    let checked = check(&record);
    assert_eq!(checked["complete"], false);
    assert_eq!(checked["violation_count"], json["findings"][0]["count"]);
    let violation = &checked["violations"][0];
    assert_eq!(violation["rule"], "RWHZWS");
    let place = &json["findings"][0]["places"][0];
    assert_eq!(violation["instruction"], place["address"]);
}

fn check(record: &Path) -> Value {
    check_with(record, &[]).0
}

/// The object and the exit code.
fn check_with(record: &Path, options: &[&str]) -> (Value, Option<i32>) {
    let checked = Command::new(env!("CARGO_BIN_EXE_granule"))
        .args(["check", "--json"])
        .args(options)
        .arg(record)
        .output()
        .unwrap();
    let json = serde_json::from_slice(&checked.stdout)
        .unwrap_or_else(|_| panic!("{}", text(&checked.stderr)));
    assert_matches(&schema::of("check").unwrap(), &json);
    (json, checked.status.code())
}

#[test]
fn a_recording_has_the_verdict_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("trace.gz");
    for moves in [false, true] {
        let all = [machine(moves), vec![Seen::Exception, end()]].concat();
        let options = ["--record", record.to_str().unwrap()];
        let (json, _, _) = watched(&all, "exit 0", &options);
        let checked = check(&record);
        assert_eq!(checked["complete"], true);
        assert_eq!(checked["clean"], !moves, "{checked:#} {json:#}");
        assert_eq!(checked["findings"], json["findings"]);
    }
}

#[test]
fn a_recording_names_functions_and_what_led_to_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (record, symbols, accept) = (file("trace.gz"), file("System.map"), file("accepted"));
    let (live, later) = (file("live.html"), file("later.html"));
    fs::write(
        &symbols,
        "0000000000000040 T mover\n0000000000000050 T other\n",
    )
    .unwrap();
    let all = [machine(true), vec![end()]].concat();
    let options = [
        "--record",
        &record,
        "--symbols",
        &symbols,
        "--report",
        &live,
    ];
    let (json, code, _) = watched(&all, "exit 0", &options);
    let finding = &json["findings"][0];
    assert_eq!(
        (&finding["function"], code),
        (&"mover".into(), Some(1)),
        "{json:#}"
    );
    let steps = finding["steps"].as_array().unwrap();
    let last = steps.last().unwrap();
    assert_eq!(last["role"], "breaks RWHZWS");
    assert_eq!(last["name"], "mover+0x0");
    let stored = |step: &Value| step["text"].as_str().unwrap().contains("0x40000701");
    assert!(steps.iter().any(stored), "{finding:#}");
    // The recording alone gives the same result.
    let (checked, code) = check_with(Path::new(&record), &["--report", &later]);
    assert_eq!((&checked["findings"], code), (&json["findings"], Some(1)));
    let data = |page: &str| -> Value {
        let page = fs::read_to_string(page).unwrap();
        let (_, data) = page.split_once(r#"id="data">"#).unwrap();
        serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
    };
    let (live, later) = (data(&live), data(&later));
    assert_eq!(live["findings"], later["findings"]);
    assert_eq!(live["timeline"], later["timeline"]);
    assert_eq!(live["findings"][0]["site"], "mover");
    // The accepted findings of both are one file.
    fs::write(&accept, "RWHZWS mover it is meant\n").unwrap();
    let (checked, code) = check_with(Path::new(&record), &["--accept", &accept]);
    assert_eq!(checked["findings"][0]["accepted"], "it is meant");
    assert_eq!(code, Some(0), "{checked:#}");
}

/// So many stores to memory that is not a table, which do not compress well.
fn stores(count: u64) -> Vec<Seen> {
    let mut draw = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        draw
    };
    let store = |_| {
        Seen::Event(Event::Store {
            address: 0x4100_0000 | next() & 0x3_fff8,
            count: 1,
            descriptor: next() & !1,
            step: 0,
            visibility: Visibility::Live,
        })
    };
    (0..count).map(store).collect()
}

#[test]
fn a_recording_that_was_cut_short_is_judged_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("trace.gz");
    let all = [machine(true), stores(50_000), vec![end()]].concat();
    let (json, ..) = watched(&all, "exit 0", &["--record", record.to_str().unwrap()]);
    let whole = fs::read(&record).unwrap();
    let mut seen = 0;
    for part in [2, 3, 5, 10_000] {
        let cut = folder.path().join("cut.gz");
        fs::write(&cut, &whole[..whole.len() - whole.len() / part]).unwrap();
        let (checked, code) = check_with(&cut, &[]);
        assert_eq!(checked["complete"], false);
        assert!(checked["cut"].as_str().unwrap().starts_with("line "));
        assert_eq!(checked["findings"], json["findings"], "{part}");
        assert_eq!(code, Some(1));
        let events = checked["events"].as_u64().unwrap();
        assert!(events > seen, "{part}");
        seen = events;
    }
    // Without a finding before its end a part was not judged.
    let all = [machine(false), stores(50_000), vec![end()]].concat();
    watched(&all, "exit 0", &["--record", record.to_str().unwrap()]);
    let whole = fs::read(&record).unwrap();
    fs::write(&record, &whole[..whole.len() - 9]).unwrap();
    let (checked, code) = check_with(&record, &[]);
    assert_eq!((&checked["clean"], code), (&false.into(), Some(3)));
}

#[test]
fn a_disk_that_fills_up_meanwhile_is_reported_and_the_beginning_kept() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("trace.gz");
    let options = ["--json", "--record", record.to_str().unwrap()];
    // No file of the run becomes larger than a MiB: the writes fail as on a full disk.
    let shell = "trap '' XFSZ; ulimit -f 2048; exec \"$@\"";
    let fake = Fake::new("10.0.2", &format!("{WAIT}\nexit 0"));
    let child = fake.run_by(&["sh", "-c", shell, "sh"], &["watch"], &options);
    let mut stream = fake.connect();
    send(
        &mut stream,
        &[machine(true), stores(200_000), vec![end()]].concat(),
    );
    drop(stream);
    fake.go();
    let output = output(child);
    let json: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert_eq!(
        (&json["outcome"], &json["complete"]),
        (&"ended".into(), &false.into())
    );
    let unchecked = json["unchecked"].to_string();
    assert_contains(&unchecked, "trace.gz: File too large");
    assert_eq!(output.status.code(), Some(1));
    let recorded = json["recorded"].as_u64().unwrap();
    assert!((1..200_000).contains(&recorded), "{recorded}");
    let checked = check(&record);
    assert_eq!(checked["events"], recorded);
    assert_eq!(checked["complete"], false);
    assert_eq!(checked["violation_count"], 1);
}

#[test]
fn a_run_that_cannot_be_watched_is_one_line_with_what_to_do() {
    let broken = "echo 'qemu: Could not load plugin x: no such thing' >&2; exit 1";
    for (version, then, part) in [
        ("7.2.22", "exit 0", "bookworm-backports"),
        ("10.0.2", broken, "no such thing"),
        ("11.1.3", "exit 0", "exit status: 0"),
        ("10.0.2", "kill -9 $$", "signal: 9"),
    ] {
        let fake = Fake::new(version, then);
        let output = output(fake.watch(&[]));
        let stderr = text(&output.stderr);
        let lines: Vec<_> = stderr
            .lines()
            .filter(|line| !line.contains("added: "))
            .collect();
        assert_eq!(lines.len(), 1, "{stderr}");
        assert!(
            lines[0].starts_with("granule: ") && lines[0].contains(part),
            "{stderr}"
        );
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn a_stream_of_another_version_is_reported() {
    let fake = Fake::new("10.0.2", "exec sleep 60");
    let child = fake.watch(&[]);
    let mut stream = fake.connect();
    stream
        .write_all(b"no head of any kind, forty bytes at least.")
        .unwrap();
    let output = output(child);
    let stderr = text(&output.stderr);
    assert!(
        stderr.lines().last().unwrap().contains("another version"),
        "{stderr}"
    );
    assert_eq!(output.status.code(), Some(2));
}
