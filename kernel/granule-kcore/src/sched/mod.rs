//! The decisions of the scheduler, without tasks: which task runs next, whether a task may sleep, which CPU
//! is woken.
//!
//! A task is its place in a table of fixed size, and a CPU is its number. Registers, stacks, interrupts and
//! locks belong to the kernel. Shuttle tests the steps of [`task_state`] and [`idle_cpus`] in every order
//! that it draws.

pub mod idle_cpus;
pub mod run_queue;
pub mod task_state;
pub mod waiters;
