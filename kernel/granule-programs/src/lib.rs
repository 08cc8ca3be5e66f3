//! Code that the programs share: system calls by number, and the way from the first instruction to
//! the program's function. No C library, and nothing about one program.

#![cfg_attr(target_os = "none", no_std)]

#[cfg(target_os = "none")]
pub mod calls;
#[cfg(target_os = "none")]
pub mod start;

/// Names the function that the program is: it takes a `Start` and returns the exit status. On the host
/// there is nothing to run.
#[macro_export]
macro_rules! program {
    ($run:path) => {
        #[cfg(target_os = "none")]
        #[allow(unsafe_code, reason = "the entry calls it by name")]
        #[unsafe(no_mangle)]
        fn granule_programs_run(start: $crate::start::Start) -> i32 {
            $run(start)
        }

        #[cfg(not(target_os = "none"))]
        fn main() {
            println!(
                "This program runs at EL0, on Granule or Linux: build it with `cargo xtask user`."
            );
        }
    };
}
