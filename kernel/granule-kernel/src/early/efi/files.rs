//! Files of the volume that the image was loaded from.

#![allow(unsafe_code, reason = "firmware's interfaces of files")]

use super::firmware::{Failure, Firmware, OrFailure, check};
use core::ptr::null_mut;
use uefi_raw::protocol::file_system::{
    FileAttribute, FileMode, FileProtocolV1, SimpleFileSystemProtocol,
};
use uefi_raw::{Handle, Status};

const NO_VOLUME: &str =
    "initrd= names a file, but the image was not loaded from a volume with files";
const NO_FILE: &str =
    "a file that initrd= names cannot be opened: expected its path on the volume of the image";
const NOT_READ: &str = "a file that initrd= names cannot be read";

/// An open folder or file, closed when it is dropped.
pub(super) struct File(*mut FileProtocolV1);

pub(super) struct Volume(File);

impl Volume {
    pub(super) fn open(firmware: &Firmware, device: Handle) -> Result<Self, Failure> {
        let guid = &SimpleFileSystemProtocol::GUID;
        let system = firmware
            .protocol::<SimpleFileSystemProtocol>(device, guid)
            .or_failure(Status::NOT_FOUND, NO_VOLUME)?;
        let mut root = null_mut();
        // SAFETY: the interface is that of a handle of the firmware, and the pointer is to a variable here.
        let status = unsafe { ((*system).open_volume)(system, &mut root) };
        check(status, NO_VOLUME)?;
        Ok(Self(File(root)))
    }

    /// Opens a file for reading. The path ends with a NUL.
    pub(super) fn file(&self, path: &[u16]) -> Result<File, Failure> {
        let root = self.0.0;
        let mut file = null_mut();
        let (mode, attributes) = (FileMode::READ, FileAttribute::empty());
        // SAFETY: the root is open, and the path ends with a NUL.
        let status = unsafe { ((*root).open)(root, &mut file, path.as_ptr(), mode, attributes) };
        check(status, NO_FILE)?;
        Ok(File(file))
    }
}

impl File {
    /// Its length: the position of its end. It stands at its beginning then.
    pub(super) fn bytes(&self) -> Result<usize, Failure> {
        let mut end = 0;
        self.go_to(u64::MAX)?;
        // SAFETY: the file is open, and the pointer is to a variable here.
        let status = unsafe { ((*self.0).get_position)(self.0, &mut end) };
        check(status, NOT_READ)?;
        self.go_to(0)?;
        usize::try_from(end)
            .ok()
            .or_failure(Status::LOAD_ERROR, NOT_READ)
    }

    pub(super) fn read(&self, into: &mut [u8]) -> Result<(), Failure> {
        let mut rest = into;
        while !rest.is_empty() {
            let mut bytes = rest.len();
            // SAFETY: the file is open, and there is room for as many bytes.
            let status = unsafe { ((*self.0).read)(self.0, &mut bytes, rest.as_mut_ptr().cast()) };
            check(status, NOT_READ)?;
            // None means that the file has become shorter.
            let more = (bytes > 0)
                .then_some(rest)
                .and_then(|it| it.get_mut(bytes..));
            rest = more.or_failure(Status::LOAD_ERROR, NOT_READ)?;
        }
        Ok(())
    }

    /// Sets the position; the largest number means the end of the file.
    fn go_to(&self, position: u64) -> Result<(), Failure> {
        // SAFETY: the file is open.
        let status = unsafe { ((*self.0).set_position)(self.0, position) };
        check(status, NOT_READ)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the file is open, and nothing uses it after this.
        let _ = unsafe { ((*self.0).close)(self.0) };
    }
}
