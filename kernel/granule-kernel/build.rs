//! The page sizes that the build has code for, and the flags that link the kernel as a static
//! position-independent executable at base 0.
//!
//! Linking is only for the bare-metal target: on the host the crate is a small program and
//! a set of unit tests, linked as any other.

/// The features that select one page size, its name in `src/sizes.rs`, and its bytes.
const SIZES: [(&str, &str, u64); 3] = [
    ("CARGO_FEATURE_FIXED_4K", "page_4k", 4 << 10),
    ("CARGO_FEATURE_FIXED_16K", "page_16k", 16 << 10),
    ("CARGO_FEATURE_FIXED_64K", "page_64k", 64 << 10),
];

/// Tells the code which page sizes it is for; the bytes of the largest.
fn page_sizes() -> u64 {
    let asked = |feature: &str| std::env::var_os(feature).is_some();
    let all = !SIZES.iter().any(|(feature, ..)| asked(feature));
    let mut largest = 0;
    for (feature, name, bytes) in SIZES {
        println!("cargo:rustc-check-cfg=cfg({name})");
        if all || asked(feature) {
            println!("cargo:rustc-cfg={name}");
            largest = bytes;
        }
    }
    largest
}

fn main() {
    let largest_page = page_sizes();
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
