//! Reads from the device tree what is needed before the MMU: the console, PSCI's
//! conduit, the command line, the page size it asks for.
//!
//! A walk of the flattened tree's tokens with every access checked against the
//! header's sizes: anything may be in there.

use super::cache;
use super::record::Reason;
use crate::cpu;
use crate::handover::{Conduit, TreeInfo};
use crate::layout::DTB_MAX_BYTES;

type Refusal = (Reason, &'static [u8]);

/// Looks at the tree at physical address `dtb`.
pub(super) fn peek(dtb: u64) -> Result<TreeInfo, Refusal> {
    if dtb == 0 || !dtb.is_multiple_of(8) {
        return Err((
            Reason::DeviceTree,
            b"x0 holds no device tree: expected its physical address, a multiple of 8",
        ));
    }
    // The loader may have left the tree in a cache, which reads do not see now.
    // First the header, which tells how much more there is.
    cache::clean_to_poc(dtb..dtb + 40);
    // SAFETY: the boot protocol says that a device tree is at `dtb`; a wrong address
    // aborts, which the early vectors tell.
    let header = unsafe { core::slice::from_raw_parts(dtb as *const u8, 40) };
    if word(header, 0) != Some(0xd00d_feed) {
        return Err((
            Reason::DeviceTree,
            b"what x0 points to is not a device tree: its magic is not 0xd00dfeed",
        ));
    }
    let bytes = u64::from(word(header, 4).unwrap_or(0));
    if !(40..=DTB_MAX_BYTES).contains(&bytes) {
        return Err((
            Reason::DeviceTree,
            b"the device tree's size is out of bounds: expected 40 bytes to 2 MiB",
        ));
    }
    cache::clean_to_poc(dtb..dtb + bytes);
    // SAFETY: as above, for the size that the tree states, which is bounded.
    let tree = unsafe { core::slice::from_raw_parts(dtb as *const u8, bytes as usize) };
    let mut info = TreeInfo {
        bytes,
        ..TreeInfo::default()
    };
    walk(tree, &mut info).ok_or((
        Reason::DeviceTree,
        b"the device tree is cut short or malformed" as &[u8],
    ))?;
    let start = info.bootargs_offset as usize;
    let arguments = tree
        .get(start..start.wrapping_add(info.bootargs_bytes as usize))
        .unwrap_or(b"");
    info.page_shift = page_shift(arguments, cpu::id_aa64mmfr0_el1()).ok_or((
        Reason::PageSize,
        b"the CPU has none of the page sizes 4K, 16K and 64K" as &[u8],
    ))?;
    Ok(info)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let [a, b, c, d] = *bytes.get(at..at.checked_add(4)?)? else {
        return None;
    };
    Some(u32::from_be_bytes([a, b, c, d]))
}

/// The bytes from `at` up to a NUL.
fn string(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    rest.get(..rest.iter().position(|byte| *byte == 0)?)
}

fn walk(tree: &[u8], info: &mut TreeInfo) -> Option<()> {
    let mut at = word(tree, 8)? as usize;
    let strings = word(tree, 12)? as usize;
    let mut depth = 0u32;
    let mut node: &[u8] = b"";
    let mut is_pl011 = false;
    let mut reg = 0u64;
    loop {
        let token = word(tree, at)?;
        at += 4;
        match token {
            1 => {
                depth = depth.checked_add(1)?;
                node = string(tree, at)?;
                at = (at + node.len() + 1).next_multiple_of(4);
                (is_pl011, reg) = (false, 0);
            }
            2 => depth = depth.checked_sub(1)?,
            3 => {
                let length = word(tree, at)? as usize;
                let name = string(tree, strings.checked_add(word(tree, at + 4)? as usize)?)?;
                at += 8;
                let value = tree.get(at..at.checked_add(length)?)?;
                match (node, name) {
                    (b"chosen", b"bootargs") => {
                        info.bootargs_offset = at as u64;
                        info.bootargs_bytes = length.saturating_sub(1) as u64;
                    }
                    (b"psci", b"method") if value.starts_with(b"smc") => info.psci = Conduit::Smc,
                    (b"psci", b"method") if value.starts_with(b"hvc") => info.psci = Conduit::Hvc,
                    (_, b"compatible") => is_pl011 = value.starts_with(b"arm,pl011"),
                    (_, b"reg") if length == 16 => {
                        reg = u64::from(word(value, 0)?) << 32 | u64::from(word(value, 4)?);
                    }
                    _ => {}
                }
                if is_pl011 && reg != 0 && info.uart == 0 {
                    info.uart = reg;
                }
                at = at.checked_add(length)?.checked_next_multiple_of(4)?;
            }
            4 => {}
            9 => return (depth == 0).then_some(()),
            _ => return None,
        }
    }
}

fn page_shift(arguments: &[u8], mmfr0: u64) -> Option<u32> {
    let field = |shift: u32| (mmfr0 >> shift) & 0xf;
    let supported = |shift: &u32| match shift {
        12 => field(28) < 8,
        14 => field(20) != 0,
        _ => field(24) < 8,
    };
    let wish = arguments
        .split(|byte| *byte == b' ')
        .find_map(|argument| match argument {
            b"arm64.pagesize=4k" => Some(12),
            b"arm64.pagesize=16k" => Some(14),
            b"arm64.pagesize=64k" => Some(16),
            _ => None,
        });
    wish.filter(supported)
        .or_else(|| [12, 14, 16].into_iter().find(supported))
}
