//! Tests of the code that runs before the first table, against readers and models that share no
//! code with it.

#![allow(clippy::unwrap_used)]

mod stamp;

// The rest has no unsafe code, and exhaustive tests: hours under Miri, which has nothing to find.
#[cfg(not(miri))]
mod choice;
#[cfg(not(miri))]
mod expand;
#[cfg(not(miri))]
mod firmware;
#[cfg(not(miri))]
mod memblock;
#[cfg(not(miri))]
#[cfg(not(miri))]
mod peek;
#[cfg(not(miri))]
mod peek_damage;
#[cfg(not(miri))]
mod tree;
#[cfg(not(miri))]
mod tree_write;
#[cfg(not(miri))]
mod trees;
#[cfg(not(miri))]
mod uarts;
#[cfg(not(miri))]
mod words;
