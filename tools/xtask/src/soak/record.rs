//! The place in docs/reliability.md for the line of the last complete soak.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use xtask::files;

/// From the workspace's root.
pub(crate) const FILE: &str = "docs/reliability.md";

const MARK: &str = "<!-- soak: the line below is written by `cargo xtask soak --record` -->";

/// Replaces the line after the mark.
pub(crate) fn record(file: &Path, line: &str) -> Result<()> {
    let text =
        with_line(&files::text(file)?, line).with_context(|| format!("in {}", file.display()))?;
    files::write(file, text)
}

fn with_line(text: &str, line: &str) -> Result<String> {
    let (before, after) = text
        .split_once(MARK)
        .context("the mark for the soak line is gone")?;
    let mut rest = after.splitn(3, '\n');
    let (same, _old) = (rest.next().unwrap_or(""), rest.next());
    ensure!(
        same.is_empty(),
        "something follows the mark for the soak line on its own line"
    );
    let after = rest
        .next()
        .map_or(String::new(), |rest| format!("\n{rest}"));
    Ok(format!("{before}{MARK}\n{line}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::workspace::root;

    #[test]
    fn the_document_has_a_place_for_the_line() {
        let text = std::fs::read_to_string(root().join(FILE)).unwrap();
        let new = with_line(&text, "soak: 1 cases").unwrap();
        assert!(new.contains(&format!("{MARK}\nsoak: 1 cases\n")), "{new}");
        assert_eq!(new.lines().count(), text.lines().count());
        assert_eq!(with_line(&new, "soak: 1 cases").unwrap(), new);
        assert!(with_line("nothing", "x").is_err());
    }
}
