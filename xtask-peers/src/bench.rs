//! The benchmark of user memory on Debian's kernels and ours: instructions that each kernel takes.
//!
//! What the figures must be is in `figures`.

use anyhow::{Context, Result};
use granule_cli::bench::user::counts::Counter;
use granule_cli::bench::user::lines;
use granule_cli::sizes::show_size as size;
use granule_cli::{Initramfs, PageSize};
use xtask::graph;
use xtask::workspace::target_dir;

use crate::check::Check;
use crate::figures::{self, Figures, Row};
use crate::machine::{Files, Guest, Kernel, LIMIT};
use crate::peers::Peers;

/// The program's arguments: memory and rounds.
const ARGUMENTS: &str = "1G 2";
const MEMORY: u64 = 4 << 30;

/// The benchmark on every kernel, several at a time: the figures, and their table for people.
pub(crate) fn bench(
    peers: &Peers<'_>,
    granules: &[(Kernel, PageSize)],
    files: &Files,
    add: &mut impl FnMut(Check),
) -> Result<(Vec<Row>, String)> {
    let path = target_dir().join("granule").join("granule-user-bench");
    let program =
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let initramfs = files.initramfs("bench.cpio", Initramfs::new().program("/init", &program))?;
    let kernels: Vec<_> = granules.iter().chain(&peers.linuxes).collect();
    let run = |(kernel, page_size): &(Kernel, PageSize), large: bool| {
        // Linux's first process must not end, so it gets an argument to power the machine off.
        let off = if kernel.is_ours() { "" } else { " off" };
        let words = match (kernel.is_ours(), large) {
            (true, true) => "user_large_leaves=on",
            (true, false) => "user_large_leaves=off",
            (false, true) => "transparent_hugepage=always",
            (false, false) => "transparent_hugepage=never",
        };
        let large_word = if large { " large" } else { "" };
        let counter = Counter::new().map_err(anyhow::Error::msg)?;
        let console = kernel.run(&Guest {
            memory: MEMORY,
            cpus: 1,
            icount: true,
            initramfs: &initramfs,
            words,
            arguments: &format!("{ARGUMENTS}{large_word}{off}"),
            plugin: Some(&counter.option()),
            limit: LIMIT,
        })?;
        let mut measured = lines::read(&console).map_err(anyhow::Error::msg)?;
        let counted = counter.add_to(&mut measured);
        counted.map_err(anyhow::Error::msg)?;
        let figures = Figures::new(measured, &kernel.name(), kernel.is_ours(), large);
        anyhow::ensure!(
            figures.page_size == page_size.bytes(),
            "it has pages of {}",
            size(figures.page_size)
        );
        Ok(figures)
    };
    // With pages of the base size alone, and in what each kernel takes for the best.
    let runs: Vec<_> = [false, true]
        .into_iter()
        .flat_map(|large| kernels.iter().map(move |kernel| (*kernel, large)))
        .collect();
    let mut all: Vec<Option<Figures>> = vec![None; runs.len()];
    graph::all(
        runs.len(),
        |at| run(runs[at].0, runs[at].1),
        |done| {
            let ((kernel, page_size), large) = runs[done.job];
            let name = format!(
                "benchmark, {}, {}{}",
                kernel.name(),
                size(page_size.bytes()),
                if large { ", large pages" } else { "" }
            );
            let result = done.result.map(|figures| {
                let told = format!("{} in {:.0} s", figures.ops.len(), done.time.as_secs_f32());
                all[done.job] = Some(figures);
                told
            });
            add(Check::new(name, result));
        },
    );
    let all: Vec<_> = all.into_iter().flatten().collect();
    figures::checks(&all).into_iter().for_each(add);
    let table = format!(
        "instructions a page, `granule-user-bench {ARGUMENTS}`, the least of the rounds\n{}\n\
         TLBIs of all pages in that round\n{}",
        figures::table(&all, &|op, pages| Some(format!(
            "{:.1}",
            op.instructions as f64 / pages as f64
        ))),
        figures::table(&all, &|op, _| Some(op.counts?.tlbi.to_string()))
    );
    Ok((figures::rows(&all), table))
}
