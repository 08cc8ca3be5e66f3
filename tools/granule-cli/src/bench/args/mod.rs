//! The command line of `granule bench`: the benchmarks and their common options. The options and
//! help of each benchmark are in a file of their own.

mod kexec;
mod linear_map;
mod permissions;
mod tlb;
mod user;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

pub use kexec::KexecArgs;
pub use linear_map::LinearMapArgs;
pub use permissions::PermissionsArgs;
pub use tlb::TlbArgs;
pub use user::UserArgs;

/// The options of `granule bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub what: What,
}

/// What there is to measure.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Build the linear map with every strategy and count the cost of each
    #[command(long_about = linear_map::LONG, after_long_help = linear_map::EXAMPLES)]
    LinearMap(LinearMapArgs),
    /// Change permissions in the linear map and count the cost of changes of each size
    #[command(long_about = permissions::LONG, after_long_help = permissions::EXAMPLES)]
    Permissions(PermissionsArgs),
    /// Run a program at EL0 on every build and count the cost of its memory
    #[command(long_about = user::LONG, after_long_help = user::EXAMPLES)]
    User(UserArgs),
    /// Leave for another kernel and count the cost of each phase
    #[command(long_about = kexec::LONG, after_long_help = kexec::EXAMPLES)]
    Kexec(KexecArgs),
    /// Replay a workload's memory accesses through models of published TLBs and count the misses
    #[command(long_about = tlb::LONG, after_long_help = tlb::EXAMPLES)]
    Tlb(Box<TlbArgs>),
}

/// How each boot of a benchmark is run, and what is printed.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// QEMU to run
    #[arg(long, value_name = "PATH", default_value = "qemu-system-aarch64")]
    qemu: PathBuf,

    /// Time limit of one boot in seconds, without the time it waits for a core of a busy host
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    timeout: u64,

    /// Print one JSON object to standard output, and the table to standard error
    #[arg(long)]
    pub json: bool,
}

impl RunArgs {
    const fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}
