//! The whole way from a request to an outcome, under a real QEMU, with guests
//! of a few instructions in place of the kernel.

use granule_testing::text::assert_contains;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};
use granule_cli::boot::tree;
use granule_cli::{Outcome, PageSize, Request};
use serde_json::Value;
use tempfile::TempDir;

use crate::boot::guests;
use crate::booted::Booted;
use crate::hooked;

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn request(image: &Path) -> Request {
    Request::default()
        .image(image)
        .memory(256 << 20)
        .timeout(Duration::from_secs(60))
}

pub(super) fn boot_guest(image: &[u8], change: impl FnOnce(&mut Request)) -> Booted {
    let files = Files::new();
    let mut request = request(&files.file("Image", image));
    change(&mut request);
    Booted::by(&request)
}

const RECORD: &str = "hello\n@granule page_size=4096\n@granule page_size_source=fallback\n\
                      @granule linear_map.leaf=4096,false,7\n@granule outcome=ok\nworld\n@granule end\n";

#[test]
fn a_guest_that_reports_ok_and_powers_off_is_ok_at_either_level() {
    for el in [1, 2] {
        let done = boot_guest(&guests::prints(RECORD, el), |r| r.el = el);
        done.ended(Outcome::Ok);
        assert_eq!(done.console, "hello\nworld\n");
        assert_eq!(done.boot.exit_code(), 0);
        assert_eq!(done.last_line(), "granule: ok");
        done.has("page_size", 4096);
        done.has("linear_map.leaves.0.count", 7);
        assert_eq!(done.texts("errata"), [""; 0]);
        assert!(done.text("qemu.version").contains('.'));
        assert_eq!(done.text("image.sha256").len(), 64);
    }
}

#[test]
fn with_icount_on_several_cpus() {
    let done = boot_guest(&guests::prints(RECORD, 2), |r| {
        r.icount = true;
        r.smp = 2;
    });
    done.ended(Outcome::Ok);
}

#[test]
fn with_icount_the_counter_counts_instructions_although_the_guest_is_watched() {
    let done = boot_guest(&guests::prints_the_time_of_a_loop(1 << 11, 2), |r| {
        r.icount = true
    });
    let ticks = u64::from_le_bytes(done.boot.console.as_slice().try_into().unwrap());
    // Two instructions a turn, one a nanosecond, 16 ns a tick of QEMU's 62.5 MHz
    // counter; the reading of it is good to one tick.
    let expected = 2 * (1 << 27) / 16;
    assert!(
        ticks.abs_diff(expected) <= 1,
        "{ticks} ticks, expected {expected}"
    );
    assert!(
        done.boot.boot_record.is_some(),
        "the guest was not looked at"
    );
}

#[test]
fn half_a_terabyte_costs_what_is_touched() {
    // A guest that parks leaves QEMU alive until its memory has been looked at.
    let done = boot_guest(
        &guests::touches_4_gib_here_and_there_and_parks("touched"),
        |r| r.memory = 512 << 30,
    );
    assert_eq!(done.last_line(), "granule: refused: touched");
    // 1024 pages; a huge page for each would be 2 GiB.
    #[cfg(target_os = "linux")]
    {
        let peak = done.boot.peak_resident_bytes.unwrap();
        assert!(
            (4 << 20..512 << 20).contains(&peak),
            "QEMU had {peak} bytes resident"
        );
    }
}

#[test]
fn a_panic_is_a_panic_with_its_reason() {
    let text =
        "oh no\n@granule outcome=panic\n@granule reason=no memory at boot.rs:7\n@granule end\n";
    let done = boot_guest(&guests::prints(text, 2), |_| ());
    assert_eq!(done.last_line(), "granule: panic: no memory at boot.rs:7");
    assert_eq!(
        (done.boot.exit_code(), done.json["outcome"].as_str()),
        (1, Some("panic"))
    );
}

#[test]
fn a_guest_that_leaves_without_a_word_is_a_guest_exit() {
    let done = boot_guest(&guests::prints("bye\n@granule outcome=ok\n", 2), |_| ());
    done.ended(Outcome::GuestExit);
    assert_eq!(done.console, "bye\n");
    done.has("page_size", Value::Null);
}

#[test]
fn a_parked_kernel_is_refused_with_the_message_of_its_boot_record() {
    for change in [
        (|_: &mut Request| ()) as fn(&mut Request),
        |r| r.load_address = Some(0x4800_0000),
        |r| (r.memory, r.load_address) = (8 << 30, Some(0x1_4000_0000)),
    ] {
        let done = boot_guest(&guests::parks("device tree: bad magic 0x0"), change);
        assert_eq!(
            done.last_line(),
            "granule: refused: device tree: bad magic 0x0"
        );
        assert_eq!(
            (
                done.boot.exit_code(),
                done.boot.boot_record.unwrap().reason()
            ),
            (1, 42)
        );
    }
}

#[test]
fn a_boot_can_be_interrupted() {
    let files = Files::new();
    let request = request(&files.file("Image", &guests::prints_and_spins("x\n")));
    let interrupt = AtomicBool::new(false);
    let mut sink = Trigger(&interrupt);
    let done = hooked::boot(&request, &mut sink, &interrupt);
    assert_eq!(done.outcome, Outcome::GuestExit);
    assert_contains(&done.last_line(), "interrupted");
}

/// Interrupts as soon as the guest has printed something.
struct Trigger<'a>(&'a AtomicBool);

impl std::io::Write for Trigger<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.store(true, Ordering::Relaxed);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_exact_tree_arrives_untouched_with_the_registers_of_the_boot_protocol() {
    // Not a tree at all: QEMU must neither read nor replace it.
    let text = "this is not a device tree\n@granule outcome=ok\n@granule end\n\0";
    for el in [1, 2] {
        let files = Files::new();
        let dtb = files.file("tree,with comma.dtb", text.as_bytes());
        let done = boot_guest(&guests::prints_what_x0_points_to(el), |r| {
            r.el = el;
            r.dtb = Some(dtb);
        });
        done.ended(Outcome::Ok);
        assert_eq!(done.console, "this is not a device tree\n");
    }
}

#[test]
fn an_empty_tree_is_an_address_with_zeroes() {
    let files = Files::new();
    let dtb = files.file("dtb", b"");
    let done = boot_guest(&guests::prints_what_x0_points_to(2), |r| r.dtb = Some(dtb));
    // The guest prints nothing, as the memory is zero, and powers off.
    done.ended(Outcome::GuestExit);
    assert_eq!(done.console, "");
}

#[test]
fn raw_mode_hands_over_qemus_tree_with_our_words_wherever_the_image_lies() {
    let files = Files::new();
    let disk = files.file("initrd", &[7; 5000]);
    for (memory, load) in [
        (256 << 20, 0x4020_0000_u64),
        (256 << 20, 0x4fe0_1000),
        (8 << 30, 0x1_4000_0000),
    ] {
        let done = boot_guest(&guests::prints_the_tree(2), |r| {
            r.memory = memory;
            r.load_address = Some(load);
            r.page_size = Some(PageSize::K16);
            r.append = Some("arm64.errata=x".into());
            r.initrd = Some(disk.clone());
        });
        let (dtb, addresses) = done.boot.console.split_at(done.boot.console.len() - 16);
        let address = |at: usize| u64::from_le_bytes(addresses[at..at + 8].try_into().unwrap());
        assert_eq!(address(0), load, "{}", done.last_line());
        assert_eq!(address(8) % 8, 0);

        let tree = Fdt::new(dtb).unwrap();
        let chosen = tree.find_node("/chosen").unwrap();
        let bootargs = chosen.property("bootargs").unwrap();
        assert_eq!(bootargs.value(), b"arm64.pagesize=16k arm64.errata=x\0");
        let place =
            |name| u64::from_be_bytes(chosen.property(name).unwrap().value().try_into().unwrap());
        assert_eq!(
            place("linux,initrd-end") - place("linux,initrd-start"),
            5000
        );
        let memory_node = tree.find_node("/memory@40000000").unwrap();
        let mut reg = 0x4000_0000_u64.to_be_bytes().to_vec();
        reg.extend(memory.to_be_bytes());
        assert_eq!(memory_node.property("reg").unwrap().value(), reg);
        assert!(chosen.property("stdout-path").is_some());
    }
}

#[test]
fn a_dumped_tree_fits_the_machine_and_boots_as_an_exact_tree() {
    let files = Files::new();
    let request = Request::default().memory(3 << 30).smp(3).el(1);
    let dtb = tree::dump(&request).unwrap();
    assert_eq!(
        tree::dump(&request).unwrap(),
        dtb,
        "two dumps of one machine agree"
    );
    let tree = Fdt::new(&dtb).unwrap();
    assert!(tree.find_node("/cpus/cpu@2").is_some() && tree.find_node("/cpus/cpu@3").is_none());
    let psci = tree.find_node("/psci").unwrap();
    assert_eq!(psci.property("method").unwrap().value(), b"hvc\0");

    let image = files.file("Image", &guests::prints_the_tree(1));
    let path = files.file("dtb", &dtb);
    let done = Booted::by(&Request {
        image: Some(image),
        dtb: Some(path),
        ..request
    });
    assert_eq!(
        &done.boot.console[..done.boot.console.len() - 16],
        dtb,
        "{}",
        done.last_line()
    );
}

#[test]
fn a_disk_beside_an_exact_tree_lies_where_the_tree_puts_it() {
    let files = Files::new();
    let disk = files.file("disk", b"text from the disk\0");
    let no_place = files.file("dtb", &tree::dump(&Request::default()).unwrap());
    let done = boot_guest(&guests::prints("", 2), |r| {
        r.dtb = Some(no_place);
        r.initrd = Some(disk);
    });
    assert!(
        done.boot.bad_usage && done.last_line().contains("linux,initrd-start"),
        "{}",
        done.last_line()
    );
}

#[test]
fn a_refusal_of_qemus_is_printed_in_its_words() {
    type Case = (fn(&mut Request), &'static str);
    let cases: [Case; 3] = [
        (|r| r.cpu = "z80".into(), "z80"),
        (|r| r.cpu = "max,wings=on".into(), "wings"),
        (|r| (r.cpu, r.memory) = ("cortex-a53".into(), 2 << 40), "40"),
    ];
    for (change, word) in cases {
        let done = boot_guest(&guests::prints("", 2), change);
        done.ended(Outcome::Refused);
        assert_eq!(done.boot.exit_code(), 1);
        done.fails_with(word);
        assert_eq!(done.last_line().lines().count(), 1);
    }
    let dump = tree::dump(&Request::default().cpu("z80"));
    assert!(dump.unwrap_err().contains("z80"));
}

#[test]
fn a_missing_qemu_is_refused_with_the_way_to_install_it() {
    let done = boot_guest(&guests::prints("", 2), |r| {
        r.qemu = "/nonexistent/qemu".into()
    });
    assert_eq!(
        (done.boot.outcome, done.boot.exit_code()),
        (Outcome::Refused, 1)
    );
    assert_contains(&done.last_line(), "apt install");
    done.has("image.bytes", 64 + 40 + 1);
}

#[test]
fn several_boots_at_a_time_do_not_meet() {
    let outcomes: Vec<(String, Outcome)> = std::thread::scope(|scope| {
        let boots: Vec<_> = (0..3)
            .map(|n| {
                scope.spawn(move || {
                    let text = format!("guest {n}\n@granule outcome=ok\n@granule end\n");
                    let done = boot_guest(&guests::prints(&text, 2), |_| ());
                    (done.console, done.boot.outcome)
                })
            })
            .collect();
        boots.into_iter().map(|boot| boot.join().unwrap()).collect()
    });
    for (n, (text, outcome)) in outcomes.iter().enumerate() {
        assert_eq!(
            (text.as_str(), *outcome),
            (format!("guest {n}\n").as_str(), Outcome::Ok)
        );
    }
}
