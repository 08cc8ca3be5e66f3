//! Links the program by its script.

fn main() {
    println!("cargo:rustc-link-arg=-T{}/counts.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=counts.ld");
}
