//! What the command line says of leaving: `granule.kexec=`, words with commas between them. Pure.

use granule_boot::words;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// `uncached`: the MMU goes off before anything is copied.
    pub uncached: bool,
    /// `digest`: digests what this kernel was given, once it is up.
    pub digest: bool,
}

/// Reads them; what is not understood is passed over, as all of the command line is.
pub fn read(line: &[u8]) -> Words {
    let mut read = Words::default();
    let asked = words::find(line, b"granule.kexec=").unwrap_or_default();
    for word in asked.split(|byte| *byte == b',') {
        match word {
            b"uncached" => read.uncached = true,
            b"digest" => read.digest = true,
            _ => {}
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read_and_nothing_else() {
        assert_eq!(read(b"quiet"), Words::default());
        assert_eq!(read(b"granule.kexec="), Words::default());
        let both = read(b"granule.kexec=digest,uncached");
        assert!(both.uncached && both.digest);
        let one = read(b"granule.kexec=fast,digest,");
        assert!(!one.uncached && one.digest);
    }
}
