//! Exact boots repeat bit for bit: the console with its times, and the record but for what QEMU took of the host.

use granule_cli::PageSize::{K4, K16};
use granule_cli::request::KaslrSeed;
use granule_cli::{Initramfs, Outcome, Request};
use serde_json::Value;

use crate::hooked::ends;
use crate::user::machine::{machine, program};

/// The results of a boot.
fn once(request: &Request) -> (String, Value) {
    let mut boot = ends(request, Outcome::Ok);
    boot.json["qemu"]["peak_resident_bytes"] = Value::Null;
    (boot.console, boot.json)
}

#[track_caller]
fn repeats(request: &Request) -> (String, Value) {
    let first = once(request);
    assert_eq!(first, once(request));
    first
}

/// With programs that meet, on one CPU and on several that take turns.
#[test]
fn a_boot_with_programs() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let archive = Initramfs::new().program("/init", &program());
    archive.write(file.path()).unwrap();
    for cpus in [1, 4] {
        repeats(
            &machine(K4, cpus)
                .initrd(file.path().to_owned())
                .append("-- storm"),
        );
    }
}

/// Where QEMU draws the kernel's seed.
#[test]
fn a_boot_with_addresses_at_random() {
    let request = machine(K16, 1).kaslr_seed(KaslrSeed::Random);
    let (_, json) = repeats(&request);
    assert_eq!(json["kaslr"]["state"], "on", "{json}");
}

mod live {
    use granule_cli::PageSize;
    use granule_cli::request::KaslrSeed;

    use super::once;
    use crate::user::machine::machine;

    /// The name of a test's module is what makes it live, so here is what differs then.
    #[test]
    fn a_boot_in_a_live_module_is_another_each_time() {
        let request = machine(PageSize::K16, 1).kaslr_seed(KaslrSeed::Random);
        let [first, second] = [(), ()].map(|()| once(&request).1["kaslr"].clone());
        assert_ne!(first, second);
    }
}
