//! The code that runs before the kernel's tables are on: with the MMU off the assembly in [`head`] and the Rust in
//! [`mmu_off`], on the boot CPU and on the others; before that [`efi`], if firmware starts the image as an
//! application. The rest of the kernel calls nothing here. Both sides share the data in `handover`.

mod efi;
mod head;
mod mmu_off;
