//! Code that `xtask` and `granule-peers` share: folders and cargo calls, files, parallel jobs, boots with their reports,
//! pairwise samples, boots through firmware, machines that are read, and ELF files for tests. Each command is a module
//! of its program.

pub mod boot;
pub mod deadline;
pub mod drawn;
pub mod files;
pub mod firmware_matrix;
pub mod graph;
pub mod machine;
pub mod pairwise;
pub mod test_elf;
pub mod workspace;
