//! QEMU's boards that are not its machine `virt`: our one image boots on each with the tree that Debian's kernel
//! package carries for it, or with QEMU's own where there is none, with each page size of its CPU, and runs its first
//! program.
//!
//! This file has the order; the boards are in `list`, what one of them needs of its own is in
//! `npcm845`, and `run` boots one.

mod list;
mod npcm845;
mod run;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use granule_cli::sizes::show_size;
use granule_cli::{Initramfs, PageSize};
use xtask::graph;
use xtask::workspace::{image_path, target_dir};

use self::list::{BOARDS, Board, Tree};
use self::npcm845::Method;
use crate::check::Check;
use crate::deb;
use crate::emulator;
use crate::machine::Files;
use crate::peers::{Peers, TREES};

/// How many of the boots are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Each board with each of its page sizes, and each QEMU with each of its boards.
    Sample,
    /// Every board with every QEMU and every page size.
    All,
}

/// What the first program does: more children than there are CPUs never call the kernel, so only the timer lets
/// others run.
const TEST: &str = "preempt";

/// A boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    board: &'static Board,
    /// The place in the board's QEMUs, and in its page sizes.
    qemu: usize,
    page_size: usize,
}

impl Case {
    fn page_size(&self) -> PageSize {
        self.board.page_sizes[self.page_size]
    }
}

/// The boots. In the sample a board's page sizes go along its QEMUs, for as long as the longer list is.
fn cases(extent: Extent) -> Vec<Case> {
    let mut cases = Vec::new();
    for board in &BOARDS {
        let (qemus, page_sizes) = (board.qemus.len(), board.page_sizes.len());
        let case = |qemu, page_size| Case {
            board,
            qemu,
            page_size,
        };
        match extent {
            Extent::All => {
                for qemu in 0..qemus {
                    cases.extend((0..page_sizes).map(|page_size| case(qemu, page_size)));
                }
            }
            Extent::Sample => {
                let along = 0..qemus.max(page_sizes);
                cases.extend(along.map(|at| case(at % qemus, at % page_sizes)));
            }
        }
    }
    cases
}

/// A check for each boot to this extent.
pub(crate) fn all(
    peers: &Peers<'_>,
    files: &Files,
    folder: &Path,
    extent: Extent,
    fresh: bool,
    add: &mut impl FnMut(Check),
) -> Result<()> {
    let cases = cases(extent);
    let fetched = emulator::QEMUS
        .each_ref()
        .map(|wanted| (wanted.version, emulator::qemu(wanted, folder, fresh)));
    let qemu = |version: &str| -> Result<PathBuf> {
        match fetched.iter().find(|(it, _)| *it == version) {
            // The oldest is the machine's own.
            None => Ok(PathBuf::from("qemu-system-aarch64")),
            Some((_, Ok(program))) => Ok(program.clone()),
            Some((_, Err(error))) => bail!("{error:#}"),
        }
    };
    let trees = trees(peers, files)?;
    let start = files.put("npcm845.bin", &npcm845::code())?;
    let own_tree = |name: &str, method| files.put(name, &npcm845::tree(method)?);
    let own_trees = [
        (
            Method::SpinTable,
            own_tree("npcm845.dtb", Method::SpinTable)?,
        ),
        (Method::Psci, own_tree("npcm845-psci.dtb", Method::Psci)?),
    ];
    let image = image_path();
    let program = target_dir().join("granule").join("granule-user");
    let program =
        std::fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    let initramfs = files.initramfs("boards.cpio", Initramfs::new().program("/init", &program))?;
    let program = run::Program {
        initramfs: &initramfs,
        test: TEST,
    };
    graph::all(
        cases.len(),
        |at| {
            let case = &cases[at];
            let version = case.board.qemus[case.qemu];
            let (tree, start) = match case.board.tree {
                Tree::Qemu => (None, None),
                Tree::Debian(tree) => (trees.get(tree), None),
                Tree::Npcm845 => {
                    let method = Method::of(version);
                    let mut trees = own_trees.iter();
                    let tree = trees.find_map(|(it, tree)| (*it == method).then_some(tree));
                    (tree, Some(start.as_path()))
                }
            };
            let with = run::With {
                image: &image,
                tree: tree.map(PathBuf::as_path),
                start,
                program,
            };
            let qemu = qemu(version)?;
            run::boot(case.board, case.page_size(), &qemu, &with)
        },
        |done| {
            let case = &cases[done.job];
            let name = format!(
                "board {} of QEMU {}, {} pages",
                case.board.name,
                case.board.qemus[case.qemu],
                show_size(case.page_size().bytes())
            );
            add(Check::new(name, done.result));
        },
    );
    Ok(())
}

/// The trees of Debian's that the boards boot with: their files by their names.
fn trees(peers: &Peers<'_>, files: &Files) -> Result<BTreeMap<&'static str, PathBuf>> {
    let package = peers.bytes(&TREES[1])?;
    let named = |path: &str| {
        let mut trees = BOARDS.iter().filter_map(Board::debian_tree);
        trees.find(|tree| path.ends_with(&format!("/{tree}")))
    };
    let mut trees = BTreeMap::new();
    for (path, bytes) in deb::files(&package[..], |path| named(path).is_some())? {
        let tree = named(&path).context("a tree that is not asked for")?;
        trees.insert(tree, files.put(&tree.replace('/', "-"), &bytes)?);
    }
    for tree in BOARDS.iter().filter_map(Board::debian_tree) {
        ensure!(
            trees.contains_key(tree),
            "{} has no {tree}",
            TREES[1].package
        );
    }
    Ok(trees)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::workspace::root;

    #[test]
    fn the_document_has_a_row_for_each_board() {
        let text = std::fs::read_to_string(root().join("docs/boards.md")).unwrap();
        for board in &BOARDS {
            let row = board.row();
            assert!(text.lines().any(|line| line == row), "no row {row}");
        }
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        assert_eq!(rows.count(), BOARDS.len());
    }

    #[test]
    fn the_sample_has_each_board_with_each_page_size_and_each_qemu() {
        let (sample, all) = (cases(Extent::Sample), cases(Extent::All));
        assert!(sample.len() < all.len());
        for case in &all {
            let has = |test: &dyn Fn(&Case) -> bool| {
                sample.iter().any(|it| it.board == case.board && test(it))
            };
            assert!(has(&|it| it.qemu == case.qemu), "{case:?}");
            assert!(has(&|it| it.page_size == case.page_size), "{case:?}");
        }
    }
}
