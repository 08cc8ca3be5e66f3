//! Address randomisation: what a seed moves, and what it must not change.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::Request;
use granule_cli::request::KaslrSeed;

use crate::booted::Booted;
use crate::kernel::machine::{GIB, MIB, ok, sized};

const FIXED_IMAGE: &str = "0xffffffff80000000";

fn seeded(size: PageSize, seed: KaslrSeed) -> Booted {
    ok(&sized(size).memory(2 * GIB).counted().kaslr_seed(seed))
}

fn address(kernel: &Booted, key: &str) -> u64 {
    u64::from_str_radix(kernel.text(key).trim_start_matches("0x"), 16).unwrap()
}

fn addresses(kernel: &Booted) -> [u64; 2] {
    ["kaslr.image", "kaslr.linear_map"].map(|key| address(kernel, key))
}

#[test]
fn a_seed_moves_image_and_linear_map_and_changes_no_count() {
    for size in PageSize::ALL {
        // A tree with the property, so that its length is the same in all boots.
        let fixed = seeded(size, KaslrSeed::Number(0));
        fixed.has("kaslr.state", "no-seed");
        fixed.has("kaslr.image", FIXED_IMAGE);
        fixed.prints("KASLR is off: /chosen has no kaslr-seed");
        let mut seen = vec![addresses(&fixed)];
        for seed in [1, 0xfedc_ba98_7654_3210] {
            let moved = seeded(size, KaslrSeed::Number(seed));
            moved.has("kaslr.state", "on");
            assert_eq!(moved.leaves(), fixed.leaves(), "{size:?} {seed:#x}");
            assert_eq!(moved.counts(), fixed.counts(), "{size:?} {seed:#x}");
            for key in [
                "self_check.tables",
                "self_check.leaves",
                "memory.free_bytes",
                "kaslr.image_places",
                "kaslr.linear_map_places",
            ] {
                moved.has(key, fixed.number(key));
            }
            // Where the entries lie in their tables may cost some instructions.
            let instructions = [&moved, &fixed].map(|it| it.number("linear_map.instructions"));
            let [with, without] = instructions;
            assert!(
                with.abs_diff(without) * 1000 < without,
                "{size:?} {instructions:?}"
            );
            assert!(moved.number("kaslr.image_places") > 10_000);
            assert!(moved.number("kaslr.linear_map_places") > 100_000);
            let [image, linear_map] = addresses(&moved);
            let differs =
                |[other, others_map]: &[u64; 2]| image != *other && linear_map != *others_map;
            assert!(
                seen.iter().all(differs),
                "{seen:x?} {image:#x} {linear_map:#x}"
            );
            // The last 32 GiB up to the trace's window; the lower half of 48 bits.
            assert!((0xffff_fff8_0000_0000..0xffff_ffff_0000_0000).contains(&image));
            assert!(image.is_multiple_of(2 * MIB));
            assert!((0xffff_0000_0000_0000..0xffff_8000_0000_0000).contains(&linear_map));
            // Only the record has the place.
            moved.does_not_print(&format!("{image:x}"));
            seen.push([image, linear_map]);
        }
        let again = seeded(size, KaslrSeed::Number(1));
        assert_eq!(addresses(&again), seen[1], "{size:?}");
    }
}

#[test]
fn nokaslr_turns_it_off() {
    let kernel = ok(&sized(K4).append("nokaslr").kaslr_seed(KaslrSeed::Random));
    kernel.has("kaslr.state", "nokaslr");
    kernel.has("kaslr.image", FIXED_IMAGE);
    kernel.has("kaslr.linear_map", "0xffff000000000000");
    kernel.prints("KASLR is off: nokaslr is in the command line");
}

#[test]
fn a_linear_map_without_room_stays() {
    let kernel = ok(&sized(K16)
        .memory(24 * GIB)
        .va_bits(36)
        .kaslr_seed(KaslrSeed::Number(7)));
    kernel.has("kaslr.linear_map_places", 1);
    kernel.has("kaslr.linear_map", "0xfffffff000000000");
    assert_ne!(kernel.text("kaslr.image"), FIXED_IMAGE);
    kernel.prints("one of the linear map: RAM leaves no room");
}

/// The seed is gone from the machine's device tree, and every copy that firmware made is that tree.
#[test]
fn the_seed_is_wiped() {
    let directory = tempfile::tempdir().unwrap();
    let ram = directory.path().join("ram");
    let seed = 0x0123_4567_89ab_cdef_u64;
    let kernel = ok(&Request {
        memory: 64 * MIB,
        ram_file: Some(ram.clone()),
        kaslr_seed: KaslrSeed::Number(seed),
        ..sized(K64)
    });
    kernel.has("kaslr.state", "on");
    let bytes = std::fs::read(ram).unwrap();
    let has = |wanted: &[u8]| contains(&bytes, wanted);
    assert!(has(b"kaslr-seed\0"), "the tree is not found in RAM");
    assert!(!has(&seed.to_be_bytes()), "the seed is in RAM");
}

const CHUNK: usize = 1 << 16;
static EMPTY: [u8; CHUNK] = [0; CHUNK];

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes
        .chunks(CHUNK)
        .enumerate()
        .filter(|(_, chunk)| *chunk != &EMPTY[..chunk.len()])
        .any(|(index, _)| {
            let start = index * CHUNK;
            let end = bytes.len().min(start + CHUNK + wanted.len());
            bytes[start..end]
                .windows(wanted.len())
                .any(|window| window == wanted)
        })
}
