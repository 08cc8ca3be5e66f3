//! The flags that link the kernel as a static position-independent executable at base 0.
//!
//! Linking is only for the bare-metal target: on the host the crate is a small program and
//! a set of unit tests, linked as any other.

/// The features that select a page size, and its bytes.
const SIZES: [(&str, u64); 3] = [
    ("CARGO_FEATURE_PAGE_64K", 64 << 10),
    ("CARGO_FEATURE_PAGE_16K", 16 << 10),
    ("CARGO_FEATURE_PAGE_4K", 4 << 10),
];

fn main() {
    let built = |(feature, _): &&(&str, u64)| std::env::var_os(feature).is_some();
    let largest_page = SIZES.iter().find(built).map_or(0, |(_, bytes)| *bytes);
    let manifest = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let script = format!("{manifest}/kernel.ld");
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("none") {
        return;
    }
    let arguments = [
        format!("-T{script}"),
        // A PIE without an interpreter: the entry code is its own dynamic loader.
        "-pie".into(),
        "--no-dynamic-linker".into(),
        // A relocation inside read-only text cannot be applied by code that runs
        // from that text; it fails the link instead.
        "-ztext".into(),
        "--no-undefined".into(),
        // With every symbol bound inside the image each dynamic relocation is
        // R_AARCH64_RELATIVE, the only kind the entry code applies.
        "-Bsymbolic".into(),
        "--pack-dyn-relocs=none".into(),
        // Segments must not share a page at the largest page size there is code for.
        format!("-zmax-page-size={largest_page}"),
        format!("--defsym=LARGEST_PAGE={largest_page}"),
        "--build-id=none".into(),
    ];
    for argument in arguments {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
