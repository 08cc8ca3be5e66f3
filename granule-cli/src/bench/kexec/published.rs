//! Published times of Linux's kexec with the MMU off and on: seconds, as they were posted.
//!
//! Source: "arm64: MMU enabled kexec relocation", v15, Pavel Tatashin, linux-arm-kernel, June 2021. What
//! was copied took the time with the MMU off: each access went past the caches. From the times of the
//! relocation a cost for each MiB follows, and from that what a relocation here is predicted to take
//! there. A prediction, no measurement: it takes memory for the only cost, and for proportional.

/// One line of the posting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// The machine.
    pub machine: &'static str,
    /// MiB of image and initramfs.
    pub payload_mib: u32,
    /// What was measured.
    pub phase: &'static str,
    /// Seconds with the MMU off.
    pub off: f64,
    /// Seconds with the MMU on.
    pub on: f64,
}

const RELOCATION: &str = "relocation";

const fn line(
    machine: &'static str,
    payload_mib: u32,
    phase: &'static str,
    off: f64,
    on: f64,
) -> Line {
    Line {
        machine,
        payload_mib,
        phase,
        off,
        on,
    }
}

/// All that was posted.
pub const LINES: [Line; 5] = [
    line(
        "Cavium ThunderX2",
        84,
        RELOCATION,
        7.489_539_915,
        0.039_460_95,
    ),
    line(
        "Broadcom Stingray",
        25,
        "kernel shutdown",
        0.022_131_328,
        0.032_066_576,
    ),
    line(
        "Broadcom Stingray",
        25,
        RELOCATION,
        0.440_510_736,
        0.022_158_152,
    ),
    line(
        "Broadcom Stingray",
        25,
        "kernel startup",
        0.294_706_768,
        0.296_055_880,
    ),
    line("Broadcom Stingray", 380, "reboot", 3.9, 0.33),
];

/// What a relocation that copies so many bytes would take: machine and milliseconds.
pub fn predicted(bytes_copied: u64, uncached: bool) -> impl Iterator<Item = (&'static str, f64)> {
    let relocations = LINES.iter().filter(|line| line.phase == RELOCATION);
    relocations.map(move |line| {
        let seconds = if uncached { line.off } else { line.on };
        let mib = bytes_copied as f64 / f64::from(1 << 20);
        (
            line.machine,
            1000.0 * seconds * mib / f64::from(line.payload_mib),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_what_is_predicted() {
        for (uncached, expected) in [(true, [7489.54, 440.51]), (false, [39.46, 22.16])] {
            for ((line, mib), ms) in [("Cavium ThunderX2", 84_u64), ("Broadcom Stingray", 25)]
                .into_iter()
                .zip(expected)
            {
                let mut all = predicted(mib << 20, uncached);
                let (_, found) = all.find(|(machine, _)| *machine == line).unwrap();
                assert!((found - ms).abs() < 0.01, "{line}: {found}");
            }
        }
        assert!(predicted(0, true).all(|(_, ms)| ms == 0.0));
    }
}
