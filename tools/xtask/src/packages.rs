//! The packages of the workspace as the steps choose them, and the seeds of their tests. Running them
//! is in `steps` and `miri`.

use anyhow::{Context, Result, bail};
use serde_json::Value;

pub(crate) const LIBRARY: &str = "granule";
/// The crates that a kernel links: `no_std`, published, and tested under Miri. A crate comes after those
/// that it depends on.
pub(crate) const LIBRARIES: [&str; 4] = [LIBRARY, "granule-trace", "granule-boot", "granule-kexec"];
/// The kernel's libraries, and their modules with unsafe code, which run under Miri. The other modules of
/// these crates deny unsafe code.
pub(crate) const WITH_UNSAFE_MODULES: [(&str, &[&str]); 2] = [
    ("granule-kcore", &["frames::", "lock::"]),
    ("granule-linux-abi", &["owned::"]),
];

/// The packages that run on no host.
pub(crate) const KERNEL: &str = "granule-kernel";
pub(crate) const USER: &str = "granule-programs";
pub(crate) const MODULE: &str = "granule-module";
pub(crate) const CLI: &str = "granule-cli";

/// The tests that boot guests, in the language of nextest's filters.
pub(crate) fn in_guests() -> String {
    format!("binary_id(={CLI}::qemu)")
}

/// Those of the images for 16K and 64K pages alone, and of that with a default, which only they boot.
pub(crate) fn in_fixed_guests() -> String {
    let names = "^(kernel::(fixed::|page_size::the_build_has_a_default$)|\
                 bench::user::(within_bounds|calls_beside_memory)::.*_of_(16|64)k$)";
    format!("{} & test(/{names}/)", in_guests())
}

/// All others. The kernel and the programs that it starts are tested in guests, and granule-testing has no tests.
pub(crate) fn on_host() -> String {
    let not = [KERNEL, USER, MODULE, "granule-testing"].map(|name| format!("package(={name})"));
    format!("not ({} + {})", in_guests(), not.join(" + "))
}

/// The variables that select the cases of properties and interleavings, with a seed for each that the
/// caller has not set. So a step repeats a failure that it found once. The soak uses other seeds.
pub(crate) fn draws() -> impl Iterator<Item = (&'static str, String)> {
    ["PROPTEST_RNG_SEED", "SHUTTLE_RANDOM_SEED"]
        .into_iter()
        .map(|name| {
            let given = std::env::var(name);
            (name, given.unwrap_or_else(|_| "1".to_owned()))
        })
}

pub(crate) fn packages(metadata: &Value) -> Result<&Vec<Value>> {
    metadata["packages"]
        .as_array()
        .context("`cargo metadata` listed no packages")
}

pub(crate) fn package_named<'a>(metadata: &'a Value, name: &str) -> Result<&'a Value> {
    match packages(metadata)?
        .iter()
        .find(|package| package["name"] == name)
    {
        Some(package) => Ok(package),
        None => bail!("the workspace has no package {name}"),
    }
}
