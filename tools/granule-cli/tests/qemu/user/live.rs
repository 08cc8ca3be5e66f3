//! Programs on CPUs that run beside each other, each in a thread of the host: those in which several meet.

use granule_cli::Outcome;
use granule_cli::PageSize::{self, K4, K16, K64};

use crate::user::machine::{does, machine, well};

const CPUS: u32 = 4;

fn meet(words: &str, line: &str) {
    for size in PageSize::ALL {
        well(&machine(size, CPUS), words, line);
    }
}

#[test]
#[ignore = "stress in real time: a case of the soak"]
fn many_processes() {
    meet("storm", "stormed");
}

#[test]
#[ignore = "stress in real time: a case of the soak"]
fn signals_meet_forks() {
    meet("comets", "burnt out");
}

#[test]
#[ignore = "stress in real time: a case of the soak"]
fn signals_come_from_everywhere() {
    meet("signal-storm", "stormed");
}

#[test]
#[ignore = "stress in real time: a case of the soak"]
fn pages_are_shared_and_copied() {
    meet("copies", "copied");
}

/// With memory for as many as there are places: small ones, or what they share with their parent. (Bombs take turns
/// slowly.)
fn a_fork_bomb_ends_at_the_limit(size: PageSize, cpus: u32, memory: u64) {
    let request = machine(size, cpus)
        .memory(memory)
        .append("user_pagesize=4k");
    let ran = does(&request, "bomb", Outcome::Ok);
    let most = ran.number("user.most_processes");
    let line = format!("{} processes beside the first", most - 1);
    ran.prints_line(&line);
    ran.has("user.processes", most);
    // Linux's rule, within a half of it for what the kernel takes first.
    let by_memory = (memory >> 17).min(4096);
    assert!((by_memory / 2..=by_memory).contains(&most), "{most}");
}

#[test]
#[ignore = "stress in real time: a case of the soak"]
fn a_fork_bomb_ends_with_4k_pages() {
    a_fork_bomb_ends_at_the_limit(K4, 2, 256 << 20);
}

#[test]
#[ignore = "stress in real time: a case of the soak"]
fn a_fork_bomb_ends_with_16k_pages() {
    a_fork_bomb_ends_at_the_limit(K16, 1, 1 << 30);
}

#[test]
#[ignore = "stress in real time: a case of the soak"]
fn a_fork_bomb_ends_with_64k_pages() {
    a_fork_bomb_ends_at_the_limit(K64, 3, 1 << 30);
}
