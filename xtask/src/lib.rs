//! Code that `xtask` and `xtask-peers` share: folders and cargo calls, parallel jobs, machines that are read, and ELF files for
//! tests. Each command is a module of its program.

pub mod machine;
pub mod pool;
pub mod test_elf;
pub mod workspace;
