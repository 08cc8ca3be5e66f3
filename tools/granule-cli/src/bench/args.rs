//! The command line of `granule bench`: the benchmarks and their common options. The options and
//! help of each benchmark are in its folder.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{kexec, linear_map, permissions, tlb, user};
use crate::image::Image;
use crate::request::Request;

/// The options of `granule bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Benchmark to run
    #[command(subcommand)]
    pub what: What,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Build the linear map with every strategy and count the cost of each
    #[command(long_about = linear_map::args::LONG, after_long_help = linear_map::args::EXAMPLES)]
    LinearMap(linear_map::Bench),
    /// Change permissions in the linear map and count the cost of changes of each size
    #[command(long_about = permissions::args::LONG, after_long_help = permissions::args::EXAMPLES)]
    Permissions(permissions::Bench),
    /// Run a program at EL0 on every build and count the cost of its memory
    #[command(long_about = user::args::LONG, after_long_help = user::args::EXAMPLES)]
    User(user::Bench),
    /// Leave for another kernel and count the cost of each phase
    #[command(long_about = kexec::args::LONG, after_long_help = kexec::args::EXAMPLES)]
    Kexec(kexec::Bench),
    /// Replay a workload's memory accesses through models of published TLBs and count the misses
    #[command(long_about = tlb::args::LONG, after_long_help = tlb::args::EXAMPLES)]
    Tlb(Box<tlb::args::TlbArgs>),
}

/// The options of each boot of a benchmark, and of its output.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct RunArgs {
    /// QEMU to run
    #[arg(long, value_name = "PATH", default_value = "qemu-system-aarch64")]
    pub qemu: PathBuf,

    /// Time limit of one boot in seconds, without the time it waits for a core of a busy host
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub timeout: u64,

    /// Print one JSON object to standard output, and the table to standard error
    #[arg(long)]
    pub json: bool,
}

impl RunArgs {
    /// The request of a boot whose instructions are counted.
    pub(super) fn request(&self) -> Request {
        Request {
            qemu: self.qemu.clone(),
            icount: true,
            timeout: Duration::from_secs(self.timeout),
            ..Request::default()
        }
    }
}

/// The image of a benchmark that boots one alone, and the options of each boot.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ImageArgs {
    /// Kernel image; default: target/granule/Image here or in a directory above
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,

    /// The options of each boot
    #[command(flatten)]
    pub run: RunArgs,
}

impl ImageArgs {
    /// The request of a boot of the image whose instructions are counted.
    pub(super) fn request(&self) -> Request {
        Request {
            image: self.image.clone(),
            ..self.run.request()
        }
    }

    /// Reads the image, or returns a line that names what is missing.
    pub(super) fn open(&self) -> Result<Image, String> {
        Image::open(self.image.as_deref()).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
impl ImageArgs {
    /// An image and a QEMU that do not exist.
    pub(super) fn nowhere() -> Self {
        Self {
            image: Some("/nonexistent/Image".into()),
            run: RunArgs::nowhere(),
        }
    }
}

#[cfg(test)]
impl RunArgs {
    /// A QEMU that does not exist.
    pub(super) fn nowhere() -> Self {
        Self {
            qemu: "/nonexistent/qemu".into(),
            timeout: 1,
            json: false,
        }
    }
}
