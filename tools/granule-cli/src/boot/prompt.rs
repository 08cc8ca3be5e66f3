//! U-Boot's prompt: the commands that start a kernel from the boot disk, and typing them when the prompt
//! appears. Pure; `guest` moves the bytes.

use std::collections::VecDeque;

use crate::loader::{IMAGE, INITRAMFS};

/// U-Boot's prompt, at the start of a line: a line that is echoed may hold the same signs.
const PROMPT: &[u8] = b"\n=> ";
/// U-Boot counts down, and any key stops it.
const COUNTDOWN: &[u8] = b"stop autoboot";
const ANY_KEY: &[u8] = b" ";
/// U-Boot's buffer for a line has 512 bytes in some versions. Longer bootargs take several lines.
const MOST_CHARS: usize = 200;

/// The way in which U-Boot starts the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As an arm64 Image.
    Booti,
    /// As an EFI program.
    Bootefi,
}

/// The commands for QEMU's board with the boot disk as a virtio disk.
pub fn commands(way: Way, bootargs: &str, initramfs: bool) -> Vec<String> {
    let load = |to: &str, file: &str| format!("load virtio 0:1 ${{{to}}} {file}");
    let mut commands = vec!["virtio scan".to_owned(), load("kernel_addr_r", IMAGE)];
    match way {
        Way::Booti => {
            if initramfs {
                commands.push(load("ramdisk_addr_r", INITRAMFS));
            }
            commands.extend(set_bootargs(bootargs));
            commands.push(match initramfs {
                true => "booti ${kernel_addr_r} ${ramdisk_addr_r}:${filesize} ${fdt_addr}".into(),
                false => "booti ${kernel_addr_r} - ${fdt_addr}".into(),
            });
        }
        Way::Bootefi => {
            // In front of `--`, behind which words are the first program's.
            let bootargs = match initramfs {
                true => format!("initrd={INITRAMFS} {bootargs}"),
                false => bootargs.to_owned(),
            };
            commands.extend(set_bootargs(bootargs.trim_end()));
            commands.push("bootefi ${kernel_addr_r} ${fdt_addr}".into());
        }
    }
    commands
}

fn set_bootargs(bootargs: &str) -> Vec<String> {
    let chars: Vec<char> = bootargs.chars().collect();
    let pieces = chars.chunks(MOST_CHARS).enumerate();
    pieces
        .map(|(number, piece)| {
            let piece: String = piece.iter().collect();
            match number {
                0 => format!("setenv bootargs '{piece}'"),
                _ => format!("setenv bootargs \"${{bootargs}}\"'{piece}'"),
            }
        })
        .collect()
}

/// Types lines, each when the prompt appears.
#[derive(Debug)]
pub(crate) struct Typist {
    lines: VecDeque<String>,
    last: Option<String>,
    heard: Vec<u8>,
    counted_down: bool,
    came_back: bool,
}

impl Typist {
    pub(crate) fn new(lines: Vec<String>) -> Self {
        Self {
            lines: lines.into(),
            last: None,
            heard: Vec::new(),
            counted_down: false,
            came_back: false,
        }
    }

    /// The last line, if the prompt appeared again after it.
    pub(crate) fn came_back(&self) -> Option<&str> {
        self.last.as_deref().filter(|_| self.came_back)
    }

    /// Takes output, and returns what is to be typed now.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut typed = Vec::new();
        for &byte in bytes {
            self.heard.push(byte);
            if !self.counted_down && self.heard.ends_with(COUNTDOWN) {
                self.counted_down = true;
                typed.extend(ANY_KEY);
            } else if self.heard.ends_with(PROMPT) {
                match self.lines.pop_front() {
                    Some(line) => {
                        typed.extend(line.as_bytes());
                        typed.push(b'\r');
                        self.last = Some(line);
                    }
                    None => self.came_back = true,
                }
            }
            // Only the end is looked at.
            if self.heard.len() > 64 {
                self.heard.drain(..32);
            }
        }
        typed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_typed_one_at_each_prompt() {
        let console = b"Hit any key to stop autoboot:  2 \x08\x08\x08 0 \r\n=> first => x\r\nit did\r\n=> second\r\nStarting\r\n";
        for step in [1, 7, console.len()] {
            let mut typist = Typist::new(vec!["first => x".into(), "second".into()]);
            let typed: Vec<u8> = console
                .chunks(step)
                .flat_map(|bytes| typist.hear(bytes))
                .collect();
            assert_eq!(typed, b" first => x\rsecond\r");
            assert_eq!(typist.came_back(), None);
            assert!(typist.hear(b"Bad Linux Image\r\n=> ").is_empty());
            assert_eq!(typist.came_back(), Some("second"));
        }
    }

    #[test]
    fn long_bootargs_are_set_in_pieces_that_join_to_the_same() {
        let bootargs = "word ".repeat(100) + "-- end";
        let lines = set_bootargs(&bootargs);
        assert_eq!(lines.len(), 3);
        let mut joined = String::new();
        for line in &lines {
            assert!(line.len() < 256);
            let piece = line.split('\'').nth(1).unwrap();
            joined += piece;
        }
        assert_eq!(joined, bootargs);
        assert!(lines[1].starts_with("setenv bootargs \"${bootargs}\"'"));
        assert!(set_bootargs("").is_empty());
    }

    #[test]
    fn the_initramfs_is_named_where_each_command_takes_it() {
        let lines = |way, initramfs| commands(way, "a=1 -- b", initramfs).join("\n");
        let booti = lines(Way::Booti, true);
        assert!(booti.contains("/granule/initramfs\nsetenv bootargs 'a=1 -- b'\nbooti"));
        assert!(booti.ends_with("${ramdisk_addr_r}:${filesize} ${fdt_addr}"));
        assert!(lines(Way::Booti, false).ends_with("booti ${kernel_addr_r} - ${fdt_addr}"));
        let bootefi = lines(Way::Bootefi, true);
        assert!(bootefi.contains("setenv bootargs 'initrd=/granule/initramfs a=1 -- b'"));
        assert!(!lines(Way::Bootefi, false).contains("initramfs"));
    }
}
