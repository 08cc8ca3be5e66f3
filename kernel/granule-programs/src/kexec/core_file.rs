//! Copies a core to a disk.

use crate::files::{Errno, File, memory};

/// Bytes that are moved together.
const PIECE: usize = 64 << 10;
/// Bytes that are left out together. A boot may have touched a little of each large page.
const UNIT: usize = 4 << 10;

/// Which of the two files a copy failed at.
pub(crate) enum Failure {
    From(Errno),
    To(Errno),
}

/// The bytes of a copy, and how many of them were written.
pub(crate) struct Copied {
    pub(crate) bytes: u64,
    pub(crate) written: u64,
}

/// Copies all of a file to the beginning of a disk. Leaves units of zeros out if the disk is `zeroed`. The first piece
/// is written last, and is zeros until then.
pub(crate) fn copy(from: &mut File, to: &mut File, zeroed: bool) -> Result<Copied, Failure> {
    let room = || memory(PIECE).map_err(Failure::From);
    let (first, next, zeros) = (room()?, room()?, room()?);
    let first = from.read_all(first).map_err(Failure::From)?;
    let mut written = 0;
    let mut put = |mut at: u64, mut piece: &[u8]| {
        while !piece.is_empty() {
            let left_out = |unit: &&[u8]| zeroed && is_zero(unit);
            let skipped = bytes(piece.chunks(UNIT).take_while(left_out));
            let (_, rest) = piece.split_at(skipped);
            let run = bytes(rest.chunks(UNIT).take_while(|unit| !left_out(unit)));
            let (run, rest) = rest.split_at(run);
            to.write_at(at + skipped as u64, run).map_err(Failure::To)?;
            written += run.len() as u64;
            at += (skipped + run.len()) as u64;
            piece = rest;
        }
        Ok(())
    };
    put(0, zeros.get(..first.len()).unwrap_or_default())?;
    let mut end = first.len() as u64;
    loop {
        let piece = from.read_all(next).map_err(Failure::From)?;
        if piece.is_empty() {
            break;
        }
        put(end, piece)?;
        end += piece.len() as u64;
    }
    put(0, first)?;
    Ok(Copied {
        bytes: end,
        written,
    })
}

fn bytes<'a>(units: impl Iterator<Item = &'a [u8]>) -> usize {
    units.map(<[u8]>::len).sum()
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().all(|word| u64::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}
