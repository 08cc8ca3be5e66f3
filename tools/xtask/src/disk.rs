//! `cargo xtask disk`: the kernel and its first program on a disk that firmware boots, for a USB stick or a
//! virtual machine, with a menu for the page size.
//!
//! The bytes of the disk and its menus are made in `granule-cli`; `granule-peers` fetches the boot loader.

use std::path::PathBuf;

use anyhow::{Error, Result};
use clap::Args;
use granule_cli::loader::{self, Entry, Loader};
use granule_cli::{Initramfs, PageSize, disk};

use crate::{image, user};
use xtask::files;
use xtask::workspace::{cargo, run, target_dir};

/// Seconds in which a person may choose another line of the menu.
const SECONDS: u32 = 3;

#[derive(Debug, Args)]
pub(crate) struct DiskOptions {
    /// The disk's file; default: target/granule/disk.img
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn make(options: &DiskOptions) -> Result<()> {
    image::image(None)?;
    user::build()?;
    let granule = target_dir().join("granule");
    let loader = granule.join(Loader::Grub.file());
    if !loader.is_file() {
        let words = "run --quiet --package granule-peers -- --only loaders";
        run(cargo(&words.split(' ').collect::<Vec<_>>()))?;
    }
    let program = files::read(&granule.join("granule-user"))?;
    let contents = loader::files(
        Some(files::read(&loader)?),
        files::read(&granule.join("Image"))?,
        Some(first_program(&program).bytes()),
        &entries(),
        SECONDS,
    );
    let output = options
        .output
        .clone()
        .unwrap_or_else(|| granule.join("disk.img"));
    disk::write(&output, &contents).map_err(Error::msg)?;
    println!("{}", output.display());
    Ok(())
}

/// An initramfs whose first process greets.
fn first_program(program: &[u8]) -> Initramfs {
    Initramfs::new()
        .directory("/bin")
        .program("/bin/granule-user", program)
        .program("/init", b"#!/bin/granule-user hello\n")
}

/// The kernel's own choice first.
fn entries() -> Vec<Entry> {
    let sizes = PageSize::ALL.map(PageSize::word);
    let chosen = sizes.map(|size| Entry {
        name: format!("granule-{size}"),
        title: format!("Granule, {} pages", size.to_uppercase()),
        bootargs: format!("arm64.pagesize={size}"),
    });
    let first = Entry {
        name: "granule".to_owned(),
        title: "Granule, page size of its own choice".to_owned(),
        bootargs: String::new(),
    };
    [first].into_iter().chain(chosen).collect()
}
