//! The descriptors of one process: a map from numbers to open files.

use crate::abi::Errno;

/// The most descriptors of a process; RLIMIT_NOFILE reports it.
pub const MOST: usize = 64;

/// The index of an open file in the table of all open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenId(pub(crate) u16);

/// The descriptors of one process. The owner of this map updates the open files' owner counts.
#[derive(Clone, Debug)]
pub struct Descriptors {
    open: [Option<OpenId>; MOST],
    /// A bit for each descriptor that `execve` closes.
    close_on_exec: u64,
}

const _: () = assert!(MOST <= u64::BITS as usize);

impl Descriptors {
    /// No descriptor is open.
    pub(crate) const fn new() -> Self {
        Self {
            open: [None; MOST],
            close_on_exec: 0,
        }
    }

    /// The open file of a descriptor.
    pub fn get(&self, fd: u32) -> Result<OpenId, Errno> {
        let slot = self.open.get(fd as usize).copied().flatten();
        slot.ok_or(Errno::EBADF)
    }

    /// Gives `file` the lowest free number that is at least `lowest`.
    pub fn add(&mut self, file: OpenId, lowest: u32, close_on_exec: bool) -> Result<u32, Errno> {
        let free = self
            .open
            .iter_mut()
            .enumerate()
            .skip(lowest as usize)
            .find(|(_, slot)| slot.is_none());
        let (fd, slot) = free.ok_or(Errno::EMFILE)?;
        *slot = Some(file);
        self.mark(fd as u32, close_on_exec);
        Ok(fd as u32)
    }

    /// Makes `fd` refer to `file`. Returns the open file it referred to before.
    pub fn replace(
        &mut self,
        fd: u32,
        file: OpenId,
        close_on_exec: bool,
    ) -> Result<Option<OpenId>, Errno> {
        let slot = self.open.get_mut(fd as usize).ok_or(Errno::EBADF)?;
        let before = slot.replace(file);
        self.mark(fd, close_on_exec);
        Ok(before)
    }

    /// Frees a descriptor. Returns its open file.
    pub fn remove(&mut self, fd: u32) -> Result<OpenId, Errno> {
        let slot = self.open.get_mut(fd as usize);
        slot.and_then(Option::take).ok_or(Errno::EBADF)
    }

    /// Whether `execve` closes the descriptor.
    #[cfg(test)]
    pub fn closes_on_exec(&self, fd: u32) -> Result<bool, Errno> {
        self.get(fd)?;
        Ok(self.close_on_exec & 1 << fd != 0)
    }

    /// Sets whether `execve` closes the descriptor.
    pub fn set_close_on_exec(&mut self, fd: u32, on: bool) -> Result<(), Errno> {
        self.get(fd)?;
        self.mark(fd, on);
        Ok(())
    }

    /// Frees one descriptor that `execve` closes; `None` when none is left.
    pub fn take_close_on_exec(&mut self) -> Option<OpenId> {
        let closing = (0..MOST as u32).find(|fd| {
            let open = self.get(*fd).is_ok();
            open && self.close_on_exec & 1 << fd != 0
        })?;
        self.remove(closing).ok()
    }

    /// Frees one descriptor; `None` when none is left.
    pub fn take_any(&mut self) -> Option<OpenId> {
        self.open.iter_mut().find_map(Option::take)
    }

    /// The open files, once for each descriptor.
    pub fn iter(&self) -> impl Iterator<Item = OpenId> {
        self.open.iter().copied().flatten()
    }

    fn mark(&mut self, fd: u32, on: bool) {
        let bit = 1u64.checked_shl(fd).unwrap_or(0);
        if on {
            self.close_on_exec |= bit;
        } else {
            self.close_on_exec &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_number_is_given_and_a_full_table_refuses() {
        let mut table = Descriptors::new();
        assert_eq!(table.add(OpenId(9), 0, false), Ok(0));
        assert_eq!(table.add(OpenId(9), 10, true), Ok(10));
        assert_eq!(table.add(OpenId(8), 0, false), Ok(1));
        assert_eq!(table.remove(0), Ok(OpenId(9)));
        assert_eq!(table.remove(0), Err(Errno::EBADF));
        assert_eq!(table.add(OpenId(7), 0, false), Ok(0));
        for _ in 3..MOST {
            table.add(OpenId(1), 0, false).unwrap();
        }
        assert_eq!(table.add(OpenId(1), 0, false), Err(Errno::EMFILE));
        assert_eq!(table.add(OpenId(1), 64, false), Err(Errno::EMFILE));
        assert_eq!(table.add(OpenId(1), u32::MAX, false), Err(Errno::EMFILE));
        for fd in [64, 1000, u32::MAX] {
            assert_eq!(table.get(fd), Err(Errno::EBADF));
            assert_eq!(table.replace(fd, OpenId(1), true), Err(Errno::EBADF));
            assert_eq!(table.set_close_on_exec(fd, true), Err(Errno::EBADF));
            assert_eq!(table.remove(fd), Err(Errno::EBADF));
        }
        assert_eq!(table.iter().count(), 64);
    }

    #[test]
    fn exec_closes_what_is_marked() {
        let mut table = Descriptors::new();
        table.add(OpenId(1), 0, true).unwrap();
        table.add(OpenId(2), 0, false).unwrap();
        table.add(OpenId(3), 63, true).unwrap();
        // The flag does not outlive its descriptor.
        table.remove(0).unwrap();
        table.add(OpenId(4), 0, false).unwrap();
        assert_eq!(table.closes_on_exec(0), Ok(false));
        assert_eq!(table.take_close_on_exec(), Some(OpenId(3)));
        assert_eq!(table.take_close_on_exec(), None);
        assert_eq!(table.replace(1, OpenId(5), true), Ok(Some(OpenId(2))));
        assert_eq!(table.take_close_on_exec(), Some(OpenId(5)));
        assert_eq!(table.take_any(), Some(OpenId(4)));
        assert_eq!(table.take_any(), None);
    }
}
