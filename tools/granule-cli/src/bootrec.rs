//! The boot record: 256 bytes in the image's memory, in which a kernel that cannot print leaves the
//! reason of its failure. This file holds the record's layout and finds it in the image file; `qmp`
//! reads it from a running guest.

/// Length of the record.
pub const BYTES: usize = 256;
const MAGIC: &[u8; 16] = b"GRANULE-BOOTREC\0";
const VERSION: u32 = 1;
const MESSAGE_AT: usize = 32;

/// The progress of the kernel, as the record states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The first instruction has written nothing yet.
    NotEntered,
    /// Running with the MMU off.
    MmuOff,
    /// Running with the MMU on.
    MmuOn,
    /// Parked for good, with a message.
    Parked,
    /// Ran to its end.
    Finished,
    /// A number that this program has no name for.
    Other(u32),
}

/// A boot record read from a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootRecord {
    state: State,
    reason: u32,
    message: String,
}

impl BootRecord {
    /// Decodes the 256 bytes of a record.
    /// Fails with one line: why the bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let bytes = bytes
            .get(..BYTES)
            .ok_or_else(|| format!("the boot record is {} bytes, not {BYTES}", bytes.len()))?;
        if &bytes[..16] != MAGIC {
            return Err("the boot record's magic is gone from the guest's memory".into());
        }
        let word = |at: usize| {
            let mut value = [0; 4];
            value.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(value)
        };
        if word(16) != VERSION {
            return Err(format!(
                "the boot record has version {}, this program reads {VERSION}",
                word(16)
            ));
        }
        let state = match word(20) {
            0 => State::NotEntered,
            1 => State::MmuOff,
            2 => State::MmuOn,
            3 => State::Parked,
            4 => State::Finished,
            other => State::Other(other),
        };
        // The length comes from a failed guest: never trust it as a bound.
        let room = &bytes[MESSAGE_AT..];
        let length = (word(28) as usize).min(room.len());
        let message = room[..length]
            .iter()
            .map(|&byte| {
                if byte.is_ascii_graphic() || byte == b' ' {
                    char::from(byte)
                } else {
                    '?'
                }
            })
            .collect();
        Ok(Self {
            state,
            reason: word(24),
            message,
        })
    }

    /// Whether the kernel parked for good.
    pub fn is_parked(&self) -> bool {
        self.state == State::Parked
    }

    /// Whether the kernel left a reason: why it failed, or why it has no console.
    pub fn has_reason(&self) -> bool {
        self.reason != 0
    }

    /// The kernel's number for the reason.
    pub fn reason(&self) -> u32 {
        self.reason
    }

    /// The kernel's message about the reason, or the reason's number if it left none.
    pub fn message(&self) -> String {
        if self.message.is_empty() {
            format!("the kernel left reason {} and no message", self.reason)
        } else {
            self.message.clone()
        }
    }

    /// The progress of the kernel in words.
    pub fn progress(&self) -> String {
        match self.state {
            State::NotEntered => "the kernel was not entered".into(),
            State::MmuOff => "the kernel was running with the MMU off".into(),
            State::MmuOn => "the kernel was running with the MMU on".into(),
            State::Parked => "the kernel had parked".into(),
            State::Finished => "the kernel had finished".into(),
            State::Other(state) => format!("the boot record had the unknown state {state}"),
        }
    }
}

/// Offset of the boot record in an image file; `None` for an image without one.
/// Fails with one line: the image has two records, or is too short for the record behind the magic.
pub fn find(image: &[u8]) -> Result<Option<u64>, String> {
    let mut places = image
        .windows(MAGIC.len())
        .enumerate()
        .filter(|(_, window)| window == MAGIC)
        .map(|(offset, _)| offset);
    let Some(offset) = places.next() else {
        return Ok(None);
    };
    if let Some(second) = places.next() {
        return Err(format!(
            "holds the boot record's magic twice, at {offset:#x} and {second:#x}; it is unknown which one \
             the kernel writes"
        ));
    }
    if !offset.is_multiple_of(64) || image.len() - offset < BYTES {
        return Err(format!(
            "holds the boot record's magic at {offset:#x}, where no 64-byte aligned record of {BYTES} bytes fits"
        ));
    }
    Ok(Some(offset as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: u32, reason: u32, length: u32, message: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for word in [VERSION, state, reason, length] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(message);
        bytes.resize(BYTES, 0);
        bytes
    }

    #[test]
    fn decodes_a_parked_kernel() {
        let parked = BootRecord::decode(&record(3, 7, 8, b"bad tree, and more")).unwrap();
        assert!(parked.is_parked());
        assert_eq!(
            (parked.reason(), parked.message().as_str()),
            (7, "bad tree")
        );
    }

    #[test]
    fn a_guest_in_trouble_cannot_mislead_the_decoder() {
        let long = BootRecord::decode(&record(3, 0, u32::MAX, &[b'x'; 224])).unwrap();
        assert_eq!(long.message().len(), 224);
        let ugly = BootRecord::decode(&record(3, 0, 4, b"a\x1b\xff\n")).unwrap();
        assert_eq!(ugly.message(), "a???");
        let mute = BootRecord::decode(&record(3, 9, 0, b"")).unwrap();
        assert!(mute.message().contains("reason 9"));
        let odd = BootRecord::decode(&record(77, 0, 0, b"")).unwrap();
        assert!(!odd.is_parked() && odd.progress().contains("77"));
    }

    #[test]
    fn bytes_that_are_not_a_record_are_refused() {
        assert!(BootRecord::decode(&[0; 255]).unwrap_err().contains("255"));
        assert!(BootRecord::decode(&[0; 256]).unwrap_err().contains("magic"));
        let mut other = record(0, 0, 0, b"");
        other[16] = 2;
        assert!(
            BootRecord::decode(&other)
                .unwrap_err()
                .contains("version 2")
        );
    }

    #[test]
    fn finds_exactly_one_record_in_an_image() {
        let mut image = vec![0; 128];
        assert_eq!(find(&image), Ok(None));
        image.extend(record(0, 0, 0, b""));
        assert_eq!(find(&image), Ok(Some(128)));
        assert!(
            find(&image[..200]).unwrap_err().contains("0x80"),
            "cut short"
        );
        let mut shifted = vec![0; 4];
        shifted.extend(&image);
        assert!(find(&shifted).unwrap_err().contains("aligned"));
        image.extend(record(0, 0, 0, b""));
        assert!(find(&image).unwrap_err().contains("twice"));
    }
}
