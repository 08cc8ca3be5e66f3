//! The random numbers that a next kernel gets.

use crate::task::random;
use granule_boot::kaslr::{Purpose, Seed};
use granule_kcore::kexec::next_tree::{SEED_BYTES, Seeds};

/// Random seeds, drawn once so that the measured tree and the written tree have the same length. Where nothing has
/// seeded the generator, a seed for addresses comes from the seed that this kernel was given; without either there is
/// none, for the next kernel must not take a number for secret that a reader of the counter can guess.
pub(super) fn seeds(own: Option<Seed>) -> Seeds {
    let mut rng = [0; SEED_BYTES];
    let mut kaslr = [0; 8];
    random::fill(&mut rng);
    random::fill(&mut kaslr);
    let own = own.map(|seed| seed.number(Purpose::NextKernel));
    let is_seeded = random::is_seeded();
    Seeds {
        kaslr: (is_seeded || own.is_some()).then(|| u64::from_le_bytes(kaslr) ^ own.unwrap_or(0)),
        rng: is_seeded.then_some(rng),
    }
}
