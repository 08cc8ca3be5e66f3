//! The benchmark of user memory on Debian's kernels and ours: the instructions of each kernel.
//!
//! The checks of the figures are in `figures`.

use anyhow::{Error, Result, ensure};
use granule_cli::bench::user::counts::Counter;
use granule_cli::bench::user::lines;
use granule_cli::sizes::show_size as size;
use granule_cli::{Initramfs, Request};
use xtask::graph;

use crate::figures;
use crate::machine::{Kernel, granules, program, request};
use crate::peers::Peers;

/// The program's arguments: memory, rounds, and calls beside memory.
const ARGUMENTS: &str = "1G 2 calls";
const MEMORY: u64 = 4 << 30;

/// Runs the benchmark on every kernel, several at a time. Reports the figures, also as a table.
pub(crate) fn bench(peers: &Peers<'_>) -> Result<()> {
    let program = program("granule-user-bench")?;
    let initramfs = Initramfs::new().program("/init", &program);
    let initramfs = peers.files.initramfs("bench.cpio", initramfs)?;
    let granules = granules();
    let run = |kernel: &Kernel, large: bool| {
        // Linux's first process must not exit, so it gets an argument to power the machine off.
        let off = if kernel.is_ours { "" } else { " off" };
        let words = match (kernel.is_ours, large) {
            (true, true) => "user_large_leaves=on",
            (true, false) => "user_large_leaves=off",
            (false, true) => "transparent_hugepage=always",
            (false, false) => "transparent_hugepage=never",
        };
        let large_word = if large { " large" } else { "" };
        let counter = Counter::new().map_err(Error::msg)?;
        let machine = Request {
            icount: true,
            initrd: Some(initramfs.clone()),
            plugin: Some(counter.option()),
            ..request(MEMORY, 1)
        };
        let console = kernel.run(machine, words, &format!("{ARGUMENTS}{large_word}{off}"))?;
        let mut measured = lines::read(&console).map_err(Error::msg)?;
        counter.add_to(&mut measured).map_err(Error::msg)?;
        let found = measured.page;
        ensure!(
            found == kernel.page_size.bytes(),
            "it has pages of {}",
            size(found)
        );
        Ok(figures::rows(measured, kernel, large))
    };
    // With pages of the base size only, and with the sizes that each kernel chooses.
    let kernels = || granules.iter().chain(&peers.linuxes);
    let runs = [false, true].map(|large| kernels().map(move |kernel| (kernel, large)));
    let runs: Vec<_> = runs.into_iter().flatten().collect();
    let mut all = vec![Vec::new(); runs.len()];
    graph::all(
        runs.len(),
        |at| run(runs[at].0, runs[at].1),
        |done| {
            let (kernel, large) = runs[done.job];
            let large = if large { ", large pages" } else { "" };
            let name = format!("benchmark, {}, {}{large}", kernel.name, kernel.size());
            let result = done.result.map(|rows| {
                let line = format!("{} in {:.0} s", rows.len(), done.time.as_secs_f32());
                all[done.job] = rows;
                line
            });
            peers.add(name, result);
        },
    );
    let all = all.concat();
    for (name, result) in figures::checks(&all) {
        peers.add(name, result);
    }
    peers.summary.print_line(&format!(
        "instructions a page, `granule-user-bench {ARGUMENTS}`, the least of the rounds\n{}\n\
         TLBIs of all pages in that round\n{}",
        figures::table(&all, &|row| Some(format!(
            "{:.1}",
            row.instructions_per_page
        ))),
        figures::table(&all, &|row| Some(row.tlbi?.to_string()))
    ));
    peers.summary.keep("rows", all)
}
