//! A signal while `granule dump` reads a live machine: the machine must not be left standing still.

use granule_testing::text::assert_ends_with;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use granule_cli::boot::clock::{ProcessClock, TICK};
use granule_inspect::source::Endpoint;
use granule_inspect::source::qmp::Qmp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::Qemu;
use crate::hooked::{granule, qemu};

#[test]
fn a_machine_runs_again_after_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (own, other) = (folder.join("own"), folder.join("other"));
    let mut qemu = Command::new(qemu());
    qemu.args(["-no-user-config", "-nodefaults", "-display", "none"])
        .args(["-machine", "virt", "-cpu", "max", "-m", "64"])
        // A branch to itself.
        .args([
            "-device",
            "loader,addr=0x40000000,data=0x14000000,data-len=4",
        ])
        .args(["-device", "loader,addr=0x40000000,cpu-num=0"]);
    for socket in [&own, &other] {
        qemu.arg("-qmp");
        qemu.arg(format!("unix:{},server=on,wait=off", socket.display()));
    }
    let qemu = Qemu(qemu.stdin(Stdio::null()).spawn().unwrap());
    let mut clock = ProcessClock::start(qemu.0.id());
    let endpoint = Endpoint::Unix(own);
    let mut qmp = loop {
        match Qmp::connect(&endpoint) {
            Ok(qmp) => break qmp,
            Err(_) => assert!(clock.look() < Duration::from_secs(60)),
        }
        thread::sleep(TICK);
    };
    assert_eq!(qmp.run("query-status", json!({})).unwrap()["running"], true);

    // Between granule and QEMU: the signal comes when the machine stands still.
    let between = folder.join("between");
    let listener = UnixListener::bind(&between).unwrap();
    let granule = granule()
        .arg("dump")
        .arg(format!("qmp:{}", between.display()))
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.join("printed")).unwrap())
        .spawn()
        .unwrap();
    let mut granule = Qemu(granule);
    let (client, _) = listener.accept().unwrap();
    let mut server = UnixStream::connect(&other).unwrap();
    let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || io::copy(&mut from, &mut to));
    let mut signals = 0;
    for line in BufReader::new(client).lines() {
        let Ok(line) = line else { break };
        if line.contains("gdbserver unix:") {
            let status = qmp.run("query-status", json!({})).unwrap();
            assert_eq!(status["running"], false);
            kill_process(Pid::from_child(&granule.0), Signal::INT).unwrap();
            signals += 1;
        }
        writeln!(server, "{line}").unwrap();
    }
    let ended = granule.0.wait().unwrap();
    let printed = fs::read_to_string(folder.join("printed")).unwrap();
    assert_eq!((signals, ended.code()), (1, Some(3)), "{printed}");
    assert_ends_with(&printed, "granule: interrupted: there is no whole result\n");
    assert_eq!(qmp.run("query-status", json!({})).unwrap()["running"], true);
}
