//! `granule bench` under QEMU: what each strategy takes, against the arithmetic that
//! `granule plan` answers from, and against what the strategies are known for.
//!
//! Every figure here is exact: counts do not depend on the host.

mod command;
mod counts;
mod kexec;
mod permissions;
mod rows;
mod user;
