//! Compiles the plugin for QEMU, which is part of the program: an installed program needs no other
//! file, and the plugin is always of the version that the program reads.
//!
//! Cargo gives no crate the shared library of another one, so the two crates, which depend on nothing
//! else, are compiled here.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, exit};

fn main() {
    let out = env::var("OUT_DIR").unwrap_or_default();
    let plugin = Path::new(&out).join("plugin.so");
    let target = |what: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    // QEMU for other systems loads no such file, and a C library without a linker loads none at all.
    if target("OS") != "linux" || target("ENV") != "gnu" {
        if let Err(error) = fs::write(&plugin, "") {
            fail(&format!("{}: {error}", plugin.display()));
        }
        return;
    }
    let trace = Path::new(&out).join("libgranule_trace.rlib");
    compile("trace", "rlib", &trace, None);
    compile("plugin", "cdylib", &plugin, Some(&trace));
}

/// Compiles a crate of the workspace for the target.
fn compile(name: &str, kind: &str, to: &Path, trace: Option<&Path>) {
    let source = format!("../../crates/granule-{name}/src");
    println!("cargo::rerun-if-changed={source}");
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .arg(format!("{source}/lib.rs"))
        .arg(format!("--crate-name=granule_{name}"))
        .arg(format!("--crate-type={kind}"))
        .args([
            "--edition=2024",
            "--cap-lints=allow",
            "-O",
            "-Cstrip=symbols",
        ])
        .arg("-o")
        .arg(to);
    if let Some(target) = env::var_os("TARGET") {
        rustc.arg("--target").arg(target);
    }
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut word = std::ffi::OsString::from("-Clinker=");
        word.push(linker);
        rustc.arg(word);
    }
    if let Some(trace) = trace {
        let mut word = std::ffi::OsString::from("granule_trace=");
        word.push(trace);
        rustc.arg("--extern").arg(word);
    }
    match rustc.status() {
        Ok(status) if status.success() => (),
        Ok(status) => fail(&format!("the plugin for QEMU was not compiled: {status}")),
        Err(error) => fail(&format!("{}: {error}", rustc.get_program().display())),
    }
}

fn fail(line: &str) -> ! {
    println!("cargo::error={line}");
    exit(1);
}
