//! Links the kernel by its script.

fn main() {
    println!("cargo:rustc-link-arg=-T{}/kernel.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=kernel.ld");
}
