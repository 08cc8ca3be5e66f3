//! Links the firmware by its script.

fn main() {
    println!("cargo:rustc-link-arg=-T{}/firmware.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=firmware.ld");
}
