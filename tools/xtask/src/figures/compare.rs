//! Decides whether a document still agrees with a measurement. Pure.
//!
//! TLBIs, barriers, stores, tables and leaves must agree to the last digit: a difference is a change of the
//! code's behaviour. Instructions may differ a little, because the linker's placement of the kernel's parts
//! moves them: text and constants are read-only in the map and cut it, and the compiler lays out loops
//! anew. Wall-clock time and hashes are not compared.
//!
//! Instructions a leaf of the host benchmarks' jobs must agree to the last digit too: their columns are named
//! for a step, and the place of the code does not change them.

/// Instructions may differ by this part of the measured count …
const PART: f64 = 0.01;
/// … or by this many, whichever is more: for a block map a few hundred are more than one in a hundred.
const COUNT: f64 = 200.0;
/// Tolerance of ratios of instructions, one side of which may be a small map.
const RATIO_PART: f64 = 0.03;
/// Tolerance of percentages, in points.
const POINTS: f64 = 0.5;

/// The kind of figure in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Exact,
    Near,
    Any,
}

/// Words in the heads of columns with instructions or with values computed from them.
const NEAR: [&str; 8] = [
    "instructions",
    "shutdown",
    "relocation",
    "startup",
    "to up",
    "of bound",
    "lines",
    "page",
];

fn rule(head: &str) -> Rule {
    if head == "time" {
        Rule::Any
    } else if head != "pages" && head != "page size" && NEAR.iter().any(|word| head.contains(word))
    {
        Rule::Near
    } else {
        Rule::Exact
    }
}

/// A differing line: its distance from the first line, its text, and the measured text.
#[derive(Debug, PartialEq)]
pub(super) struct Difference {
    pub(super) below: usize,
    pub(super) found: String,
    pub(super) measured: String,
}

/// All differences between a block in a document and its new text.
pub(super) fn blocks(found: &str, measured: &str) -> Vec<Difference> {
    let mut differences = Vec::new();
    let (mut left, mut right) = (found.lines().enumerate(), measured.lines());
    let mut rules: Option<Vec<Rule>> = None;
    loop {
        let (a, b) = (left.next(), right.next());
        let (below, a, b) = match (a, b) {
            (None, None) => return differences,
            (Some((below, a)), Some(b)) => (below, a, b),
            (a, b) => {
                differences.push(Difference {
                    below: a.map_or(found.lines().count(), |(below, _)| below),
                    found: a.map_or("nothing", |(_, a)| a).to_owned(),
                    measured: b.unwrap_or("nothing").to_owned(),
                });
                return differences;
            }
        };
        let mut add = |found: &str, measured: &str| {
            differences.push(Difference {
                below,
                found: found.trim().to_owned(),
                measured: measured.trim().to_owned(),
            });
        };
        match (cells(a), cells(b)) {
            (Some(a), Some(b)) if a.len() == b.len() => {
                // The first line of a table is its head.
                let rules = rules.get_or_insert_with(|| b.iter().map(|head| rule(head)).collect());
                for ((a, b), rule) in a.iter().zip(&b).zip(rules) {
                    if !agree(a, b, *rule) {
                        add(a, b);
                    }
                }
            }
            _ if a == b || (is_hash(a) && is_hash(b)) => {
                // Lines that draw a table are part of it.
                if a.trim().chars().any(char::is_alphanumeric) || a.trim().is_empty() {
                    rules = None;
                }
            }
            // The frame of a table is as wide as the time in it, so its width may differ.
            (None, None) if is_frame(a) && is_frame(b) => (),
            _ => add(a, b),
        }
    }
}

/// Whether two figures agree; with `near`, within the tolerance of instructions.
pub(super) fn values(found: &str, measured: &str, near: bool) -> bool {
    agree(found, measured, if near { Rule::Near } else { Rule::Exact })
}

fn is_hash(line: &str) -> bool {
    line.contains("SHA-256")
}

fn is_frame(line: &str) -> bool {
    !line.is_empty() && !line.chars().any(char::is_alphanumeric)
}

/// The cells of a table's line, drawn in Markdown or with box characters.
fn cells(line: &str) -> Option<Vec<&str>> {
    let line = line.trim();
    let inside = line
        .strip_prefix(['|', '│'])
        .and_then(|line| line.strip_suffix(['|', '│']))?;
    Some(inside.split(['|', '│', '┆']).map(str::trim).collect())
}

fn agree(found: &str, measured: &str, rule: Rule) -> bool {
    if rule == Rule::Any || found == measured {
        return true;
    }
    let (Some(a), Some(b)) = (number(found), number(measured)) else {
        return false;
    };
    let same_form = form(found) == form(measured);
    rule == Rule::Near && same_form && (a - b).abs() <= room(measured, b)
}

/// A figure without its digits: sign, unit, words.
fn form(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_ascii_digit() && !",.+-".contains(*c))
        .collect()
}

fn room(text: &str, value: f64) -> f64 {
    if text.contains('%') {
        POINTS
    } else if text.contains('.') {
        RATIO_PART * value.abs()
    } else {
        (PART * value.abs()).max(COUNT)
    }
}

/// The number that a figure begins with.
fn number(text: &str) -> Option<f64> {
    let text = text.replace(',', "");
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c)))
        .unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "    granule bench\n\n| pages | instructions | TLBI | instructions / base |\n\
        | --- | ---: | ---: | ---: |\n| 4k | 10,010 | 15 | 0.1879 |\n";

    #[test]
    fn instructions_may_differ_a_little_and_nothing_else() {
        let with = |from: &str, to: &str| blocks(TABLE, &TABLE.replace(from, to));
        assert_eq!(with("", ""), []);
        assert_eq!(with("10,010", "10,151"), []);
        assert_eq!(with("0.1879", "0.1901"), []);
        for (from, to) in [
            ("10,010", "10,311"),
            ("10,010", "-"),
            (" 15 ", " 16 "),
            ("0.1879", "0.2000"),
            ("4k", "16k"),
        ] {
            let told = Difference {
                below: 4,
                found: from.trim().into(),
                measured: to.trim().into(),
            };
            assert_eq!(with(from, to), [told]);
        }
    }

    #[test]
    fn instructions_of_a_step_must_agree() {
        let table = "| 1 GiB in 4K leaves | map | protect |\n| --- | ---: | ---: |\n| granule | 1.6 | 73 |\n";
        assert_eq!(blocks(table, table), []);
        for (from, to) in [("1.6", "1.7"), ("73", "74")] {
            assert_eq!(blocks(table, &table.replace(from, to)).len(), 1, "{from}");
        }
    }

    #[test]
    fn a_line_more_or_less_is_a_difference() {
        let less = TABLE.replace("| 4k | 10,010 | 15 | 0.1879 |\n", "");
        assert_eq!(blocks(TABLE, &less)[0].measured, "nothing");
        assert_eq!(blocks(&less, TABLE)[0].found, "nothing");
        let other = TABLE.replace("granule bench", "granule plan");
        assert_eq!(blocks(TABLE, &other)[0].below, 0);
    }

    #[test]
    fn time_hash_and_frames_are_not_compared() {
        let drawn = |time: &str, dsb: u32, bar: &str| {
            format!(
                "┌──{bar}┐\n│ DSBs ┆ time │\n╞══{bar}╡\n│ {dsb} ┆ {time} │\n└─{bar}┘\nSHA-256 {time}\n"
            )
        };
        assert_eq!(
            blocks(&drawn("7 µs", 3, "─"), &drawn("12345 µs", 3, "──")),
            []
        );
        assert_eq!(
            blocks(&drawn("7 µs", 3, "─"), &drawn("7 µs", 4, "─")).len(),
            1
        );
    }

    #[test]
    fn figures_in_sentences_have_the_same_rules() {
        assert!(values("1,781,516", "1,781,653", true));
        assert!(!values("1,781,516", "1,781,653", false));
        assert!(values("+19.6 %", "+19.9 %", true));
        assert!(!values("+19.6 %", "+20.9 %", true));
        assert!(!values("1.8 M", "1.8 K", true));
    }
}
