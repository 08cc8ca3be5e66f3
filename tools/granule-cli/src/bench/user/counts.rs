//! TLBIs and DSBs of the program's work: the plugin that counts them in QEMU, and the counts of each piece.
//!
//! The program reads the clock before and after each piece of work and at no other time
//! (`kernel/granule-programs/src/bench/clock.rs`), and the plugin writes a line at each reading. So the two lines of
//! a piece of work follow from its number, and from how many pieces there were: a kernel whose MMU is not on
//! yet reads the clock at addresses as a program does, but only before.

use std::ffi::OsString;
use std::path::PathBuf;

pub use granule_plugin::counts::Counts;
use tempfile::TempDir;

use super::lines::{Measured, Op};
use crate::boot::guest::temp_dir;
use crate::boot::qemu::option_with_path;
use crate::watch;

/// The plugin and the file that it writes, for one boot. Both go with it.
#[derive(Debug)]
pub struct Counter {
    plugin: PathBuf,
    lines: PathBuf,
    _folder: TempDir,
}

impl Counter {
    /// Prepares the plugin.
    /// Fails with one line if this program has none, or there is no place for it.
    pub fn new() -> Result<Self, String> {
        let folder = temp_dir()?;
        Ok(Self {
            plugin: watch::plugin(folder.path())?,
            lines: folder.path().join("counts"),
            _folder: folder,
        })
    }

    /// The value of QEMU's option `-plugin`.
    pub fn option(&self) -> OsString {
        let mut value = option_with_path("file=", &self.plugin, ",");
        value.push(option_with_path("counts=", &self.lines, ""));
        value
    }

    /// Gives each kind of work the counts of its fastest piece.
    /// Fails with one line if the plugin has not counted that.
    pub fn add_to(&self, measured: &mut Measured) -> Result<(), String> {
        let text = std::fs::read_to_string(&self.lines)
            .map_err(|error| format!("what the plugin counted: {error}"))?;
        add(&text, measured.timed, &mut measured.ops)
    }
}

fn add(text: &str, timed: u64, ops: &mut [Op]) -> Result<(), String> {
    let read = |line| Counts::read(line).ok_or_else(|| format!("the plugin's line {line:?}"));
    let readings: Vec<Counts> = text.lines().map(read).collect::<Result<_, _>>()?;
    let all = readings.len();
    let readings = usize::try_from(timed)
        .ok()
        .and_then(|timed| readings.get(all.checked_sub(timed.checked_mul(2)?)?..))
        .ok_or_else(|| {
            format!("the plugin saw {all} readings of the clock, fewer than {timed} pairs")
        })?;
    for op in ops {
        let Some(time) = &op.time else { continue };
        let pair = usize::try_from(time.at)
            .ok()
            .and_then(|at| at.checked_mul(2))
            .and_then(|first| Some((readings.get(first)?, readings.get(first.checked_add(1)?)?)));
        let counts = pair.and_then(|(before, after)| after.since(*before));
        let counts = counts.ok_or_else(|| {
            let (name, at) = (&op.name, time.at);
            format!("the plugin saw {timed} pairs of readings, without {name}'s, number {at}")
        })?;
        op.counts = Some(counts);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::user::lines::Time;

    fn op(at: u64) -> Op {
        let time = Time {
            best: 1,
            median: 1,
            worst: 1,
            at,
        };
        Op {
            name: "fork".into(),
            time: Some(time),
            ..Op::default()
        }
    }

    #[test]
    fn a_piece_of_work_has_what_came_between_its_readings() {
        let mut ops = [op(1), op(0), Op::default()];
        // A reading of something that came before the program.
        add("0 1\n1 2\n4 8\n10 20\n30 70\n", 2, &mut ops).unwrap();
        assert_eq!(ops[0].counts, Some(Counts { tlbi: 20, dsb: 50 }));
        assert_eq!(ops[1].counts, Some(Counts { tlbi: 3, dsb: 6 }));
        assert_eq!(ops[2].counts, None);
    }

    #[test]
    fn work_that_the_plugin_did_not_see_has_no_counts() {
        for (text, timed, at) in [
            ("1 2\n3 4\n", 1, 1),
            ("1 2\n3 4\n", 1, u64::MAX),
            // Counts do not fall.
            ("3 4\n1 2\n", 1, 0),
        ] {
            let error = add(text, timed, &mut [op(at)]).unwrap_err();
            assert!(error.contains("without fork's"), "{text:?}: {error}");
        }
        for (text, timed) in [
            ("", 1),
            ("1 2\n", 1),
            ("1 2\n3 4\n5 6\n", 2),
            ("", u64::MAX),
        ] {
            let error = add(text, timed, &mut [op(0)]).unwrap_err();
            assert!(error.contains("fewer than"), "{text:?}: {error}");
        }
        let error = add("1 2\n3\n", 1, &mut [op(0)]).unwrap_err();
        assert_eq!(error, "the plugin's line \"3\"");
    }
}
