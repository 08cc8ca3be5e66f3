//! Shortens lines for people: clap's error about a command line, which takes several paragraphs, and lines that
//! repeat a long value.

use std::borrow::Cow;

use clap::error::ErrorKind;

/// The most characters of a line that are printed from its begin, and from its end, where the remedy is.
const HEAD: usize = 700;
const TAIL: usize = 300;

/// The line without the middle of what is too long to be read: a value that somebody pasted, a table's text.
pub fn bounded(line: &str) -> Cow<'_, str> {
    let count = line.chars().count();
    let Some(more @ 1..) = count.checked_sub(HEAD + TAIL) else {
        return line.into();
    };
    let head: String = line.chars().take(HEAD).collect();
    let tail: String = line.chars().skip(count - TAIL).collect();
    format!("{head} ... ({more} characters more) ... {tail}").into()
}

/// The line, or `None` for output that was requested (help, the version).
pub fn line(error: &clap::Error) -> Option<String> {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return None;
    }
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ")
    });
    let what = paragraphs.next().unwrap_or_default();
    let mut line = what.strip_prefix("error: ").unwrap_or(&what).to_owned();
    for paragraph in paragraphs {
        // The hint to `--help` is the same for every error, and the usage is in the help.
        if paragraph.starts_with("tip: ") || paragraph.starts_with('[') {
            line += &format!("; {paragraph}");
        }
    }
    line += "; see --help for more";
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    fn shortened(words: &[&str]) -> Option<String> {
        let argv = ["granule"].iter().chain(words);
        line(&Cli::try_parse_from(argv).unwrap_err())
    }

    #[test]
    fn each_kind_of_bad_usage_is_one_line_with_what_to_do() {
        for (words, parts) in [
            (
                &["boot", "--page-size", "5k"][..],
                &["'5k'", "--page-size", "4k, 16k, 64k"][..],
            ),
            (
                &["boot", "--memory", "4096"],
                &["--memory", "has no unit", "512M"],
            ),
            (&["boot", "--memroy", "4G"], &["--memroy", "'--memory'"]),
            (&["boot", "--nonsense"], &["--nonsense"]),
            (&["boot", "--smp"], &["--smp"]),
            (&["check"], &["<FILE>"]),
            (&["check", "--bbm", "4", "x"], &["--bbm", "0..=3"]),
            (&["plan"], &["--memory"]),
            (&["plan", "--check-model", "--json"], &["--check-model"]),
            (&["bench", "linear-map", "--memory", "4G,"], &["--memory"]),
            (&["bench", "permissions", "--timeout", "0"], &["--timeout"]),
            (&["nonsense"], &["nonsense"]),
        ] {
            let line = shortened(words).unwrap();
            assert_eq!(line.lines().count(), 1, "{line:?}");
            assert!(!line.contains('\x1b') && !line.contains("Usage"), "{line}");
            assert!(line.ends_with("see --help for more"), "{line}");
            for part in parts {
                assert!(line.contains(part), "{words:?}: {part}: {line}");
            }
        }
    }

    #[test]
    fn a_long_line_keeps_its_begin_and_its_end() {
        let line = format!(
            "the value {:?} is bad: give another",
            "ä".repeat(HEAD + TAIL)
        );
        let shown = bounded(&line);
        assert!(
            shown.starts_with("the value \"ää") && shown.ends_with("ää\" is bad: give another")
        );
        assert!(shown.contains(" ... (33 characters more) ... "), "{shown}");
        assert_eq!(bounded("short"), "short");
    }

    #[test]
    fn help_is_not_bad_usage() {
        for words in [&["--help"][..], &["boot", "-h"], &["--version"], &[]] {
            assert_eq!(shortened(words), None, "{words:?}");
        }
    }
}
