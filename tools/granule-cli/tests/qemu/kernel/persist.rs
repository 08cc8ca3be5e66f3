//! RAM that survives a reset, read by a boot with another page size.

use granule_cli::PageSize::{self, K4, K16, K64};
use granule_cli::Request;
use serde_json::{Value, json};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use crate::booted::Booted;
use crate::kernel::machine::{MIB, RAM, ok, sized};

const AREA: u64 = 0x4f00_0000;

fn boot(size: PageSize, ram: &Path) -> Booted {
    ok(&Request {
        memory: 256 * MIB,
        ram_file: Some(ram.to_owned()),
        append: Some(format!("granule.persist={AREA:#x},0x1000")),
        ..sized(size)
    })
}

/// Boots, last page size, whether the map is the same, and the refusal.
fn left(kernel: &Booted) -> (Value, Value, Value, String) {
    let persist = &kernel.json["persist"];
    let refused = persist["linear_map_refused"].as_str().unwrap_or_default();
    (
        persist["boots"].clone(),
        persist["last_page_size"].clone(),
        persist["same_linear_map"].clone(),
        refused.to_owned(),
    )
}

#[test]
fn data_of_another_page_size_is_read_if_its_units_allow_and_else_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ram = folder.path().join("ram");
    let first = left(&boot(K4, &ram));
    assert_eq!(
        (first.0, first.1, first.2),
        (json!(1), Value::Null, Value::Null)
    );
    assert!(first.3.starts_with("no stamp"), "{}", first.3);
    let again = left(&boot(K4, &ram));
    assert_eq!(again, (json!(2), json!(4096), json!(true), String::new()));
    // The count is in no unit of pages; the map's figures are.
    let other = boot(K64, &ram);
    let line = "written under 4k pages, and this kernel runs with 64k: not read; \
                boot with arm64.pagesize=4k to read it";
    assert_eq!(
        left(&other),
        (json!(3), json!(4096), Value::Null, line.to_owned())
    );
    other.mentions(line);
    let again = left(&boot(K64, &ram));
    assert_eq!(again, (json!(4), json!(65536), json!(true), String::new()));

    // A bit decays in each of the two while the machine is off.
    for offset in [40, 256 + 60] {
        let mut file = std::fs::OpenOptions::new().write(true).open(&ram).unwrap();
        file.seek(SeekFrom::Start(AREA - RAM + offset)).unwrap();
        file.write_all(&[0x5a]).unwrap();
    }
    let decayed = boot(K64, &ram);
    let found = left(&decayed);
    assert_eq!(
        (found.0, found.1, found.2),
        (json!(1), Value::Null, Value::Null)
    );
    assert!(found.3.contains("corrupted"), "{}", found.3);
}

#[test]
fn an_area_that_cannot_be_used_is_reported_and_the_boot_goes_on() {
    for (area, why) in [
        ("0x4f000000", "START,BYTES"),
        ("0x40200000,0x1000", "something else lies there"),
        ("0x80000000,0x1000", "not lie in RAM"),
    ] {
        let kernel = ok(&sized(K16)
            .memory(256 * MIB)
            .append(format!("granule.persist={area}")));
        let line = format!("granule: granule.persist={area}: ");
        let printed = kernel.console.lines().find(|one| one.contains(&line));
        assert!(printed.unwrap().contains(why), "{printed:?}");
        assert_eq!(kernel.json.get("persist"), None);
    }
}
