//! Wishes for the page size, and becomes the program.

use core::fmt::{self, Write};
use granule_programs::calls::{ENOENT, EXECVE, StandardError, call, say, wish_page_size};
use granule_programs::start::{Start, page};

/// Exit codes, as of a shell for a program that it cannot run, or does not find.
const NO_SIZE: i32 = 125;
const NOT_RUN: i32 = 126;
const NOT_FOUND: i32 = 127;

/// One line on standard error, and the exit status.
fn fail(status: i32, what: fmt::Arguments<'_>) -> i32 {
    // Never fails.
    let _ = writeln!(StandardError, "pagesize: {what}");
    status
}

pub(crate) fn run(start: Start) -> i32 {
    if start.count() <= 1 {
        say(format_args!("{}\n", page(start)));
        return 0;
    }
    let (word, program) = (start.argument(1), start.argument(2));
    let shown = word.escape_ascii();
    let bytes = match word {
        b"4k" => 4 << 10,
        b"16k" => 16 << 10,
        b"64k" => 64 << 10,
        b"default" => 0,
        _ => {
            return fail(
                NO_SIZE,
                format_args!("{shown} is not a page size: 4k, 16k, 64k or default"),
            );
        }
    };
    if start.count() == 2 {
        return fail(
            NO_SIZE,
            format_args!("which program? pagesize {shown} PROGRAM"),
        );
    }
    if wish_page_size(bytes) < 0 {
        return fail(
            NO_SIZE,
            format_args!("programs cannot have {shown} pages on this boot"),
        );
    }
    let arguments = [start.arguments_from(2), start.environment()];
    let [list, environment] = arguments;
    let error = call(EXECVE, [program.as_ptr() as u64, list, environment]);
    let shown = program.escape_ascii();
    if error == ENOENT {
        fail(NOT_FOUND, format_args!("there is no {shown}"))
    } else {
        fail(
            NOT_RUN,
            format_args!("{shown} cannot be run: error {}", -error),
        )
    }
}
