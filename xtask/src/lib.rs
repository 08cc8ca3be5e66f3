//! What the workspace's chores share, `xtask` and `xtask-peers`: where things are and how cargo is called,
//! several jobs at a time, and ELF files for tests. Each chore is a module of its program.

pub mod pool;
pub mod test_elf;
pub mod workspace;
