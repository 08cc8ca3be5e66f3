//! `granule bench`: boots that differ in one thing, and what each took.
//!
//! Each benchmark has a room: [`linear_map`] boots every way of making the map, [`permissions`] one machine
//! for each page size, [`user`] programs on every build, [`kexec`] pairs of kernels. Each boots all that was
//! asked for and keeps what is done whatever happens; its `report` turns rows into a table and into JSON.
//! [`args`] are the options, [`progress`] says how far it is, `text` is what the reports share.

pub mod args;
pub mod kexec;
pub mod linear_map;
pub mod permissions;
pub mod progress;
mod text;
pub mod user;
