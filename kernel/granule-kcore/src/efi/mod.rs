//! Decides for the EFI stub: its command line, the files of the initramfs, the image's place in memory, the device
//! tree that it hands to the kernel, and the addresses in the memory map ([`flat`]).
//!
//! Pure, and tested on the host. Calls to the firmware are in the kernel's `early::efi`. All input
//! comes from firmware or a boot loader: nothing here panics, and what the stub uses does not format.

pub mod description;
pub mod flat;
pub mod initrd;
pub mod options;
pub mod place;
pub mod wanted;
