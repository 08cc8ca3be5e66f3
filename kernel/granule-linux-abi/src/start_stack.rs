//! Builds the start stack of a program: arguments, environment and auxiliary vector. Pure.
//!
//! From the stack pointer up: the argument count, the argument pointers and a null, the environment
//! pointers and a null, the pairs of the auxiliary vector up to a null pair, then the data they point
//! to.

use crate::abi::auxv::{AT_EXECFN, AT_NULL, AT_PLATFORM, AT_RANDOM};

const PLATFORM: &[u8] = b"aarch64\0";
const RANDOM_BYTES: usize = 16;
/// The alignment of the stack pointer that the ABI requires.
const ALIGNMENT: u64 = 16;

/// Arguments and environment: strings in sequence, each with its NUL.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// The strings.
    pub bytes: &'a [u8],
    /// The number of arguments, which come first.
    pub arguments: usize,
    /// The number of environment strings, which follow.
    pub environment: usize,
}

impl<'a> Texts<'a> {
    fn each(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes
            .split_inclusive(|byte| *byte == 0)
            .take(self.arguments + self.environment)
    }
}

/// The contents of the start stack.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// Arguments and environment.
    pub texts: Texts<'a>,
    /// The path of the program, without a NUL.
    pub path: &'a [u8],
    /// Random bytes for the program.
    pub random: [u8; RANDOM_BYTES],
    /// Pairs in addition to the pairs that point into the stack.
    pub auxiliary: &'a [(u64, u64)],
}

/// Pairs added here: three that point into the stack, and the final null pair.
const OWN_PAIRS: usize = 4;

impl Start<'_> {
    /// Bytes from the stack pointer to `top`.
    pub fn bytes(&self, top: u64) -> u64 {
        top - self.stack_pointer(top)
    }

    fn text_bytes(&self) -> usize {
        self.texts.bytes.len() + self.path.len() + 1 + PLATFORM.len() + RANDOM_BYTES
    }

    fn words(&self) -> usize {
        let texts = self.texts.arguments + 1 + self.texts.environment + 1;
        1 + texts + 2 * (self.auxiliary.len() + OWN_PAIRS)
    }

    /// The stack pointer for a stack that ends at `top`.
    pub fn stack_pointer(&self, top: u64) -> u64 {
        let bytes = self.text_bytes() as u64 + 8 * self.words() as u64;
        top.saturating_sub(bytes) & !(ALIGNMENT - 1)
    }

    /// Writes the stack to `into`, which ends at `top`. False if `into` has another size.
    pub fn write(&self, into: &mut [u8], top: u64) -> bool {
        if into.len() as u64 != self.bytes(top) {
            return false;
        }
        into.fill(0);
        let mut at = into.len() - self.text_bytes();
        let mut text = |bytes: &[u8], room: usize| {
            let address = top - (into.len() - at) as u64;
            if let Some(to) = into.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
            }
            at += room;
            address
        };
        let texts = text(self.texts.bytes, self.texts.bytes.len());
        let path = text(self.path, self.path.len() + 1);
        let platform = text(PLATFORM, PLATFORM.len());
        let random = text(&self.random, RANDOM_BYTES);
        let mut words = Words { into, at: 0 };
        words.push(self.texts.arguments as u64);
        let mut address = texts;
        for (number, text) in self.texts.each().enumerate() {
            if number == self.texts.arguments {
                words.push(0);
            }
            words.push(address);
            address += text.len() as u64;
        }
        if self.texts.environment == 0 {
            words.push(0);
        }
        words.push(0);
        for (kind, value) in self.auxiliary {
            words.push(*kind);
            words.push(*value);
        }
        for (kind, value) in [
            (AT_RANDOM, random),
            (AT_EXECFN, path),
            (AT_PLATFORM, platform),
            (AT_NULL, 0),
        ] {
            words.push(kind);
            words.push(value);
        }
        words.at == 8 * self.words()
    }
}

struct Words<'a> {
    into: &'a mut [u8],
    at: usize,
}

impl Words<'_> {
    fn push(&mut self, word: u64) {
        if let Some(to) = self.into.get_mut(self.at..self.at + 8) {
            to.copy_from_slice(&word.to_le_bytes());
            self.at += 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::auxv::{AT_FLAGS, AT_PAGESZ};
    use std::collections::BTreeMap;

    const TOP: u64 = 0x7fff_f000;

    struct Seen {
        arguments: Vec<String>,
        environment: Vec<String>,
        auxiliary: BTreeMap<u64, u64>,
        bytes: Vec<u8>,
    }

    impl Seen {
        fn text(bytes: &[u8], at: u64) -> String {
            let from = bytes.len() - (TOP - at) as usize;
            let text = &bytes[from..];
            let end = text.iter().position(|byte| *byte == 0).unwrap();
            String::from_utf8(text[..end].to_vec()).unwrap()
        }

        /// Parses the stack as a C library does.
        fn of(start: &Start<'_>) -> Self {
            let bytes = start.bytes(TOP);
            assert_eq!(start.stack_pointer(TOP) % 16, 0);
            let mut memory = vec![0xaa; bytes as usize];
            assert!(start.write(&mut memory, TOP));
            let words = memory.chunks_exact(8);
            let mut words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            let count = words.next().unwrap();
            let arguments = (0..count)
                .map(|_| Self::text(&memory, words.next().unwrap()))
                .collect();
            assert_eq!(words.next(), Some(0));
            let mut environment = Vec::new();
            while let Some(at @ 1..) = words.next() {
                environment.push(Self::text(&memory, at));
            }
            let mut auxiliary = BTreeMap::new();
            while let (Some(kind @ 1..), Some(value)) = (words.next(), words.next()) {
                assert_eq!(auxiliary.insert(kind, value), None);
            }
            Self {
                arguments,
                environment,
                auxiliary,
                bytes: memory,
            }
        }
    }

    #[test]
    fn a_c_library_reads_what_was_meant() {
        let all = ["/init", "", "third", "HOME=/", "TERM=linux"];
        for arguments in 0..=all.len() {
            for environment in 0..=all.len() - arguments {
                let used = &all[..arguments + environment];
                let bytes = used
                    .iter()
                    .flat_map(|text| [text.as_bytes(), b"\0"].concat());
                let bytes: Vec<u8> = bytes.collect();
                let seen = Seen::of(&Start {
                    texts: Texts {
                        bytes: &bytes,
                        arguments,
                        environment,
                    },
                    path: b"/bin/program",
                    random: *b"sixteen bytes!!!",
                    auxiliary: &[(AT_PAGESZ, 16384), (AT_FLAGS, 0)],
                });
                assert_eq!(seen.arguments, &used[..arguments]);
                assert_eq!(seen.environment, &used[arguments..]);
                assert_eq!(seen.auxiliary[&AT_PAGESZ], 16384);
                assert_eq!(seen.auxiliary[&AT_FLAGS], 0);
                let text = |kind| Seen::text(&seen.bytes, seen.auxiliary[&kind]);
                assert_eq!(text(AT_EXECFN), "/bin/program");
                assert_eq!(text(AT_PLATFORM), "aarch64");
                let random = seen.bytes.len() - (TOP - seen.auxiliary[&AT_RANDOM]) as usize;
                assert_eq!(&seen.bytes[random..random + 16], b"sixteen bytes!!!");
            }
        }
    }

    #[test]
    fn room_of_another_size_is_refused() {
        let start = Start {
            texts: Texts {
                bytes: b"a\0",
                arguments: 1,
                environment: 0,
            },
            path: b"a",
            random: [0; 16],
            auxiliary: &[],
        };
        let bytes = start.bytes(TOP) as usize;
        for wrong in [0, bytes - 1, bytes + 1] {
            assert!(!start.write(&mut vec![0; wrong], TOP));
        }
    }
}
