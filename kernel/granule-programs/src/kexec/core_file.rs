//! Copies a core to a disk.

use crate::files::{Errno, File, memory};

/// Bytes that are moved or left out together: a page of every size.
const PIECE: usize = 64 << 10;

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

/// Copies all of a file to the beginning of a disk. Leaves pieces of zeros out if the disk is `zeroed`. The first piece
/// is written last, and is zeros until then.
pub(crate) fn copy(from: &mut File, to: &mut File, zeroed: bool) -> Result<Copied, Failure> {
    let room = || memory(PIECE).map_err(Failure::From);
    let (first, next, zeros) = (room()?, room()?, room()?);
    let first = from.read_all(first).map_err(Failure::From)?;
    let mut written = 0;
    let mut put = |at: u64, piece: &[u8]| {
        if !(zeroed && is_zero(piece)) {
            to.write_at(at, piece).map_err(Failure::To)?;
            written += piece.len() as u64;
        }
        Ok(())
    };
    put(0, zeros.get(..first.len()).unwrap_or_default())?;
    let mut bytes = first.len() as u64;
    loop {
        let piece = from.read_all(next).map_err(Failure::From)?;
        if piece.is_empty() {
            break;
        }
        put(bytes, piece)?;
        bytes += piece.len() as u64;
    }
    put(0, first)?;
    Ok(Copied { bytes, written })
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().all(|word| u64::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}
