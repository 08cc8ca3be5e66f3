//! Deliberate failures, for tests of how failures are told.
//!
//! On the kernel's command line: `granule.test=panic` panics, `granule.test=exception`
//! reads an address that nothing is mapped at, `granule.test=write-text` writes to the
//! kernel's code, `granule.test=overflow` uses up the stack. Each must end in outcome
//! `panic`.

/// Does what `bootargs` asks for, if it asks for a failure.
pub(crate) fn run(bootargs: &[u8]) {
    for word in bootargs.split(|byte| *byte == b' ') {
        match word {
            b"granule.test=panic" => panic!("granule.test=panic asked for this"),
            b"granule.test=exception" => {
                // Below the kernel's half and outside the identity map.
                // SAFETY: none; it is to fault.
                unsafe { core::ptr::read_volatile(0xdead_0000 as *const u32) };
            }
            b"granule.test=write-text" => {
                // SAFETY: none; the image's text is mapped read-only, and it is to fault.
                unsafe { core::ptr::write_volatile(crate::image::start() as *mut u32, 0) };
            }
            b"granule.test=overflow" => {
                overflow(1);
            }
            _ => {}
        }
    }
}

/// Recurses until the stack ends. The volatile array keeps each call's frame.
#[inline(never)]
#[allow(unconditional_recursion, reason = "that is the point")]
fn overflow(depth: u64) -> u64 {
    let mut frame = [depth; 32];
    // SAFETY: an element of a local array.
    unsafe { (&raw mut frame[(depth % 32) as usize]).write_volatile(depth) };
    overflow(depth + 1) + core::hint::black_box(&frame)[0]
}
