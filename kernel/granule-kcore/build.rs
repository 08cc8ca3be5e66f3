//! The page sizes that the build has code for: all three, or those whose features are on.
//! `src/sizes.rs` reads them as `page_4k`, `page_16k` and `page_64k`.

/// The features that select one page size, and its name in `src/sizes.rs`.
const SIZES: [(&str, &str); 3] = [
    ("CARGO_FEATURE_FIXED_4K", "page_4k"),
    ("CARGO_FEATURE_FIXED_16K", "page_16k"),
    ("CARGO_FEATURE_FIXED_64K", "page_64k"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let asked = |feature: &str| std::env::var_os(feature).is_some();
    let all = !SIZES.iter().any(|(feature, _)| asked(feature));
    for (feature, name) in SIZES {
        println!("cargo:rustc-check-cfg=cfg({name})");
        if all || asked(feature) {
            println!("cargo:rustc-cfg={name}");
        }
    }
}
