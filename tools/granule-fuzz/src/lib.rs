//! Fuzz targets as plain functions: bytes in, no panic and no endless loop out.
//!
//! A target feeds bytes that may come from outside (a boot loader, firmware, a guest, a user) to code that
//! must survive them, and checks statements that hold for all bytes. The same functions run on stable Rust
//! in `tests/` and under cargo-fuzz in `fuzz/`.

mod bytes;
mod dumps;
mod firmware;
mod initramfs;
mod inspect;
mod kernel_records;
mod module;
mod next_tree;
mod nodes;
mod parsers;
mod pieces;
mod program;
mod reader;
mod replay;
mod tables;
mod watched;

/// A target: its name, the function, and the folders of `corpus` with files of the format that it reads. A target that
/// draws a case from its bytes has none; `tests/corpus.rs` gives the reasons.
pub type Target = (&'static str, fn(&[u8]), &'static [&'static str]);

/// All targets. `cargo xtask fuzz` reads these rows in the source, since it does not depend on this crate.
#[rustfmt::skip]
pub const TARGETS: &[Target] = &[
    ("device_tree_reader", reader::device_tree_reader, &["device-tree"]),
    ("device_tree_peek", parsers::device_tree_peek, &["device-tree"]),
    ("device_tree_memory", nodes::device_tree_memory, &["device-tree"]),
    ("device_tree_cpus", nodes::device_tree_cpus, &["device-tree"]),
    ("device_tree_intc", nodes::device_tree_intc, &["device-tree"]),
    ("exact_tree", parsers::exact_tree, &["device-tree"]),
    ("kexec_tree", next_tree::kexec_tree, &["device-tree"]),
    ("efi_map", firmware::efi_map, &["efi-map"]),
    ("acpi_tables", firmware::acpi_tables, &["acpi"]),
    ("firmware_tree", firmware::firmware_tree, &[]),
    ("command_line", parsers::command_line, &["command-line"]),
    ("pretended_cpu", parsers::pretended_cpu, &["command-line"]),
    ("console_record", kernel_records::console_record, &["console-record"]),
    ("boot_record", kernel_records::boot_record, &["boot-record"]),
    ("trace_area", kernel_records::trace_area, &["command-line"]),
    ("stamp", kernel_records::stamp, &["stamp"]),
    ("trace_record", kernel_records::trace_record, &[]),
    ("sizes", parsers::sizes, &["size"]),
    ("image_header", parsers::image_header, &["image-header"]),
    ("bench_lines", parsers::bench_lines, &["bench-lines"]),
    ("trace_line", parsers::trace_line, &["trace"]),
    ("trace_file", parsers::trace_file, &["trace"]),
    ("trace_replay", replay::trace_replay, &[]),
    ("memblock", tables::memblock, &[]),
    ("descriptor", tables::descriptor, &[]),
    ("pieces", pieces::pieces, &[]),
    ("walker", tables::walker, &[]),
    ("table_view", tables::table_view, &[]),
    ("inspect", inspect::inspect, &[]),
    ("cpio_tree", initramfs::cpio_tree, &["initramfs"]),
    ("path_lookup", initramfs::path_lookup, &[]),
    ("program", program::program, &["program"]),
    ("module", module::module, &["module"]),
    ("elf_core", dumps::elf_core, &["elf-core"]),
    ("kdump", dumps::kdump, &["kdump"]),
    ("gdb_answers", dumps::gdb_answers, &[]),
    ("kernel_in_memory", dumps::kernel_in_memory, &[]),
    ("linux_processes", dumps::linux_processes, &[]),
    ("translation_registers", dumps::translation_registers, &[]),
    ("watched_guest", watched::watched_guest, &[]),
    ("watch_stream", watched::watch_stream, &["watch-stream"]),
    ("accessed_guest", watched::accessed_guest, &[]),
    ("accesses_stream", watched::accesses_stream, &[]),
];

pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS
        .iter()
        .find(|(other, ..)| *other == name)
        .map(|(_, run, _)| *run)
}
