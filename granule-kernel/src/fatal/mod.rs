//! The ways to end badly: a refusal, which says in one line why the boot cannot go on, and a panic.

pub(crate) mod panic;
pub(crate) mod refuse;
