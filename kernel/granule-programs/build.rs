//! Links the programs as static executables that every page size can run.

fn main() {
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
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
