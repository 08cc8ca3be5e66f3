//! Address space numbers, one step after the other; who does what at the same time is
//! `granule-model`'s `asids` test.

use granule::space::asid::{AsidCpu, AsidMap, Asids, Renewed, SpaceAsid, TooFewNumbers, map_words};

fn spaces(count: usize) -> Vec<SpaceAsid> {
    (0..count).map(|_| SpaceAsid::new()).collect()
}

#[test]
fn numbers_are_unique_until_they_run_out_and_then_all_cpus_flush() {
    let cpus = [AsidCpu::unused(), AsidCpu::unused()];
    let asids = Asids::of(&cpus);
    let mut words = vec![0; map_words(8)];
    assert_eq!(words.len() * 64, 256);
    let mut map = AsidMap::new(&mut words);
    let spaces = spaces(300);
    assert_eq!(asids.enter(0, &spaces[0]), None, "no number yet");
    assert_eq!(spaces[0].number(), None);
    for (number, space) in spaces.iter().enumerate().take(255) {
        let renewed = asids.renew(&mut map, 0, space).unwrap();
        assert_eq!(renewed.asid as usize, number + 1);
        assert!(!renewed.flush && !renewed.rolled_over);
        assert_eq!(asids.enter(0, space), Some(renewed.asid));
    }
    // CPU 1 runs the third space from here on; CPU 0 is in the last.
    assert_eq!(asids.renew(&mut map, 1, &spaces[2]).unwrap().asid, 3);
    let renewed = asids.renew(&mut map, 0, &spaces[255]).unwrap();
    assert!(renewed.rolled_over && renewed.flush);
    assert_eq!(renewed.asid, 1, "the first that no CPU uses");
    // CPU 1 may go on under what it has, but goes nowhere without a flush.
    assert_eq!(asids.enter(1, &spaces[255]), None, "not before the flush");
    let third = asids.renew(&mut map, 1, &spaces[2]).unwrap();
    assert_eq!((third.asid, third.flush), (3, true), "it stays its own");
    assert_eq!(asids.enter(1, &spaces[2]), Some(3));
    let again = asids.renew(&mut map, 1, &spaces[255]).unwrap();
    let expected = Renewed {
        asid: 1,
        flush: false,
        rolled_over: false,
    };
    assert_eq!(again, expected);
    // The number of a space is kept where nobody took it meanwhile, and not where somebody did.
    assert_eq!(asids.renew(&mut map, 0, &spaces[100]).unwrap().asid, 101);
    assert_ne!(asids.renew(&mut map, 0, &spaces[0]).unwrap().asid, 1);
}

#[test]
fn a_cpu_that_never_leaves_its_space_keeps_its_number_over_generations() {
    let cpus = [AsidCpu::unused(), AsidCpu::unused()];
    let asids = Asids::of(&cpus);
    let mut words = vec![0; 1];
    let mut map = AsidMap::new(&mut words);
    let long = SpaceAsid::none();
    let kept = asids.renew(&mut map, 1, &long).unwrap().asid;
    let spaces = spaces(1000);
    let mut rolls = 0;
    for space in &spaces {
        let renewed = asids.renew(&mut map, 0, space).unwrap();
        assert_ne!(renewed.asid, kept);
        assert_eq!(renewed.flush, renewed.rolled_over);
        rolls += u32::from(renewed.rolled_over);
    }
    assert!(rolls >= 15, "{rolls}");
    assert_eq!(long.number(), Some(kept));
    assert_eq!(asids.renew(&mut map, 1, &long).unwrap().asid, kept);
}

#[test]
fn more_cpus_than_numbers_are_an_error() {
    let cpus: Vec<AsidCpu> = (0..65).map(|_| AsidCpu::unused()).collect();
    let asids = Asids::of(&cpus);
    let mut words = vec![0; 1];
    let mut map = AsidMap::new(&mut words);
    let spaces = spaces(65);
    for (cpu, space) in spaces.iter().enumerate().take(63) {
        assert!(asids.renew(&mut map, cpu, space).is_ok());
    }
    let refused = asids.renew(&mut map, 63, &spaces[63]);
    assert_eq!(refused, Err(TooFewNumbers));
    assert_eq!(asids.enter(63, &spaces[63]), None);
    // Those that have one keep it.
    assert!(asids.renew(&mut map, 5, &spaces[5]).is_ok());
    assert_eq!(spaces[5].number(), Some(6));
}
