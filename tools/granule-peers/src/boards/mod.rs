//! QEMU's boards: our one image boots on each with each page size of its CPU, and runs its first
//! program. The tree is from Debian's kernel package, QEMU's own, or ours.
//!
//! The boards are in `list`, the files that one of them needs are in `npcm845`, and `run` boots
//! one.

mod list;
mod npcm845;
mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use granule_cli::sizes::show_size;
use granule_cli::{Initramfs, PageSize};
use xtask::pairwise;
use xtask::workspace::image_path;

use self::list::{BOARDS, Board, Tree};
use self::npcm845::Method;
use crate::deb;
use crate::emulator::QEMUS;
use crate::machine::program;
use crate::peers::{Peers, TREES};

#[derive(Clone, Copy, Debug)]
struct BoardBoot {
    board: &'static Board,
    qemu: &'static str,
    page_size: PageSize,
}

/// Lists every board with every QEMU and every page size, or a sample with every pair of them.
fn cases(is_all: bool) -> Vec<BoardBoot> {
    let mut cases = Vec::new();
    for board in &BOARDS {
        for qemu in board.qemus {
            cases.extend(board.page_sizes.iter().map(|&page_size| BoardBoot {
                board,
                qemu,
                page_size,
            }));
        }
    }
    let values = |case: &BoardBoot| [case.board.name, case.qemu, case.page_size.word()].to_vec();
    if is_all {
        cases
    } else {
        pairwise::covering(&cases, values)
    }
}

/// Adds a check for each boot, or for a sample: each board with each of its page sizes, and each
/// QEMU with each of its boards.
pub(crate) fn all(peers: &Peers<'_>, is_all: bool) -> Result<()> {
    let fetched = [0, 1].map(|at| (QEMUS[at].version, peers.qemu(at)));
    let qemu = |version: &str| -> Result<PathBuf> {
        match fetched.iter().find(|(it, _)| *it == version) {
            // The oldest is installed on this machine.
            None => Ok(PathBuf::from("qemu-system-aarch64")),
            Some((_, Ok(program))) => Ok(program.clone()),
            Some((_, Err(error))) => bail!("{error:#}"),
        }
    };
    let trees = trees(peers)?;
    let start = peers.files.put("npcm845.bin", &npcm845::code())?;
    let own_tree = |name: &str, method| peers.files.put(name, &npcm845::tree(method)?);
    let spin_table = own_tree("npcm845.dtb", Method::SpinTable)?;
    let psci = own_tree("npcm845-psci.dtb", Method::Psci)?;
    let image = image_path();
    let initramfs = Initramfs::new().program("/init", &program("granule-user")?);
    let initramfs = peers.files.initramfs("boards.cpio", initramfs)?;
    peers.each(
        &cases(is_all),
        |case| {
            let (name, version) = (case.board.name, case.qemu);
            let size = show_size(case.page_size.bytes());
            format!("board {name} of QEMU {version}, {size} pages")
        },
        |case| {
            let (tree, start) = match case.board.tree {
                Tree::Qemu => (None, None),
                Tree::Debian(tree) => (trees.get(tree), None),
                Tree::Npcm845 => match Method::of(case.qemu) {
                    Method::SpinTable => (Some(&spin_table), Some(start.as_path())),
                    Method::Psci => (Some(&psci), Some(start.as_path())),
                },
            };
            let with = run::With {
                image: &image,
                tree: tree.map(PathBuf::as_path),
                start,
                initramfs: &initramfs,
            };
            let folder = peers.files.new_folder()?;
            let (board, page_size) = (case.board, case.page_size);
            run::boot(board, page_size, &qemu(case.qemu)?, &with, folder.path())
        },
    );
    Ok(())
}

/// Unpacks the Debian trees of the boards, and returns their files by name.
fn trees(peers: &Peers<'_>) -> Result<BTreeMap<&'static str, PathBuf>> {
    let package = peers.path(&TREES[1])?;
    let named = |path: &str| {
        let mut trees = BOARDS.iter().filter_map(Board::debian_tree);
        trees.find(|tree| path.ends_with(&format!("/{tree}")))
    };
    let mut trees = BTreeMap::new();
    for (path, bytes) in deb::files(&package, |path| named(path).is_some())? {
        let tree = named(&path).context("an unexpected tree")?;
        trees.insert(tree, peers.files.put(&tree.replace('/', "-"), &bytes)?);
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

    /// The row of a board in the document.
    fn row(board: &Board) -> String {
        let Board { name, cpus, .. } = board;
        let tree = match board.tree {
            Tree::Debian(path) => format!("`{path}`"),
            Tree::Qemu => "QEMU's".to_owned(),
            Tree::Npcm845 => "ours".to_owned(),
        };
        let sizes: Vec<_> = board
            .page_sizes
            .iter()
            .map(|it| show_size(it.bytes()))
            .collect();
        let (qemus, sizes) = (board.qemus.join(", "), sizes.join(", "));
        format!("| `{name}` | {qemus} | {tree} | {sizes} | {cpus} of {cpus} | |")
    }

    #[test]
    fn the_document_has_a_row_for_each_board() {
        let text = std::fs::read_to_string(root().join("docs/boards.md")).unwrap();
        for board in &BOARDS {
            let row = row(board);
            assert!(text.lines().any(|line| line == row), "no row {row}");
        }
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        assert_eq!(rows.count(), BOARDS.len());
    }
}
