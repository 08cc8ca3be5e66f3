//! Loaded segments: their contents, their places, and how they are listed, replaced and unloaded.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::{Outcome, Request};

use crate::booted::Booted;
use crate::image::image;
use crate::kexec::machine::{NEXT, archive, ends, machine};

/// A line of `/sys/kernel/kexec_segments`: name, start, bytes, memory, bytes in place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    name: String,
    start: u64,
    bytes: u64,
    memory: u64,
    in_place: u64,
}

/// One output of `kexec status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Status {
    loaded: bool,
    segments: Vec<Segment>,
    entry: u64,
    copied: u64,
    cleaned: u64,
}

/// Returns each output of `kexec status`.
fn statuses(ran: &Booted) -> Vec<Status> {
    let mut all = Vec::new();
    let mut lines = ran.console.lines().peekable();
    while let Some(line) = lines.next() {
        let loaded = match line {
            "loaded 0" => false,
            "loaded 1" => true,
            _ => continue,
        };
        let mut status = Status {
            loaded,
            ..Status::default()
        };
        while let Some(line) = lines.next_if(|line| !line.starts_with("loaded ")) {
            let words: Vec<_> = line.split_whitespace().collect();
            let number = |text: &str| match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
                None => text.parse().unwrap(),
            };
            match words[..] {
                [
                    name @ ("kernel" | "initrd" | "tree"),
                    start,
                    bytes,
                    memory,
                    in_place,
                ] => {
                    status.segments.push(Segment {
                        name: name.into(),
                        start: number(start),
                        bytes: number(bytes),
                        memory: number(memory),
                        in_place: number(in_place),
                    });
                }
                [
                    "entry",
                    entry,
                    "copied",
                    copied,
                    "cleaned",
                    cleaned,
                    "tables",
                    _,
                    "list",
                    _,
                ] => {
                    (status.entry, status.copied) = (number(entry), number(copied));
                    status.cleaned = number(cleaned);
                    break;
                }
                _ => break,
            }
        }
        all.push(status);
    }
    all
}

/// Loads, with every page given back at the end, whether or not it was unloaded before.
#[track_caller]
fn loads(request: &Request, lines: &str) -> Vec<Status> {
    let ran = ends(request, archive(lines), Outcome::Ok);
    ran.frames_came_back();
    statuses(&ran)
}

/// Bytes in whole pages.
fn pages(bytes: u64, size: PageSize) -> u64 {
    bytes.next_multiple_of(size.bytes())
}

fn names(status: &Status) -> Vec<&str> {
    status.segments.iter().map(|it| &it.name[..]).collect()
}

#[test]
fn segments_lie_where_they_are_to_be_and_nothing_is_to_be_copied() {
    let image = std::fs::read(image()).unwrap();
    let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let (offset, memory) = (word(8), word(16));
    for (size, cpus, el) in [(K4, 1, 2), (K16, 4, 1), (K64, 2, 2)] {
        let request = machine(size, cpus).el(el);
        let lines = format!("load {NEXT} --initrd /init --append quiet\nstatus\nunload\nstatus\n");
        let [status, none] = &loads(&request, &lines)[..] else {
            panic!("not two statuses");
        };
        assert_eq!(*none, Status::default());
        assert!(status.loaded);
        assert_eq!(names(status), ["kernel", "initrd", "tree"]);
        assert_eq!(status.copied, 0);
        for it in &status.segments {
            assert_eq!(it.in_place, pages(it.bytes, size), "{it:?}");
            assert_eq!(it.memory % size.bytes() + it.start % size.bytes(), 0);
            let apart = |other: &Segment| {
                it == other
                    || it.start + it.memory <= other.start
                    || other.start + other.memory <= it.start
            };
            assert!(status.segments.iter().all(apart), "{status:?}");
        }
        let [kernel, initrd, tree] = &status.segments[..] else {
            panic!("{status:?}");
        };
        assert_eq!(kernel.bytes, image.len() as u64);
        assert_eq!(kernel.memory, pages(memory, size));
        assert_eq!((kernel.start - offset) % (2 << 20), 0);
        assert_eq!(status.entry, kernel.start);
        assert_eq!(initrd.memory, pages(initrd.bytes, size));
        // Nothing else is in the block that it is mapped with.
        assert_eq!(tree.start % (2 << 20), 0);
        assert!(tree.bytes > 1000 && tree.bytes < 1 << 20, "{tree:?}");
        // Bytes in place were cleaned when they were loaded, and so was the memory that is kept for
        // the next kernel behind its bytes.
        assert_eq!(status.cleaned, 0);
    }
}

#[test]
fn all_of_it_is_copied_on_request() {
    for size in PageSize::ALL {
        let lines = format!("load {NEXT} --initrd /init --copy\nstatus\n");
        let [status] = &loads(&machine(size, 1), &lines)[..] else {
            panic!("not one status");
        };
        let all: u64 = status.segments.iter().map(|it| pages(it.bytes, size)).sum();
        assert_eq!(status.copied, all, "{status:?}");
        assert!(status.segments.iter().all(|it| it.in_place == 0));
        // The initramfs is not.
        let [kernel, _, tree] = &status.segments[..] else {
            panic!("{status:?}");
        };
        assert_eq!(status.cleaned, kernel.memory + tree.memory);
    }
}

/// Where this kernel itself is in the way, only what is not free is copied, and the next one runs.
#[test]
fn a_place_that_is_partly_free_is_used() {
    for size in PageSize::ALL {
        let request = Request {
            // A large leaf of a program could take all that is free there.
            append: Some("user_large_leaves=off granule.test=kexec:initrd@0x40000000".into()),
            ..machine(size, 1)
        };
        // Longer than what there is before this kernel's image. It is not an archive, which its
        // reader reports and boots without.
        let long: Vec<u8> = (0..3_u32 << 20)
            .map(|at| (at.wrapping_mul(at) >> 7) as u8)
            .collect();
        let lines = format!(
            "load {NEXT} --initrd /boot/long --append granule.kexec=digest\nstatus\nexec\n"
        );
        let archive = archive(&lines).file("/boot/long", &long);
        let ran = ends(&request, archive, Outcome::Ok);
        let [status] = &statuses(&ran)[..] else {
            panic!("not one status");
        };
        let [kernel, initrd, _] = &status.segments[..] else {
            panic!("{status:?}");
        };
        let all = pages(initrd.bytes, size);
        assert!(initrd.in_place > 0 && initrd.in_place < all, "{status:?}");
        assert_eq!(status.copied, all - initrd.in_place);
        assert_eq!(kernel.in_place, pages(kernel.bytes, size));
        // An initramfs is read through the caches.
        assert_eq!(status.cleaned, 0);
        ran.has("kexec.bytes_copied", status.copied);
        assert_eq!(ran.boot.boots.len(), 2);
        let arrived = ran.value("kexec.arrived.initrd.digest");
        assert!(arrived.is_string(), "{}", ran.json);
        ran.has("kexec.segment.initrd.digest", arrived.clone());
    }
}

/// Others free memory where segments are to be, while the next kernel is loaded: what is taken for it is
/// elsewhere.
#[test]
fn memory_that_becomes_free_meanwhile_is_not_in_the_way() {
    for (index, size) in PageSize::ALL.into_iter().enumerate() {
        let request = machine(size, 1 + index as u32).append("granule.test=kexec:frees@64");
        let lines = format!(
            "load {NEXT} --initrd /init\nstatus\nload {NEXT} --initrd /init --copy\nstatus\n"
        );
        let [free, copied] = &loads(&request, &lines)[..] else {
            panic!("not two statuses");
        };
        let all: u64 = free.segments.iter().map(|it| pages(it.bytes, size)).sum();
        // The test frees pages indeed.
        assert!(free.copied > 0 && free.copied < all, "{free:?}");
        assert_eq!(copied.copied, all, "{copied:?}");
    }
}

/// An image without the flag that it may be anywhere goes where RAM begins, over the kernel that is
/// there, and everything else behind it; it runs there.
#[test]
fn an_image_that_may_not_be_anywhere_is_where_ram_begins() {
    let mut image = std::fs::read(image()).unwrap();
    assert_ne!(image[24] & 8, 0);
    image[24] &= !8;
    for size in PageSize::ALL {
        let lines = "load /boot/low --initrd /init\nstatus\nexec\n";
        let archive = archive(lines).file("/boot/low", &image);
        let ran = ends(&machine(size, 1), archive, Outcome::Ok);
        let [status] = &statuses(&ran)[..] else {
            panic!("not one status");
        };
        assert_eq!(status.entry, 0x4000_0000, "{status:?}");
        assert!(status.segments.iter().all(|it| it.start >= status.entry));
        assert_eq!(ran.boot.boots.len(), 2);
    }
}

#[test]
fn the_last_one_that_is_loaded_counts() {
    let lines = format!(
        "load {NEXT} --initrd /init\nstatus\nload {NEXT}\nstatus\n\
         load {NEXT} --copy\nstatus\nload {NEXT} --initrd /etc/kexec\nstatus\n"
    );
    for size in PageSize::ALL {
        let all = loads(&machine(size, 2), &lines);
        let [first, second, third, last] = &all[..] else {
            panic!("{all:?}");
        };
        assert_eq!(names(first), ["kernel", "initrd", "tree"]);
        assert_eq!(names(second), ["kernel", "tree"]);
        assert_ne!(first.entry, second.entry);
        assert!(third.copied > 0 && second.copied == 0);
        assert_eq!(last.segments[1].bytes, lines.len() as u64);
        assert_eq!(last.copied, 0);
    }
}

/// Data handed over on request is where it was, for a kernel with another page size that gets its
/// place by a word that nobody gave; and again for the one after that.
#[test]
fn memory_that_is_handed_over_is_read_by_the_next_kernel() {
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let (from, to) = (PageSize::ALL[from], PageSize::ALL[to]);
        let request = machine(from, 1).append("granule.persist=0x4f000000,0x1000");
        let lines = format!("load {NEXT} --append arm64.pagesize={}\nexec\n", to.word());
        let ran = ends(&request, archive(&lines), Outcome::Ok);
        ran.has("kexec.to_page_size", to.bytes());
        ran.has("persist.boots", 2);
        ran.has("persist.last_page_size", from.bytes());
        let other = "granule.persist=0x4e000000,0x1000";
        let lines = format!("load {NEXT} --append {other}\nexec\n");
        let ran = ends(&request, archive(&lines), Outcome::Ok);
        // A command line with another place is not changed.
        ran.has("persist.boots", 1);
    }
}
