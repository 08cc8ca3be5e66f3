//! Links the program by the board's script.

fn main() {
    println!("cargo:rustc-link-arg=-T{}/../board/kernel.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=../board/kernel.ld");
}
