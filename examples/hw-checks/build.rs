//! Links the checks by its script.

fn main() {
    println!("cargo:rustc-link-arg=-T{}/hw-checks.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=hw-checks.ld");
}
