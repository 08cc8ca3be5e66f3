//! The decisions of the scheduler: which task runs next, whether it may sleep, which CPU wakes.
//!
//! A task is its place in a table of fixed size, and a CPU is its number. Registers, stacks, interrupts and
//! locks belong to the kernel. Shuttle tests the steps of [`task_state`] and [`idle_cpus`] in every order
//! that it draws.

pub mod idle_cpus;
pub mod run_queue;
pub mod task_state;
pub mod waiters;
