//! The kernel's types (BTF): where a field of a struct is. Linux's Documentation/bpf/btf.rst has the
//! format: types one after another, numbered from 1, and names as offsets in a table of strings.

use super::space::Space;

/// The most bytes: Debian's kernels have 6 MB.
const MOST: u64 = 64 << 20;
const MAGIC: u32 = 0xeb9f;
/// The kinds that have fields.
const STRUCT: u32 = 4;
const UNION: u32 = 5;
/// The most structs without a name that one struct is looked through for a field.
const MOST_PARTS: u32 = 1000;

/// All types.
#[derive(Debug)]
pub(super) struct Btf {
    bytes: Vec<u8>,
    /// The offset of each type, from number 1 on.
    types: Vec<usize>,
    strings: usize,
}

impl Btf {
    /// The types of a running kernel, between these two symbols.
    /// An error is one line: the kernel has none, or they are damaged.
    pub(super) fn read(
        space: &Space<'_>,
        start: Option<u64>,
        end: Option<u64>,
    ) -> Result<Self, String> {
        let (Some(start), Some(end)) = (start, end) else {
            return Err("it has no BTF".into());
        };
        let bytes = end.checked_sub(start);
        let bytes =
            bytes.ok_or_else(|| format!("its BTF from {start:#x} to {end:#x} is not BTF"))?;
        if bytes > MOST {
            return Err(format!(
                "its BTF has {bytes} bytes, and at most {MOST} are read"
            ));
        }
        Self::new(space.bytes(start, bytes)?)
    }

    fn new(bytes: Vec<u8>) -> Result<Self, String> {
        let mut btf = Self {
            bytes,
            types: Vec::new(),
            strings: 0,
        };
        let head: [u32; 6] = std::array::from_fn(|word| btf.word(4 * word));
        let [magic, header, types, type_bytes, strings, _] = head;
        // The third byte is the version.
        if magic & 0x00ff_ffff != MAGIC | 1 << 16 {
            return Err(format!(
                "its BTF begins with {magic:#x}, not with version 1's magic number"
            ));
        }
        btf.strings = header as usize + strings as usize;
        let mut at = header as usize + types as usize;
        let end = (at + type_bytes as usize).min(btf.bytes.len());
        while at + 12 <= end {
            btf.types.push(at);
            let info = btf.word(at + 4);
            let many = (info & 0xffff) as usize;
            // The bytes after the 12 that all kinds have.
            at += 12
                + match info >> 24 & 0x1f {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => 12 * many,
                    6 | 13 => 8 * many,
                    2 | 7..=12 | 16 | 18 => 0,
                    kind => {
                        return Err(format!(
                            "its BTF has types of kind {kind}, which is not known"
                        ));
                    }
                };
        }
        Ok(btf)
    }

    /// The bytes before `field` in `record`, also if it is in a part of it that has no name.
    pub(super) fn offset(&self, record: &str, field: &str) -> Result<u64, String> {
        let is_it = |at: &&usize| {
            let kind = self.word(**at + 4) >> 24 & 0x1f;
            kind == STRUCT && self.is_named(self.word(**at), record)
        };
        self.types
            .iter()
            .find(is_it)
            .and_then(|&at| self.bits(at, field, &mut { MOST_PARTS }))
            .filter(|bits| bits % 8 == 0)
            .map(|bits| bits / 8)
            .ok_or_else(|| format!("its BTF has no {record}.{field}"))
    }

    /// The bits before `field` in the struct at `at`.
    fn bits(&self, at: usize, field: &str, left: &mut u32) -> Option<u64> {
        let info = self.word(at + 4);
        if !matches!(info >> 24 & 0x1f, STRUCT | UNION) {
            return None;
        }
        let members = (0..(info & 0xffff) as usize).map(|number| at + 12 + 12 * number);
        for member in members {
            let [name, kind, bits] = [0, 4, 8].map(|word| self.word(member + word));
            // With bit 31 the upper byte is the width of a bit field.
            let bits = u64::from(if info >> 31 != 0 {
                bits & 0x00ff_ffff
            } else {
                bits
            });
            if name != 0 && self.is_named(name, field) {
                return Some(bits);
            }
            let inner = (kind as usize)
                .checked_sub(1)
                .and_then(|number| self.types.get(number));
            if name == 0
                && *left > 0
                && let Some(&inner) = inner
                && let Some(found) = {
                    *left -= 1;
                    self.bits(inner, field, left)
                }
            {
                return Some(bits + found);
            }
        }
        None
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let text = self
            .bytes
            .get(self.strings.saturating_add(offset as usize)..);
        text.and_then(|text| text.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    /// The word at an offset; zero beyond the end.
    fn word(&self, offset: usize) -> u32 {
        let bytes = self.bytes.get(offset..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct outer { int a; struct { long b; union { long c; }; }; }` and an enum before it.
    pub(crate) fn small() -> Vec<u8> {
        let strings = b"\0outer\0a\0b\0c\0";
        let mut types = Vec::new();
        let mut put =
            |words: &[u32]| types.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        put(&[0, 1 << 24, 4, 32]); // 1: an integer
        put(&[0, 6 << 24 | 1, 4, 7, 1]); // 2: an enum of one value
        put(&[0, UNION << 24 | 1, 8, 11, 1, 0]); // 3: { c }
        put(&[0, STRUCT << 24 | 2, 16, 9, 1, 0, 0, 3, 64]); // 4: { b, 3 }
        put(&[1, STRUCT << 24 | 1 << 31 | 2, 24, 7, 1, 32 << 24, 0, 4, 64]); // 5: outer
        let mut bytes = Vec::new();
        let lengths = [types.len() as u32, strings.len() as u32];
        for word in [MAGIC | 1 << 16, 24, 0, lengths[0], lengths[0], lengths[1]] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn fields_of_parts_without_a_name_are_found() {
        let btf = Btf::new(small()).unwrap();
        for (field, offset) in [("a", 0), ("b", 8), ("c", 16)] {
            assert_eq!(btf.offset("outer", field), Ok(offset));
        }
        assert_eq!(
            btf.offset("outer", "d"),
            Err("its BTF has no outer.d".into())
        );
        assert!(btf.offset("oute", "a").is_err());
    }

    #[test]
    fn damaged_types_end_in_an_error() {
        let whole = small();
        for end in 0..whole.len() {
            let cut = Btf::new(whole[..end].to_vec());
            assert!(cut.is_err() || cut.unwrap().offset("outer", "d").is_err());
        }
        for at in (0..whole.len() - 4).step_by(2) {
            for hostile in [0, 1, 4, 0xffff, u32::MAX] {
                let mut changed = whole.clone();
                changed[at..at + 4].copy_from_slice(&hostile.to_le_bytes());
                if let Ok(btf) = Btf::new(changed) {
                    let _ = btf.offset("outer", "d");
                }
            }
        }
        // A part that is within itself, and after it in itself again: without a bound for ever.
        let mut circle = whole;
        let at = 24 + 16 + 20 + 24 + 36 + 12 + 12 + 4;
        circle[at..at + 4].copy_from_slice(&5_u32.to_le_bytes());
        assert!(Btf::new(circle).unwrap().offset("outer", "d").is_err());
    }
}
