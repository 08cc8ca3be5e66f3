//! `efi=`: a list between commas, and several of these words add up, as for Linux. What a part means to the rest of
//! the kernel does not belong here.

use super::{has_key, listed};
use granule_boot::words;

/// The parts that mean something to Linux alone. One that ends in `=` has a value.
const OF_LINUX: [&str; 7] = [
    "debug",
    "disable_early_pci_dma",
    "no_disable_early_pci_dma",
    "nochunk=",
    "nosoftreserve",
    "novamap",
    "old_map",
];

/// Whether EFI's runtime services may be called: what the last of `runtime` and `noruntime` says. Calls `unknown`
/// for each part that nobody knows.
pub(super) fn runtime_services<'a>(line: &'a [u8], mut unknown: impl FnMut(&'a [u8])) -> bool {
    let mut are_allowed = true;
    let words = words::words(line).filter(|word| has_key(word, "efi="));
    for part in words.flat_map(|word| listed(word.value)) {
        match part {
            b"runtime" => are_allowed = true,
            b"noruntime" => are_allowed = false,
            _ if OF_LINUX.iter().any(|known| is_named(part, known)) => {}
            _ => unknown(part),
        }
    }
    are_allowed
}

fn is_named(part: &[u8], known: &str) -> bool {
    let known = known.as_bytes();
    part == known || known.ends_with(b"=") && part.starts_with(known)
}
