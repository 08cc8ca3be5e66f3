//! Links the hypervisor by its script.

fn main() {
    println!("cargo:rustc-link-arg=-T{}/hypervisor.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=hypervisor.ld");
}
