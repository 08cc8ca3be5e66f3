//! Published times in seconds of Linux's kexec with the MMU off and on, and relocation times
//! predicted from them.
//!
//! Source: "arm64: MMU enabled kexec relocation", Pavel Tatashin, linux-arm-kernel: the cover
//! letter of v15 (June 2021) and the changelog of v9 (2020). A prediction multiplies the posted
//! cost of a MiB by the bytes copied here. It is not a measurement: it assumes that memory is the only
//! cost, and that the cost is proportional to the bytes.

use schemars::JsonSchema;
use serde::Serialize;

/// A published result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Published")]
pub struct Line {
    /// The machine.
    pub machine: &'static str,
    /// MiB of image and initramfs.
    pub payload_mib: u32,
    /// The measured phase.
    pub phase: &'static str,
    /// Seconds with the MMU off.
    #[serde(rename = "mmu_off_s")]
    pub off: f64,
    /// Seconds with the MMU on.
    #[serde(rename = "mmu_on_s")]
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

const REBOOT: &str = "reboot";

/// All results of the series. Those of the Stingray at 25 and at 380 MiB cannot come from one
/// set-up: with the MMU on, shutdown and startup at 25 MiB alone take 328 of the 330 ms of the
/// whole reboot at 380.
pub const LINES: [Line; 6] = [
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
    line("Broadcom Stingray", 380, REBOOT, 3.9, 0.33),
    // A tester's result, about 580 and 60 ms with an initramfs of about 120 MB; machine and phase were
    // not posted.
    line("not named", 120, "not named", 0.58, 0.06),
];

/// The predicted time of a relocation that copies this many bytes: machine and milliseconds. A
/// machine is left out if a whole reboot with as large a payload was posted with a shorter time:
/// its cost is not proportional.
pub fn predicted(bytes_copied: u64, uncached: bool) -> impl Iterator<Item = (&'static str, f64)> {
    let seconds = move |line: &Line| if uncached { line.off } else { line.on };
    let mib = bytes_copied as f64 / f64::from(1 << 20);
    let relocations = LINES.iter().filter(|line| line.phase == RELOCATION);
    relocations.filter_map(move |line| {
        let predicted = seconds(line) * mib / f64::from(line.payload_mib);
        let refuted = LINES.iter().any(|other| {
            let reboot = other.machine == line.machine && other.phase == REBOOT;
            // The payload's own size may differ by a MiB or two: it is more than image and
            // initramfs.
            reboot && mib <= f64::from(other.payload_mib) + 2.0 && predicted >= seconds(other)
        });
        (!refuted).then_some((line.machine, 1000.0 * predicted))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prediction_agrees_with_published_times() {
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

    #[test]
    fn no_relocation_is_predicted_to_be_longer_than_a_published_reboot() {
        for uncached in [true, false] {
            let machines = |mib: u64| {
                let all = predicted(mib << 20, uncached);
                all.map(|(machine, _)| machine).collect::<Vec<_>>()
            };
            assert_eq!(machines(84), ["Cavium ThunderX2", "Broadcom Stingray"]);
            assert_eq!(machines(380), ["Cavium ThunderX2"]);
        }
    }
}
