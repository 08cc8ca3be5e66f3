//! A System.map, or what `nm` prints of a vmlinux: lines `ADDRESS TYPE NAME`, as the kernel was
//! linked. A running kernel may lie elsewhere.

use crate::vmcoreinfo::Vmcoreinfo;

/// The addresses of these symbols in the running kernel; `None` for one that the file does not have.
///
/// # Errors
///
/// One line: the file or VMCOREINFO lacks the symbol by which the two are compared, or the file
/// belongs to another kernel.
pub(super) fn find<const COUNT: usize>(
    file: &str,
    info: Vmcoreinfo<'_>,
    wanted: [&str; COUNT],
) -> Result<[Option<u64>; COUNT], String> {
    let linked = |wanted: &str| {
        file.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let (address, _, name) = (words.next()?, words.next()?, words.next()?);
            (name == wanted).then(|| u64::from_str_radix(address, 16).ok())?
        })
    };
    let moved = |name: &str| -> Result<u64, String> {
        let linked = linked(name).ok_or_else(|| format!("the file of symbols has no {name}"))?;
        let running = info.symbol(name);
        let running = running.ok_or_else(|| format!("VMCOREINFO has no SYMBOL({name})"))?;
        Ok(running.wrapping_sub(linked))
    };
    let by = moved("_stext")?;
    if moved("swapper_pg_dir") != Ok(by) {
        return Err(
            "the file of symbols belongs to another kernel: swapper_pg_dir lies elsewhere".into(),
        );
    }
    Ok(wanted.map(|name| linked(name).map(|address| address.wrapping_add(by))))
}
