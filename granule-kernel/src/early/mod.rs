//! The code that runs with the MMU off, on the boot CPU and on the others: assembly in [`head`],
//! Rust in [`mmu_off`]. The rest of the kernel calls nothing here. Both sides share the data in
//! `handover`.

mod head;
mod mmu_off;
