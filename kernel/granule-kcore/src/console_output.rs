//! Program output on the console, where a program must not be able to forge the kernel's own lines.

/// The prefix of the kernel's machine-readable lines.
const MARK: &[u8] = b"@granule";

/// The position of a program's output in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Bytes of [`MARK`] that the line began with; more than its length once the line differs.
    begun: usize,
    /// Whether the line has any text.
    in_line: bool,
}

impl Guard {
    /// The beginning of a line.
    pub const NEW: Self = Self {
        begun: 0,
        in_line: false,
    };

    /// Whether the line has text. Other output must end the line first.
    pub const fn is_in_line(self) -> bool {
        self.in_line
    }

    /// Processes the next byte. Returns whether a space must precede it, so that the line does not
    /// begin with the mark.
    pub fn next(&mut self, byte: u8) -> bool {
        if byte == b'\n' {
            *self = Self::NEW;
            return false;
        }
        self.in_line = true;
        self.begun = match MARK.get(self.begun) {
            Some(expected) if *expected == byte => self.begun + 1,
            _ => MARK.len() + 1,
        };
        let begun = self.begun == MARK.len();
        if begun {
            self.begun += 1;
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use granule_testing::cases::config;
    use proptest::prelude::*;

    fn through(guard: &mut Guard, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for byte in text {
            if guard.next(*byte) {
                out.push(b' ');
            }
            out.push(*byte);
        }
        out
    }

    #[test]
    fn only_lines_like_those_of_the_kernel_are_changed() {
        let mut guard = Guard::NEW;
        let text = b"hello\n @granule x\n@granul\n@granule outcome=ok\nx@granule\n@@granule\n";
        let out = through(&mut guard, text);
        assert_eq!(
            out,
            b"hello\n @granule x\n@granul\n@granul e outcome=ok\nx@granule\n@@granule\n"
        );
        assert!(!guard.is_in_line());
        assert_eq!(through(&mut guard, b"@gran"), b"@gran");
        assert!(guard.is_in_line());
        assert_eq!(through(&mut guard, b"ule"), b"ul e");
    }

    proptest! {
        #![proptest_config(config(256, 16))]

        #[test]
        fn no_line_begins_with_the_mark(text in "[@granule \n]{0,60}", cut in 0usize..60) {
            let text = text.as_bytes();
            let (first, second) = text.split_at(cut.min(text.len()));
            let mut guard = Guard::NEW;
            let mut out = through(&mut guard, first);
            out.extend(through(&mut guard, second));
            prop_assert!(out.split(|byte| *byte == b'\n').all(|line| !line.starts_with(MARK)));
            let kept: Vec<_> = out.iter().filter(|byte| **byte != b' ').collect();
            let meant: Vec<_> = text.iter().filter(|byte| **byte != b' ').collect();
            prop_assert_eq!(kept, meant);
        }
    }
}
