//! A System.map, or what `nm` prints of a vmlinux: lines `ADDRESS TYPE NAME`, as the kernel was
//! linked. A running kernel may lie elsewhere.

use crate::vmcoreinfo::Vmcoreinfo;

/// Address, type and name of each line that has them; other lines are passed over.
pub(super) fn lines(file: &str) -> impl Iterator<Item = (u64, char, &str)> {
    file.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
        let address = u64::from_str_radix(address, 16).ok()?;
        Some((address, kind.chars().next()?, name))
    })
}

/// The addresses of these symbols in the running kernel; `None` for one that the file does not have.
/// An error is one line, as [`moved`] has.
pub(super) fn find<const COUNT: usize>(
    file: &str,
    info: Vmcoreinfo<'_>,
    wanted: [&str; COUNT],
) -> Result<[Option<u64>; COUNT], String> {
    let by = moved(file, info)?;
    Ok(wanted.map(|name| linked(file, name).map(|address| address.wrapping_add(by))))
}

/// The bytes by which the running kernel lies above the addresses of the file, as a wrapping number.
/// An error is one line: the file or VMCOREINFO lacks the symbol by which the two are compared, or the file
/// belongs to another kernel.
pub(super) fn moved(file: &str, info: Vmcoreinfo<'_>) -> Result<u64, String> {
    let moved = |name: &str| -> Result<u64, String> {
        let linked =
            linked(file, name).ok_or_else(|| format!("the file of symbols has no {name}"))?;
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
    Ok(by)
}

/// The address of a symbol in the file.
fn linked(file: &str, wanted: &str) -> Option<u64> {
    lines(file).find_map(|(address, _, name)| (name == wanted).then_some(address))
}
