//! The crash kernel: entered from a panic wherever it happens, at every page size; what it finds of the dead kernel; and
//! what a boot does with memory that cannot be reserved.

use granule_cli::Outcome;
use granule_cli::PageSize::{self, K4, K16, K64};

use test_case::test_case;

use crate::booted::Booted;
use crate::kexec::chain::{HopRecord, machine, number, records};
use crate::kexec::machine::{NEXT, archive, ends};

const MEMORY: &str = "crashkernel=128M";

/// Boots a kernel that loads itself as its crash kernel and crashes, by a word of its command line or else by the program.
#[track_caller]
fn crashes(request: &granule_cli::Request, words: &str, to: PageSize) -> Booted {
    let size = to.word();
    let lines = format!("load --crash {NEXT} --append arm64.pagesize={size}\ncrash\n");
    let request = request.clone().append(format!("{MEMORY} {words}"));
    ends(&request, archive(&lines), Outcome::Panic)
}

/// The records of the dead kernel and of the crash kernel, which has all CPUs that stopped.
#[track_caller]
fn both(ran: &Booted, silent: u64) -> [HopRecord; 2] {
    let recorded: [HopRecord; 2] = records(ran)
        .try_into()
        .unwrap_or_else(|_| panic!("{}", ran.console));
    let [dead, crash] = &recorded;
    assert_eq!((&*dead["outcome"], &*crash["outcome"]), ("panic", "ok"));
    assert_eq!(
        (&*dead["crash.entered"], number(dead, "crash.silent")),
        ("true", silent)
    );
    assert_eq!(number(crash, "cpus"), number(dead, "cpus") - silent);
    assert_eq!(number(crash, "linear_map.ram_bytes"), 128 << 20);
    // All RAM but the crash kernel's, with the headers before it.
    let core = number(crash, "crash.core_bytes");
    let ram = number(dead, "linear_map.ram_bytes") - (128 << 20);
    assert!(
        (ram..ram + (1 << 20)).contains(&core),
        "{core} bytes for {ram}"
    );
    recorded
}

#[test_case(K4, K64, 4, 2, 3, "max"; "from 4K to 64K at EL2 on four CPUs")]
#[test_case(K64, K16, 1, 1, 2, "max"; "from 64K to 16K at EL1 on one CPU")]
#[test_case(K16, K4, 2, 1, 3, "max"; "from 16K to 4K at EL1 on two CPUs")]
#[test_case(K4, K16, 2, 2, 2, "max"; "from 4K to 16K at EL2 with a GIC of version 2")]
#[test_case(K64, K4, 2, 2, 3, "cortex-a72"; "from 64K to 4K at EL2 without VHE")]
#[test_case(K16, K64, 1, 2, 3, "max"; "from 16K to 64K at EL2")]
#[test_case(K16, K16, 1, 2, 3, "neoverse-n1"; "from 16K to itself")]
fn a_panic_enters_a_kernel(from: PageSize, to: PageSize, cpus: u32, el: u8, gic: u8, cpu: &str) {
    let ran = crashes(&machine(cpus, el, gic, cpu).page_size(from), "", to);
    ran.fails_with("sysrq: crash requested by process 1");
    let [dead, crash] = both(&ran, 0);
    assert_eq!(number(&dead, "page_size"), from.bytes());
    assert_eq!(number(&crash, "page_size"), to.bytes());
    assert_eq!(number(&dead, "cpus"), u64::from(cpus));
    assert_eq!(dead["run_el"], crash["run_el"]);
}

#[test_case("call", 1, 3, 0)]
#[test_case("console", 2, 3, 0; "with the lock of the console")]
#[test_case("tables", 2, 2, 0; "with the lock of the tables")]
#[test_case("store@1", 1, 3, 0; "before the first store of a split")]
#[test_case("store@2", 1, 3, 0; "before the second store of a split")]
#[test_case("cpu@1", 2, 3, 0; "in an interrupt of another CPU")]
#[test_case("masked@1", 2, 3, 0; "while another CPU takes FIQs alone")]
#[test_case("masked@1", 3, 2, 1; "while another CPU takes no interrupt at all")]
fn a_panic_in_the_worst_place_enters_it(place: &str, cpus: u32, gic: u8, silent: u64) {
    let request = machine(cpus, 2, gic, "max").page_size(K4);
    let ran = crashes(&request, &format!("granule.crash={place}"), K4);
    ran.fails_with("granule.crash=");
    both(&ran, silent);
}

#[test]
fn a_crash_kernel_that_was_written_over_is_not_entered() {
    let ran = crashes(&machine(2, 2, 3, "max"), "granule.crash=damage", K4);
    let [dead] = &records(&ran)[..] else {
        panic!("{}", ran.console);
    };
    assert_eq!(dead["crash.entered"], "false");
    ran.prints("the crash kernel was written over: it is not entered");
}

#[test_case(
    "",
    "no memory is reserved for a crash kernel: boot with crashkernel=SIZE"
)]
#[test_case("crashkernel=1G", "no free range of RAM is that long"; "more than there is")]
#[test_case("crashkernel=64M@0x40000000", "something else lies there"; "where the image is")]
#[test_case("crashkernel=64M@0x48100000", "its offset is not a multiple of 2 MiB"; "at a place for small pages alone")]
#[test_case("crashkernel=64M@0x90000000", "it does not lie in RAM that is used"; "outside of RAM")]
#[test_case("crashkernel=much", "there is no memory for a crash kernel"; "without a number")]
#[test_case("crashkernel=2M", "the kernel takes "; "less than the image")]
fn memory_that_cannot_be_used_is_named_and_the_boot_goes_on(words: &str, expected: &str) {
    let lines = format!("load --crash {NEXT}\n");
    let request = machine(1, 2, 3, "max").append(words);
    let ran = ends(&request, archive(&lines), Outcome::GuestExit);
    ran.mentions(expected);
    ran.mentions("was not loaded: EADDRNOTAVAIL");
}
