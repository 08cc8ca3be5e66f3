//! `cargo xtask fuzz`: builds the fuzz targets as cargo-fuzz does, with the pinned nightly, sanitizer and coverage
//! counters, and runs each, guided by coverage, from the real files of `tools/granule-fuzz/corpus`.
//!
//! cargo-fuzz itself is not used, because it only calls cargo; nothing here has to install it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::tools;
use xtask::graph;
use xtask::workspace::{capture, root, run, show, target_dir};

/// The flags that cargo-fuzz (0.13) passes to rustc.
const RUSTFLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions";
/// The words that libFuzzer prints for a program with these counters.
const COUNTERS: &str = "inline 8-bit counters";
/// Inputs for each target, unless `--seconds` gives a time.
const RUNS: u32 = 5000;

/// The options of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct FuzzOptions {
    /// Run each target for this time; else for 5000 inputs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Some targets; else all
    #[arg(value_name = "TARGET")]
    only: Vec<String>,
}

/// A target, and the folders with its first inputs.
pub(crate) struct Target {
    pub(crate) name: String,
    corpus: Vec<String>,
}

/// Builds the targets and runs them, two at a time.
pub(crate) fn fuzz(options: &FuzzOptions) -> Result<()> {
    let targets = chosen(&options.only)?;
    let seed = std::env::var("GRANULE_FUZZ_SEED").unwrap_or_else(|_| "1".into());
    tools::need_cxx()?;
    let nightly = tools::nightly()?;
    let host = host(&nightly)?;
    let folder = target_dir().join("granule").join("fuzz");
    let mut build = tools::on(&nightly, &["cargo", "build", "--release", "--locked"]);
    build
        .args(["--target", &host, "--manifest-path"])
        .arg(root().join("tools/granule-fuzz/fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTFLAGS", RUSTFLAGS);
    println!("$ RUSTFLAGS='{RUSTFLAGS}' {}", show(&build));
    run(build)?;
    let built = folder.join(&host).join("release");
    let runs = match options.seconds {
        Some(seconds) => format!("-max_total_time={seconds}"),
        None => format!("-runs={RUNS}"),
    };
    let words = [runs, format!("-seed={seed}")];
    let mut failures = Vec::new();
    graph::all(
        targets.len(),
        |job| try_out(&built, &targets[job], &words),
        |done| {
            let name = &targets[done.job].name;
            match done.result {
                Ok(line) => println!("{name}: {line}"),
                Err(error) => {
                    println!("{name}: FAILED: {error:#}");
                    failures.push(name.as_str());
                }
            }
        },
    );
    ensure!(failures.is_empty(), "failed: {}", failures.join(" "));
    println!("{} targets passed", targets.len());
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<Target>> {
    let all = targets()?;
    let is_any = |name: &&String| !all.iter().any(|target| target.name == **name);
    if let Some(name) = names.iter().find(is_any) {
        let all: Vec<_> = all.iter().map(|target| target.name.as_str()).collect();
        bail!("no target is called {name}; there are: {}", all.join(" "));
    }
    let wanted = |target: &Target| names.is_empty() || names.contains(&target.name);
    Ok(all.into_iter().filter(wanted).collect())
}

/// Runs one target from its first inputs. Inputs that reach more code go to a folder that is new
/// each time.
fn try_out(built: &Path, target: &Target, words: &[String]) -> Result<String> {
    let name = &target.name;
    let found = tempfile::tempdir().context("no folder for inputs")?;
    let mut command = Command::new(built.join("all"));
    command
        .args(words)
        .arg("-timeout=60")
        .arg(format!("-artifact_prefix={}/{name}-", built.display()))
        .arg(found.path())
        .args(target.folders())
        // Leak detection finds no Rust bugs here, and fails where tracing is not permitted.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .env("GRANULE_FUZZ_TARGET", name)
        .stdin(Stdio::null());
    let text = show(&command);
    let output = command
        .output()
        .with_context(|| format!("cannot start `{text}`"))?;
    let printed = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        // libFuzzer names the file behind this word.
        let input = printed.rsplit_once("Test unit written to ");
        let input = input.and_then(|(_, rest)| rest.lines().next());
        let again = input.map(|input| {
            let program = built.join("all");
            format!("\n{name}: the input is {input}\n{name}: repeat it: GRANULE_FUZZ_TARGET={name} {} {input}", program.display())
        });
        bail!("{}\n{printed}{}", output.status, again.unwrap_or_default());
    }
    guided(&printed).with_context(|| format!("`{text}`\n{printed}"))
}

/// Sums a run up in a line, from libFuzzer's output; an error if coverage did not guide it.
fn guided(printed: &str) -> Result<String> {
    ensure!(printed.contains(COUNTERS), "no coverage counters");
    // `#23  INITED cov: 300 ft: 423 corp: 5/90b ...` after the first inputs, the same with DONE at
    // the end.
    let at = |word: &str| -> Result<(u64, u64, &str, &str)> {
        let line = printed.lines().find(|line| line.contains(word));
        let line = line.with_context(|| format!("no line with {word}"))?;
        let field = |name| {
            let mut words = line.split_whitespace().skip_while(|word| *word != name);
            words.nth(1).with_context(|| format!("no {name} in {line}"))
        };
        let runs = line.split_whitespace().next().unwrap_or_default();
        let (cov, ft) = (field("cov:")?, field("ft:")?);
        Ok((cov.parse()?, ft.parse()?, field("corp:")?, runs))
    };
    let (first, first_ft, first_corpus, _) = at("INITED")?;
    let (last, last_ft, corpus, runs) = at("DONE")?;
    ensure!(
        last > first || last_ft > first_ft,
        "coverage did not grow: cov {first}, ft {first_ft}"
    );
    let runs = runs.trim_start_matches('#');
    Ok(format!(
        "{runs} runs, cov: {first} -> {last}, ft: {first_ft} -> {last_ft}, corpus: {first_corpus} -> {corpus}"
    ))
}

/// The toolchain's default target; a sanitizer needs it spelled out.
fn host(toolchain: &str) -> Result<String> {
    let printed = capture(tools::on(toolchain, &["rustc", "-vV"]))?;
    let host = printed.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .with_context(|| format!("`rustc -vV` of {toolchain} names no host"))
}

impl Target {
    fn folders(&self) -> impl Iterator<Item = PathBuf> {
        let corpus = root().join("tools/granule-fuzz/corpus");
        self.corpus.iter().map(move |folder| corpus.join(folder))
    }
}

/// Reads the rows of `TARGETS` in the source: `("name", function, &["folder"]),`.
pub(crate) fn targets() -> Result<Vec<Target>> {
    let path = root().join("tools/granule-fuzz/src/lib.rs");
    let source = std::fs::read_to_string(&path);
    let source = source.with_context(|| format!("cannot read {}", path.display()))?;
    let (_, table) = source.split_once("pub const TARGETS").unwrap_or_default();
    let (table, _) = table.split_once("\n];").unwrap_or_default();
    let mut targets = Vec::new();
    for row in table.split("\n    (").skip(1) {
        let mut quoted = row.split('"').skip(1).step_by(2).map(str::to_owned);
        let name = quoted.next().unwrap_or_default();
        let corpus = quoted.collect();
        targets.push(Target { name, corpus });
    }
    ensure!(!targets.is_empty(), "{} has no target", path.display());
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_with_their_folders() {
        let all = targets().unwrap();
        let of = |name: &str| all.iter().find(|target| target.name == name).unwrap();
        assert_eq!(of("kexec_tree").corpus, ["device-tree"]);
        assert!(of("walker").corpus.is_empty());
        assert!(all.iter().flat_map(Target::folders).all(|it| it.is_dir()));
        assert!(chosen(&["walker".into(), "nothing".into()]).is_err());
        assert_eq!(chosen(&["walker".into()]).unwrap().len(), 1);
    }

    #[test]
    fn a_run_that_coverage_does_not_guide_fails() {
        let text = |cov, ft| {
            format!(
                "INFO: Loaded 1 modules (9 inline 8-bit counters)\n\
                 #3\tINITED cov: 7 ft: 9 corp: 2/30b exec/s: 0 rss: 50Mb\n\
                 #90\tDONE   cov: {cov} ft: {ft} corp: 4/50b lim: 4 exec/s: 0 rss: 50Mb\n"
            )
        };
        let line = guided(&text(8, 12)).unwrap();
        assert_eq!(
            line,
            "90 runs, cov: 7 -> 8, ft: 9 -> 12, corpus: 2/30b -> 4/50b"
        );
        assert!(guided(&text(7, 10)).is_ok());
        assert!(guided(&text(7, 9)).is_err());
        assert!(guided(&text(8, 12).replace("inline", "no")).is_err());
        assert!(guided(&text(8, 12).replace("DONE", "")).is_err());
    }
}
