//! Proof that the kernel's target is compiled with strict alignment.
//!
//! Unaligned accesses fault with the MMU off whatever the value of SCTLR.A (Arm ARM RWFZPW). The
//! finished code does not show them, because the alignment of a register is unknown there. So the
//! check tests the compiler: a four-byte load of unknown alignment, compiled with the kernel's own
//! flags, must become byte loads.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection, SectionKind};

use crate::a64;
use xtask::files;
use xtask::workspace::{KERNEL_TARGET, root, run};

const PROBE: &str = "#![no_std]\n\
    /// # Safety\n/// Any readable address.\n\
    #[unsafe(no_mangle)]\n\
    pub unsafe extern \"C\" fn probe(p: *const u64) -> u64 { unsafe { p.read_unaligned() } }\n";

/// Compiles the sample and checks its loads.
pub(crate) fn check() -> Result<()> {
    let loads = wide_loads(&kernel_flags()?)?;
    ensure!(
        loads == 0,
        "mmu-off: {KERNEL_TARGET} with the flags of .cargo/config.toml compiles an unaligned read \
         into a wide load; the kernel needs the target feature strict-align"
    );
    Ok(())
}

/// The rustflags that cargo uses for the kernel; `RUSTFLAGS` replaces those of the configuration.
fn kernel_flags() -> Result<Vec<String>> {
    if let Ok(flags) = std::env::var("RUSTFLAGS") {
        return Ok(flags.split_whitespace().map(str::to_owned).collect());
    }
    let path = root().join(".cargo").join("config.toml");
    flags_in(&files::text(&path)?).with_context(|| format!("in {}", path.display()))
}

fn flags_in(text: &str) -> Result<Vec<String>> {
    let config: toml::Table = text.parse()?;
    let flags = config
        .get("target")
        .and_then(|t| t.get(KERNEL_TARGET))
        .and_then(|t| t.get("rustflags"))
        .and_then(|f| f.as_array())
        .with_context(|| format!("no array target.{KERNEL_TARGET}.rustflags"))?;
    Ok(flags
        .iter()
        .filter_map(|f| f.as_str())
        .map(str::to_owned)
        .collect())
}

fn wide_loads(flags: &[String]) -> Result<usize> {
    let folder = tempfile::tempdir()?;
    let (source, object) = (
        folder.path().join("probe.rs"),
        folder.path().join("probe.o"),
    );
    std::fs::write(&source, PROBE)?;
    let mut rustc = Command::new("rustc");
    rustc
        .current_dir(root())
        .args([
            "--edition=2024",
            "--crate-type=lib",
            "--emit=obj",
            "-Copt-level=3",
            "--target",
        ])
        .arg(KERNEL_TARGET)
        .args(flags)
        .arg("-o")
        .args([&object, &source]);
    run(rustc)?;
    count_wide_loads(&object)
}

fn count_wide_loads(path: &Path) -> Result<usize> {
    let bytes = std::fs::read(path)?;
    let file = object::File::parse(&*bytes)?;
    let mut words = 0;
    let mut wide = 0;
    for section in file.sections().filter(|s| s.kind() == SectionKind::Text) {
        for word in section.data()?.as_chunks::<4>().0 {
            words += 1;
            wide += usize::from(a64::loads_more_than_a_byte(u32::from_le_bytes(*word)));
        }
    }
    ensure!(words > 0, "the strict-align probe compiled to nothing");
    Ok(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_target_is_strict() {
        check().unwrap();
    }

    #[test]
    fn a_target_without_strict_alignment_is_seen() {
        // The feature has no stable name, so rustc warns; only its effect matters here.
        let loose = ["-Ctarget-feature=-strict-align", "-Awarnings"].map(str::to_owned);
        assert_ne!(wide_loads(&loose).unwrap(), 0);
    }

    #[test]
    fn flags_are_read_from_the_configuration() {
        let text = format!("[target.{KERNEL_TARGET}]\nrustflags = [\"-C\", \"x\"]\n");
        assert_eq!(flags_in(&text).unwrap(), ["-C", "x"]);
        assert!(flags_in("").is_err());
    }
}
