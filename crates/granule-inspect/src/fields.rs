//! Descriptors with their fields in words, and the bits that the architecture reserves. This module
//! reads no memory.

use crate::attributes::{Decoded, Sharing};
use crate::memory_type::MemoryType;
use crate::tree::{Shape, Tree};
use granule::arch::{
    Attributes, Descriptor, Kind, Level, OutputSpace, PageSize, PhysicalAddress, Regime,
};

/// A fault in the bits of a descriptor, whatever its address translates to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// These bits are set, which are RES0 here.
    Bits(u64),
    /// Bits 1:0 are 0b01 at a level that has no blocks, so the entry is invalid.
    NoBlock,
    Shareability,
    /// The memory type has a reserved encoding.
    MemoryType(u8),
}

/// Ones in bits `high` to `low`.
const fn mask(high: u32, low: u32) -> u64 {
    (u64::MAX >> (63 - high)) & (u64::MAX << low)
}

/// The bits that may be set in a valid descriptor of `level`.
fn allowed(tree: &Tree, level: Level, kind: Kind) -> u64 {
    let geometry = tree.geometry();
    let size = geometry.page_size();
    let regime = geometry.regime();
    let stage2 = matches!(tree.shape, Shape::Stage2(_));
    let low = match kind {
        Kind::Table => size.shift(),
        _ => size.level_shift(level),
    };
    let address =
        Descriptor::leaf(geometry, Level::L3, PhysicalAddress(mask(51, low)), 0).0 & !0b11;
    // In the format that a guess cannot exclude these are address bits.
    let perhaps = if tree.knows_format() { 0 } else { mask(49, 48) };
    let both = mask(11, 0) | address | perhaps;
    if kind == Kind::Table {
        // The restrictions are of stage 1; bits 58:51 are ignored.
        let restrictions = match (stage2, regime.has_user()) {
            (true, _) => 0,
            (false, true) => mask(63, 59),
            // One privilege has neither PXNTable nor APTable[0].
            (false, false) => mask(63, 62) | Descriptor::UXN_TABLE,
        };
        return both | mask(58, 51) | restrictions;
    }
    let mut bits = both | mask(63, 54) | Descriptor::DIRTY_MODIFIER;
    if size.contiguous_entries(level) > 1 {
        bits |= Descriptor::CONTIGUOUS;
    }
    if level != Level::L3 {
        bits |= Descriptor::NT;
    }
    if !stage2 {
        bits |= Descriptor::GUARDED;
    }
    if regime.has_user() || geometry.execute_by_privilege() {
        // PXN of stage 1, XN[0] of stage 2.
        bits |= Descriptor::PXN;
    }
    if regime == Regime::El2 {
        // Bit 11 is nG with two privileges, and NSE at EL3.
        bits &= !Descriptor::NOT_GLOBAL;
    }
    bits
}

/// Returns the reserved bits or encoding of a descriptor of `level`, if it has any.
pub fn reserved(tree: &Tree, level: Level, descriptor: Descriptor) -> Option<Reserved> {
    let geometry = tree.geometry();
    let kind = descriptor.kind(geometry, level);
    match kind {
        Kind::Invalid if descriptor.is_valid() => return Some(Reserved::NoBlock),
        Kind::Invalid | Kind::PresentInvalid => return None,
        Kind::Table | Kind::Leaf => {}
    }
    let bits = descriptor.0 & !allowed(tree, level, kind);
    if bits != 0 {
        return Some(Reserved::Bits(bits));
    }
    if kind == Kind::Table {
        return None;
    }
    let decoded = Decoded::new(tree, descriptor.0);
    match decoded.memory {
        MemoryType::Reserved(bits) => Some(Reserved::MemoryType(bits)),
        _ if decoded.sharing == Sharing::Reserved => Some(Reserved::Shareability),
        _ => None,
    }
}

/// The output size that the address in a valid descriptor is beyond, so that it faults: its bits, and the
/// register's field that sets it. `None` if it is not, or no register is known.
pub fn beyond(tree: &Tree, descriptor: Descriptor, level: Level) -> Option<(u32, &'static str)> {
    let address = tree.geometry().address_of(descriptor, level).0;
    tree.output_size().filter(|(bits, _)| address >> bits != 0)
}

/// The size as people write it: `4K`, `2M`, `16G`.
pub fn size(bytes: u64) -> String {
    let units = [
        (60, "E"),
        (50, "P"),
        (40, "T"),
        (30, "G"),
        (20, "M"),
        (10, "K"),
    ];
    let unit = units
        .iter()
        .find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    match unit {
        Some((shift, name)) => format!("{}{name}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}

/// The size rounded to a tenth of a unit: `725.3K`. A size of few digits is exact.
pub fn about(bytes: u64) -> String {
    let exact = size(bytes);
    let shift = (bytes.max(1).ilog2() / 10).min(6) * 10;
    if exact.len() <= 5 || shift == 0 {
        return exact;
    }
    let unit = ["K", "M", "G", "T", "P", "E"][(shift / 10 - 1) as usize];
    let tenths = (u128::from(bytes) * 10) >> shift;
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

/// The kind of a leaf of `level`: a page or a block, with its size.
pub fn leaf_name(page_size: PageSize, level: Level) -> String {
    let bytes = size(page_size.entry_bytes(level));
    match level == Level::L3 {
        true => format!("{bytes} page"),
        false => format!("{bytes} block"),
    }
}

/// The fields of a table descriptor in words, without its address.
pub fn table_words(tree: &Tree, descriptor: Descriptor) -> Vec<&'static str> {
    let has = |bits: u64| descriptor.0 & bits != 0;
    let mut words = Vec::new();
    if matches!(tree.shape, Shape::Stage2(_)) {
        return words;
    }
    let user = tree.geometry().regime().has_user();
    if has(1 << 62) {
        words.push("no stores below (APTable[1])");
    }
    if has(1 << 61) && user {
        words.push("no access by EL0 below (APTable[0])");
    }
    if has(Descriptor::UXN_TABLE) {
        words.push(match user {
            true => "no execution at EL0 below (UXNTable)",
            false => "no execution below (XNTable)",
        });
    }
    if has(Descriptor::PXN_TABLE) && user {
        words.push("no execution by the privileged level below (PXNTable)");
    }
    if has(Descriptor::NS_TABLE) {
        words.push("NSTable");
    }
    words
}

/// The fields of a leaf descriptor in words, without its address.
pub fn leaf_words(tree: &Tree, descriptor: Descriptor, level: Level) -> Vec<String> {
    let decoded = Decoded::new(tree, descriptor.0);
    let mut words: Vec<String> = decoded
        .columns()
        .iter()
        .filter(|word| !word.is_empty())
        .map(ToString::to_string)
        .collect();
    if descriptor.is_contiguous() {
        words.push("contiguous".to_owned());
    }
    if level != Level::L3 && descriptor.0 & Descriptor::NT != 0 {
        words.push("nT".to_owned());
    }
    if let Shape::Stage1(geometry) = &tree.shape {
        match Attributes::decode(descriptor, geometry).output_space {
            OutputSpace::Unmarked => {}
            OutputSpace::NonSecure => words.push("Non-secure output (NS)".to_owned()),
            OutputSpace::Root => words.push("Root output (NSE)".to_owned()),
            OutputSpace::Realm => words.push("Realm output (NSE, NS)".to_owned()),
        }
    }
    match descriptor.0 >> 55 & 0b1111 {
        0 => {}
        bits => words.push(format!("software={bits:#x}")),
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_or_have_few_digits() {
        for (bytes, exact, rounded) in [
            (0, "0 bytes", "0 bytes"),
            (4096, "4K", "4K"),
            (0x20_1000, "2052K", "2052K"),
            (742_741, "742741 bytes", "725.3K"),
            ((64 << 30) - 4096, "67108860K", "63.9G"),
            (u64::MAX, "18446744073709551615 bytes", "15.9E"),
            (1 << 63, "8E", "8E"),
        ] {
            assert_eq!(
                (size(bytes).as_str(), about(bytes).as_str()),
                (exact, rounded)
            );
        }
    }
}
