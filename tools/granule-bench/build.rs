//! Unrelated code for the program, in the amount of `GRANULE_BENCH_UNRELATED` (0 to 9, else none).
//!
//! The compiler lays out and inlines the same source in another way beside other code, and the program's time
//! follows. `cargo xtask bench` measures several builds and reports the worst. The code is kept by the linker
//! and never called. The first step has functions alone, each further one also the library's calls for
//! another size of page.

use std::fmt::Write as _;
use std::path::Path;

const VARIABLE: &str = "GRANULE_BENCH_UNRELATED";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    println!("cargo:rerun-if-changed=build.rs");
    let amount = std::env::var(VARIABLE).unwrap_or_default();
    let amount: u32 = if amount.is_empty() {
        0
    } else {
        amount.parse()?
    };
    if amount > 9 {
        return Err(format!("{VARIABLE} is {amount}, expected 0 to 9").into());
    }
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("unrelated.rs"), unrelated(amount))?;
    Ok(())
}

/// The source of that much code.
fn unrelated(amount: u32) -> String {
    let functions = 37 * amount;
    let mut text = String::new();
    for at in 0..functions {
        let (turn, factor) = (at % 61 + 1, 2 * at + 3);
        let _ = write!(
            text,
            "#[inline(never)] fn unrelated_{at}(value: u64) -> u64 {{ let mut value = value; "
        );
        for step in 0..=at % 7 {
            let _ = write!(
                text,
                "value = value.rotate_left({turn}).wrapping_mul({factor}) ^ (value >> {}); ",
                step + 1
            );
        }
        text += "value }\n";
    }
    let names: Vec<String> = (0..functions).map(|at| format!("unrelated_{at}")).collect();
    if functions > 0 {
        let _ = writeln!(
            text,
            "#[used] static FUNCTIONS: [fn(u64) -> u64; {functions}] = [{}];",
            names.join(", ")
        );
    }
    for (size, _) in ["Page16K", "Page64K"].iter().zip(1..amount) {
        let tree = format!("granule::table::PageTables<granule::arch::{size}, {size}Pages>");
        let name = size.to_lowercase();
        let _ = writeln!(
            text,
            "struct {size}Pages(granule::table::FreeList<granule::table::Offset>);\n\
             unsafe impl granule::table::TableEnvironment for {size}Pages {{\n\
             granule::forward!(self.0: reach allocate free);\n\
             fn invalidate(&mut self, _: granule::table::Maintenance) {{}} }}\n\
             #[inline(never)] fn {name}(tree: &mut {tree}, at: u64, bytes: u64) -> bool {{\n\
             use granule::arch::{{Attributes, Permissions, PhysicalAddress, VirtualAddress}};\n\
             use granule::table::{{Holes, Leaves, PermissionChange}};\n\
             let (start, all) = (VirtualAddress(at), Attributes::normal(Permissions::READ_WRITE));\n\
             tree.map(start, PhysicalAddress(at), bytes, all, Leaves::LARGEST).is_ok()\n\
             && tree.protect(start, bytes, PermissionChange {{ writable: Some(false), \
             ..PermissionChange::NONE }}, Holes::Skip).is_ok()\n\
             && tree.unmap(start, bytes).is_ok() }}\n\
             #[used] static {}: fn(&mut {tree}, u64, u64) -> bool = {name};",
            size.to_uppercase()
        );
    }
    text
}
