//! The operations on tables, against a plain reference and an independent reader of tables.
//!
//! These tests do not rely on the library's account of what it did: the host notes every store,
//! barrier and TLBI, and the tables are read back as an MMU must read them.

#![allow(unsafe_code, reason = "the tests call unsafe operations")]
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]
#![allow(missing_debug_implementations, reason = "fixtures of tests")]

mod accesses;
mod any;
mod attributes;
mod bench;
mod changes;
mod counts;
mod errors;
mod exhaustion;
mod formats;
mod frames;
mod free_list;
mod hardware_updates;
mod limit;
mod lock_free;
mod merge;
mod on_live_tables;
mod one_page;
mod present_invalid;
mod random;
mod reference;
mod setting;
mod split;
mod stage2;
mod step;
mod view;
