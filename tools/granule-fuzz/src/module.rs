//! Targets for modules that somebody loads: relocatable ELF files.

use crate::bytes::{Bytes, one_line};
use granule::arch::PageSize;
use granule_kcore::module::{MOST_BYTES, Module, Part};
use granule_module::{BUILD, MAGIC};

/// The address of the area, and a function of the kernel nearby.
const BASE: u64 = 0xffff_ffff_8200_0000;
const FUNCTION: u64 = BASE - (1 << 20);

/// Reads a file and loads what is accepted: nothing is written outside of its memory, its parts are whole pages without
/// gaps, and its functions lie in its code. The first three bytes are the page size and the change of one byte.
pub(crate) fn module(bytes: &[u8]) {
    let (drawn, file) = bytes.split_at(bytes.len().min(3));
    let mut given = Bytes(drawn);
    let size = PageSize::ALL[given.below(3)];
    let (at, change) = (usize::from(given.byte()), given.byte());
    let mut file = file.to_vec();
    if let Some(byte) = file.get_mut(at) {
        *byte ^= change & 1;
    }
    // The interface that the file was built with, so that the reader goes on behind it.
    let head = file.windows(MAGIC.len()).position(|bytes| bytes == MAGIC);
    let build = head.and_then(|at| file[at + MAGIC.len()..].first_chunk());
    let build = build.map_or(BUILD, |build| u64::from_le_bytes(*build));
    let page = size.bytes();
    let module = match Module::read(&file, build, page) {
        Ok(module) => module,
        Err(refused) => return one_line(&refused.to_string()),
    };
    let mut end = 0;
    for part in [Part::Code, Part::Constants, Part::Data] {
        let range = module.part(part);
        assert!(range.start == end && range.start <= range.end && range.end.is_multiple_of(page));
        end = range.end;
    }
    assert!(end == module.bytes() && end <= MOST_BYTES + 3 * page);
    let mut memory = vec![0; end as usize];
    match module.load(BASE, &mut memory, |name| {
        (!name.is_empty()).then_some(FUNCTION)
    }) {
        Ok(entries) => {
            let code = module.part(Part::Code);
            assert!(
                [entries.init, entries.exit]
                    .iter()
                    .all(|at| code.contains(&(at - BASE)))
            );
        }
        Err(refused) => one_line(&refused.to_string()),
    }
}
