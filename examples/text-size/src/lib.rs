//! The common part of the programs: an entry point, which calls a function with values that the compiler does not know.

#![no_std]

/// Writes the entry point of a program.
#[macro_export]
macro_rules! program {
    ($run:path) => {
        core::arch::global_asm!(".global _start; _start: bl run; b .");

        #[unsafe(no_mangle)]
        extern "C" fn run(start: u64, output: u64, bytes: u64) -> u64 {
            $run(start, output, bytes)
        }

        #[panic_handler]
        fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
            loop {}
        }
    };
}
