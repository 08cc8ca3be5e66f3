//! What the EFI stub decides: its command line, the files of the initramfs, the image's place in memory and
//! the device tree that it hands to the kernel.
//!
//! Pure, and tested on the host. Calls to the firmware are in the kernel's `early::efi`. All input comes from
//! firmware or a boot loader: nothing here panics, and nothing formats.

pub mod description;
pub mod initrd;
pub mod options;
pub mod place;
