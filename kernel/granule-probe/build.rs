//! Links the probe at 0, position independent without a relocation: nothing applies any.

fn main() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let script = format!("{manifest}/probe.ld");
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("none") {
        return;
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
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
