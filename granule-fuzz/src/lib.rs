//! Fuzz targets as plain functions: bytes in, no panic and no endless loop out.
//!
//! A target feeds bytes that somebody else may have written (a boot loader, firmware, a guest, a
//! user) to code that must survive them, and checks what must hold whatever they are. The same
//! functions run on stable Rust in `tests/` and under cargo-fuzz in `fuzz/`.

mod bytes;
mod initramfs;
mod parsers;
mod records;
mod replay;
mod tables;

// The kernel is a program, not a library: what of it is pure is taken in by its file, and finds
// what it needs (`crate::layout`) here as there.
#[path = "../../granule-kernel/src/trace/area.rs"]
mod area;
#[path = "../../granule-kernel/src/layout.rs"]
#[allow(dead_code, reason = "the trace area needs two of its constants")]
mod layout;

/// A target: its name, as cargo-fuzz calls it, and the function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("device_tree_peek", parsers::device_tree_peek),
    ("command_line", parsers::command_line),
    ("console_record", records::console_record),
    ("boot_record", records::boot_record),
    ("trace_area", records::trace_area),
    ("stamp", records::stamp),
    ("sizes", parsers::sizes),
    ("image_header", parsers::image_header),
    ("trace_line", parsers::trace_line),
    ("trace_file", parsers::trace_file),
    ("trace_replay", replay::trace_replay),
    ("memblock", tables::memblock),
    ("descriptor", tables::descriptor),
    ("walker", tables::walker),
    ("cpio_tree", initramfs::cpio_tree),
    ("path_lookup", initramfs::path_lookup),
];

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS
        .iter()
        .find(|(other, _)| *other == name)
        .map(|(_, run)| *run)
}
