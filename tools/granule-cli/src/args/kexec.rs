//! The options of `granule boot` for leaving for another kernel.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use crate::request::{Kexec, PageSize};

const HEADING: &str = "Leaving for another kernel (kexec)";

/// Where to leave for, and how.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("next").args(["kexec", "kexec_page_size"]).multiple(true)),
)]
pub(super) struct KexecArgs {
    /// Once up, load this arm64 Image and leave for it: of any page size, or another kernel's
    #[arg(long, help_heading = HEADING, value_name = "IMAGE")]
    kexec: Option<PathBuf>,

    /// Page size to request of the next kernel; without --kexec that is the same image again
    #[arg(long, help_heading = HEADING, value_name = "SIZE", value_enum, ignore_case = true)]
    kexec_page_size: Option<PageSize>,

    /// The next kernel's initial RAM disk
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "next")]
    kexec_initrd: Option<PathBuf>,

    /// The next kernel's command line
    #[arg(
        long,
        help_heading = HEADING,
        value_name = "TEXT",
        allow_hyphen_values = true,
        requires = "next"
    )]
    kexec_append: Option<String>,

    /// Copy every segment, even one that could be loaded at its destination
    #[arg(long, help_heading = HEADING, requires = "next")]
    kexec_copy: bool,

    /// Copy with MMU and caches off (granule.kexec=uncached), to compare
    #[arg(long, help_heading = HEADING, requires = "next")]
    kexec_uncached: bool,
}

impl KexecArgs {
    /// The kexec request that these options describe, if any was given.
    pub(super) fn kexec(&self) -> Option<Kexec> {
        // The other options require one of these two.
        let is_given = self.kexec.is_some() || self.kexec_page_size.is_some();
        is_given.then(|| Kexec {
            image: self.kexec.clone(),
            initrd: self.kexec_initrd.clone(),
            append: self.kexec_append.clone(),
            page_size: self.kexec_page_size,
            copy: self.kexec_copy,
            uncached: self.kexec_uncached,
        })
    }
}
