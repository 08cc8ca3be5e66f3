//! A running kernel read from outside: the live machine through its sockets, and dumps of it.
//!
//! One guest boots and ends, and QEMU keeps it. It is then read in each way, and the ways must
//! agree, also with QEMU's own translation. The output of `granule dump` must agree with the
//! kernel's own record of its linear map ([`linear_map_record`]).

mod linear_map_record;
mod live;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use granule::arch::registers::Tcr;
use granule::arch::{CpuFeatures, Descriptor, Geometry, PhysicalAddress};
use granule::table::{TableView, Visit};
use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::boot::clock::{ProcessClock, TICK};
use granule_inspect::source::qmp::Qmp;
use granule_inspect::source::{self, Endpoint, Source};
use granule_inspect::tree::{Origin, Owner, Shape, Tree};
use granule_inspect::{Opened, Options, open};
use serde_json::json;
use test_case::test_case;

use crate::hooked::qemu;
use crate::image::image;

/// The bytes of the guest's RAM: enough for the kernel, and quickly compressed.
const RAM_MIB: u64 = 128;
/// Where `virt` has it.
const RAM: u64 = 0x4000_0000;

/// A QEMU that ends with the test, however that ends.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A QEMU whose guest has ended and is kept.
struct Kept {
    _qemu: Qemu,
    qmp: Qmp,
}

/// The file with the console of a guest that is kept there.
fn console(folder: &Path) -> PathBuf {
    folder.join("console")
}

/// Boots the kernel with these bootargs, up to its end.
fn kept(folder: &Path, bootargs: &str) -> Kept {
    let socket = folder.join("qmp");
    let qemu = Command::new(qemu())
        .args(["-no-user-config", "-nodefaults", "-display", "none"])
        .args("-machine virt,gic-version=3,acpi=off -cpu max -smp 2".split(' '))
        .args(["-m", &RAM_MIB.to_string(), "-no-reboot", "-no-shutdown"])
        .args(["-append", bootargs, "-kernel"])
        .arg(image())
        .arg("-serial")
        .arg(format!("file:{}", console(folder).display()))
        // One socket serves one client at a time: one for the test, one for what it tests.
        .arg("-qmp")
        .arg(format!("unix:{},server=on,wait=off", socket.display()))
        .arg("-qmp")
        .arg(format!("unix:{}-2,server=on,wait=off", socket.display()))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut clock = ProcessClock::start(qemu.id());
    let qemu = Qemu(qemu);
    let mut wait = || {
        let time = clock.look();
        assert!(time < Duration::from_secs(60), "the guest does not end");
        thread::sleep(TICK);
    };
    let endpoint = Endpoint::Unix(socket);
    // The socket is there a moment before it answers.
    let qmp = loop {
        match Qmp::connect(&endpoint) {
            Ok(qmp) => break qmp,
            Err(_) => wait(),
        }
    };
    let mut kept = Kept { _qemu: qemu, qmp };
    while kept.qmp.run("query-status", json!({})).unwrap()["status"] != "shutdown" {
        wait();
    }
    kept
}

impl Kept {
    /// Dumps the guest in that format.
    fn dump(&mut self, folder: &Path, format: &str) -> Source {
        let path = folder.join(format);
        let arguments = json!({
            "paging": false,
            "protocol": format!("file:{}", path.display()),
            "format": format,
        });
        let minute = Duration::from_secs(60);
        self.qmp
            .run_for("dump-guest-memory", arguments, minute)
            .unwrap();
        Source::File(path)
    }

    /// Whether this QEMU was built with that format.
    fn can_dump(&mut self, format: &str) -> bool {
        let can = self
            .qmp
            .run("query-dump-guest-memory-capability", json!({}));
        let formats = can.unwrap()["formats"].clone();
        // zlib is in every QEMU.
        format == "kdump-zlib" || formats.as_array().unwrap().iter().any(|it| it == format)
    }

    /// QEMU's translation of a virtual address.
    fn translated(&mut self, address: u64) -> String {
        let text = self.qmp.monitor(&format!("gva2gpa {address:#x}"));
        text.unwrap().trim().to_owned()
    }
}

fn opened(source: &Source, options: &Options) -> Opened {
    open(source, options).unwrap_or_else(|error| panic!("{source:?}: {error}"))
}

fn kernel(opened: &Opened) -> &Tree {
    let kernel = |tree: &&Tree| tree.owner == Owner::Kernel;
    opened.trees.iter().find(kernel).unwrap()
}

/// Every entry of the kernel's tree: its first address, its bytes, the descriptor.
fn entries(opened: &Opened) -> Vec<(u64, u64, u64)> {
    let tree = kernel(opened);
    let Shape::Stage1(shape) = tree.shape else {
        panic!("{tree:?}");
    };
    let read = |table: PhysicalAddress, index: usize| {
        let mut word = [0; 8];
        let place = PhysicalAddress(table.0.checked_add(8 * index as u64)?);
        opened.memory.read(place, &mut word).ok()?;
        Some(Descriptor(u64::from_le_bytes(word)))
    };
    let view = TableView::new(shape, tree.root, read);
    let mut all = Vec::new();
    let end = view.visit_all(|entry| {
        let entry = entry.unwrap();
        all.push((entry.start.0, entry.bytes, entry.descriptor.0));
        Visit::EVERYTHING
    });
    assert!(end.is_continue());
    all
}

/// All of the guest's RAM, page by page where `every` divides the number.
fn pages(opened: &Opened, every: u64) -> Vec<Vec<u8>> {
    let pages = (RAM_MIB << 20) / 4096;
    let page = |number| {
        let mut page = vec![0; 4096];
        let address = PhysicalAddress(RAM + number * 4096);
        opened.memory.read(address, &mut page).unwrap();
        page
    };
    (0..pages).step_by(every as usize).map(page).collect()
}

#[test_case(K4)]
#[test_case(K16)]
#[test_case(K64)]
fn each_way_reads_the_same_tables(size: PageSize) {
    let page_bytes = size.bytes();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut guest = kept(folder, &format!("arm64.pagesize={}", size.word()));
    let socket = Source::Qmp(Endpoint::Unix(folder.join("qmp-2")));
    let plain = Options::default();

    // Twice, because the first must leave the machine as it was.
    let live = opened(&socket, &plain);
    let Shape::Stage1(shape) = kernel(&live).shape else {
        panic!("{:?}", live.trees);
    };
    assert_eq!(shape.page_size().bytes(), page_bytes);
    assert_eq!(kernel(&live).origin, Origin::Registers);
    assert!(kernel(&live).memory_types.is_some());
    let (root, expected) = (kernel(&live).root, entries(&live));
    assert!(expected.len() > 20, "{}", expected.len());
    drop(live);
    let live = opened(&socket, &plain);
    assert_eq!(
        (kernel(&live).root, entries(&live)),
        (root, expected.clone())
    );
    drop(live);
    let status = guest.qmp.run("query-status", json!({})).unwrap();
    assert_eq!(status["status"], "shutdown");

    // QEMU's own walk, at both ends and in the middle of each leaf.
    let leaf = |entry: &&(u64, u64, u64)| entry.2 & 0b11 == 0b01 || entry.1 == page_bytes;
    let leaves: Vec<_> = expected.iter().filter(leaf).collect();
    for (start, bytes, descriptor) in leaves.iter().step_by(leaves.len().div_ceil(20)) {
        let output = descriptor & 0x0000_ffff_ffff_f000 & !(bytes - 1);
        for offset in [0, bytes / 2, bytes - 1] {
            let translated = guest.translated(start + offset);
            assert_eq!(
                translated,
                format!("gpa: {:#x}", output + offset),
                "{start:#x}"
            );
        }
    }

    // Dumps have no system registers: the root is guessed, and guessed right.
    let elf = guest.dump(folder, "elf");
    let dump = opened(&elf, &plain);
    assert_eq!(kernel(&dump).origin, Origin::Guess);
    assert!(
        dump.notes.iter().any(|note| note.starts_with("guessed: ")),
        "{:?}",
        dump.notes
    );
    assert_eq!(
        (kernel(&dump).root, entries(&dump)),
        (root, expected.clone())
    );
    let given = Options {
        ttbr1: Some(root.0),
        tcr: Some(tcr(&shape)),
        ..Options::default()
    };
    let every = pages(&dump, 1);
    for format in ["kdump-zlib", "kdump-lzo", "kdump-snappy"] {
        if !guest.can_dump(format) {
            continue;
        }
        let kdump = opened(&guest.dump(folder, format), &given);
        assert_eq!(kernel(&kdump).origin, Origin::Options);
        assert_eq!(entries(&kdump), expected, "{format}");
        let some = pages(&kdump, 16);
        assert!(some.iter().eq(every.iter().step_by(16)), "{format}");
    }

    // The CPUs' general registers are in the notes, and the same as those of the live machine.
    let dumped = source::open(&elf, None).unwrap().1.cpus;
    let live = source::open(&socket, None).unwrap().1.cpus;
    assert_eq!((dumped.len(), live.len()), (2, 2));
    for (dumped, live) in dumped.iter().zip(&live) {
        for name in ["pc", "cpsr"] {
            assert_eq!(dumped.get(name), live.get(name), "{name}");
            assert!(dumped.get(name).is_some());
        }
    }

    // A raw image, and a gdb socket that QEMU has already.
    let raw = folder.join("raw");
    let arguments = json!({ "val": RAM, "size": RAM_MIB << 20, "filename": raw.to_str().unwrap() });
    guest.qmp.run("pmemsave", arguments).unwrap();
    let based = Options {
        base: Some(RAM),
        ..given
    };
    assert_eq!(entries(&opened(&Source::File(raw), &based)), expected);
    let gdb = folder.join("gdb");
    let command = format!("gdbserver unix:path={},server=on,wait=off", gdb.display());
    guest.qmp.monitor(&command).unwrap();
    let by_gdb = opened(&Source::Gdb(Endpoint::Unix(gdb)), &plain);
    assert_eq!(entries(&by_gdb), expected);
    let error = open(&socket, &plain).err().unwrap().to_string();
    assert!(error.contains("has a gdb socket already"), "{error}");
}

/// TCR_EL1 for the upper half of that shape.
fn tcr(shape: &Geometry) -> u64 {
    let features = CpuFeatures::NONE;
    Tcr::new(&features, None, Some(shape)).0
}
