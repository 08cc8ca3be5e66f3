//! `granule-user-std`: an ordinary Rust program with the standard library, static with musl.
//!
//! Nothing in it is about Granule: what it needs of the system is what musl and std need of Linux. It uses
//! arguments, environment, heap, files, pipes, other processes, clocks and unwinding, and ends with 0 if
//! all of it was as it must be. No threads.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

type Done = Result<(), Box<dyn Error>>;

/// Prints a condition that does not hold and ends the program.
macro_rules! check {
    ($condition:expr, $($words:tt)*) => {
        if !$condition {
            return Err(format!($($words)*).into());
        }
    };
}

fn main() -> ExitCode {
    let result = match env::args().nth(1).as_deref() {
        Some("upper") => upper(),
        Some("kill") => std::process::abort(),
        _ => all(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("std: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the input of a child in capitals, and the word from its environment.
fn upper() -> Done {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    print!("{} {}", text.to_uppercase(), env::var("WORD")?);
    io::stdout().flush()?;
    eprint!("aside");
    std::process::exit(7)
}

fn all() -> Done {
    let itself = env::args().next().ok_or("no argument 0")?;
    println!("std: {itself}, HOME={}", env::var("HOME")?);
    heap()?;
    files()?;
    processes(&itself)?;
    clock()?;
    unwinding()?;
    println!("std: all is well");
    Ok(())
}

/// Small pieces and large ones, grown, shrunk and given back.
fn heap() -> Done {
    let mut map = BTreeMap::new();
    for n in 0..20_000_u64 {
        map.insert(n.wrapping_mul(2_654_435_761) % 65_536, n.to_string());
    }
    let lengths: usize = map.values().map(String::len).sum();
    check!(
        map.len() == 20_000 && lengths == 88_890,
        "heap: {} {lengths}",
        map.len()
    );
    let mut large: Vec<u64> = Vec::new();
    for n in 0..1_000_000 {
        large.push(n);
    }
    large.truncate(1000);
    large.shrink_to_fit();
    check!(
        large.iter().sum::<u64>() == 499_500,
        "heap: a vector lost its words"
    );
    Ok(())
}

fn files() -> Done {
    let text = fs::read_to_string("/etc/text")?;
    check!(text == "0123456789", "files: read {text:?}");
    let mut names = Vec::new();
    for entry in fs::read_dir("/etc")? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    check!(names == ["link", "text"], "files: {names:?}");
    check!(
        fs::read_link("/etc/link")?.as_os_str() == "text",
        "files: no link"
    );
    check!(fs::metadata("/etc/link")?.len() == 10, "files: no metadata");
    let none = fs::read("/none").err().map(|error| error.kind());
    check!(none == Some(io::ErrorKind::NotFound), "files: {none:?}");
    check!(
        fs::write("/etc/new", "x").is_err(),
        "files: the archive was written to"
    );
    check!(
        env::set_current_dir("/etc").is_ok(),
        "files: no other directory"
    );
    check!(
        env::current_dir()?.as_os_str() == "/etc",
        "files: not there"
    );
    Ok(())
}

/// Other programs, with all three pipes; one that ends by itself, one by a signal, one that is none.
fn processes(itself: &str) -> Done {
    let mut child = Command::new(itself)
        .arg("upper")
        .env("WORD", "word")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // More than a pipe holds: both sides must wait for each other.
    let mut input = child.stdin.take().ok_or("no pipe")?;
    input.write_all(&[b'a'; 40_000])?;
    drop(input);
    let output = child.wait_with_output()?;
    check!(
        output.status.code() == Some(7),
        "processes: {}",
        output.status
    );
    let text = String::from_utf8(output.stdout)?;
    let expected = text.len() == 40_005 && text.starts_with("AAAA") && text.ends_with("A word");
    check!(expected, "processes: {} bytes", text.len());
    check!(output.stderr == b"aside", "processes: {:?}", output.stderr);
    let status = Command::new(itself).arg("kill").status()?;
    check!(status.signal() == Some(6), "processes: {status}");
    let none = Command::new("/none")
        .status()
        .err()
        .map(|error| error.kind());
    check!(none == Some(io::ErrorKind::NotFound), "processes: {none:?}");
    Ok(())
}

fn clock() -> Done {
    let begun = Instant::now();
    thread::sleep(Duration::from_millis(20));
    let slept = begun.elapsed();
    check!(slept >= Duration::from_millis(20), "clock: {slept:?}");
    Ok(())
}

/// Out of a panic and on, which walks the stack by the program's own tables.
fn unwinding() -> Done {
    std::panic::set_hook(Box::new(|_| ()));
    let result = std::panic::catch_unwind(|| {
        let kept = String::from("abc");
        std::panic::panic_any(kept.len());
    });
    let _ = std::panic::take_hook();
    let thrown = result
        .err()
        .and_then(|thrown| thrown.downcast::<usize>().ok());
    check!(thrown.as_deref() == Some(&3), "unwinding: {thrown:?}");
    Ok(())
}
