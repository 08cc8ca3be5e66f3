//! Files: so far the archive that they come in.

pub(crate) mod cpio;
