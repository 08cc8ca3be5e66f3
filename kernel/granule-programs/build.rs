//! Links the programs as static executables that every page size can run, and the probe at 0, position independent
//! without a relocation: nothing applies any.

/// The programs of EL0 that have no standard library.
const PROGRAMS: [&str; 7] = [
    "granule-user",
    "granule-user-bench",
    "granule-user-memory",
    "granule-user-module",
    "granule-user-leave",
    "granule-kexec",
    "granule-pagesize",
];

fn main() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let script = format!("{manifest}/probe.ld");
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("none") {
        return;
    }
    for argument in [
        "-static",
        "--no-dynamic-linker",
        // No two segments in one page of the largest size.
        "-zmax-page-size=65536",
        "-zseparate-loadable-segments",
        "--build-id=none",
    ] {
        for program in PROGRAMS {
            println!("cargo:rustc-link-arg-bin={program}={argument}");
        }
    }
    for argument in [
        &format!("-T{script}"),
        "-pie",
        "--no-dynamic-linker",
        "-ztext",
        "--no-undefined",
        "-Bsymbolic",
        "--build-id=none",
    ] {
        println!("cargo:rustc-link-arg-bin=granule-probe={argument}");
    }
}
