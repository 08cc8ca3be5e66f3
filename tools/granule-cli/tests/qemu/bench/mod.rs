//! `granule bench` under QEMU: the cost of each strategy, against the arithmetic behind `granule
//! plan`, and against the known properties of the strategies.
//!
//! Every figure here is exact: counts do not depend on the host.

mod command;
mod counts;
mod kexec;
mod permissions;
mod rows;
mod user;
