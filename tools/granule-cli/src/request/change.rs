//! Changes of a request, one option at a time: for callers that boot without a command line.

use std::path::PathBuf;
use std::time::Duration;

use super::{Firmware, KaslrSeed, LinearMap, PageSize, Request, Rodata};

impl Request {
    /// With this kernel image.
    pub fn image(mut self, image: impl Into<PathBuf>) -> Self {
        self.image = Some(image.into());
        self
    }

    /// With this initial RAM disk.
    pub fn initrd(mut self, initrd: impl Into<PathBuf>) -> Self {
        self.initrd = Some(initrd.into());
        self
    }

    /// With these bootargs behind those of the options.
    pub fn append(mut self, words: impl Into<String>) -> Self {
        self.append = Some(words.into());
        self
    }

    /// With this page size for the kernel.
    pub fn page_size(mut self, size: PageSize) -> Self {
        self.page_size = Some(size);
        self
    }

    /// With so many bits of virtual address.
    pub fn va_bits(mut self, bits: u8) -> Self {
        self.va_bits = Some(bits);
        self
    }

    /// With this protection of the linear map.
    pub fn rodata(mut self, rodata: Rodata) -> Self {
        self.rodata = Some(rodata);
        self
    }

    /// With the linear map made so.
    pub fn linear_map(mut self, strategy: LinearMap) -> Self {
        self.linear_map = Some(strategy);
        self
    }

    /// With this CPU of QEMU's.
    pub fn cpu(mut self, cpu: impl Into<String>) -> Self {
        self.cpu = cpu.into();
        self
    }

    /// On a machine with so many bytes of RAM.
    pub fn memory(self, memory: u64) -> Self {
        Self { memory, ..self }
    }

    /// On a machine with so many CPUs.
    pub fn smp(self, smp: u32) -> Self {
        Self { smp, ..self }
    }

    /// On a machine with a GIC of this version.
    pub fn gic(self, gic: u8) -> Self {
        Self { gic, ..self }
    }

    /// Entered at this exception level.
    pub fn el(self, el: u8) -> Self {
        Self { el, ..self }
    }

    /// Started by this firmware.
    pub fn firmware(self, firmware: Firmware) -> Self {
        Self { firmware, ..self }
    }

    /// With this seed in the tree.
    pub fn kaslr_seed(self, kaslr_seed: KaslrSeed) -> Self {
        Self { kaslr_seed, ..self }
    }

    /// With this time limit.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// With instructions counted, in one host thread.
    pub fn counted(self) -> Self {
        let icount = true;
        Self { icount, ..self }
    }
}
