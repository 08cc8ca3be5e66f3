//! The table of `docs/performance.md`: its rows from `figures.toml`, their figures from the stored results. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::path;

/// A row. Its cells are text with figures in braces: an expression of [`path::figure`], and after a bar how the
/// number is written ([`write`]).
#[derive(Debug, Deserialize)]
pub(super) struct Row {
    pub(super) what: String,
    /// The run whose results have the figures: the first command's.
    pub(super) run: Option<String>,
    /// The beginning of paths that begin with a dot.
    #[serde(default)]
    at: String,
    /// The cell of others; with `names` it is made once for each name, which replaces `%`.
    others: String,
    #[serde(default)]
    names: Vec<String>,
    granule: String,
    /// Who is ahead; computed if it is left out: less is better.
    ahead: Option<String>,
    /// What limits the comparison.
    note: Option<String>,
}

/// A cell and its figures.
type Cell = (String, Vec<f64>);

/// What stands for a figure that was not measured.
const NONE: &str = "–";

/// Of two figures that are as near as this nobody is far ahead.
const NEAR: f64 = 0.05;

/// The table; `results` has those of a run's first command, if they are stored.
pub(super) fn table(rows: &[Row], results: &BTreeMap<String, Value>) -> Result<String> {
    let mut text = "| what | others | Granule | ahead |\n| --- | ---: | ---: | --- |\n".to_owned();
    for row in rows {
        let json = row.run.as_ref().and_then(|run| results.get(run));
        let cells = row.cells(json).with_context(|| row.what.clone())?;
        text += &format!("| {} | {} |\n", row.what, cells.join(" | "));
    }
    Ok(text)
}

impl Row {
    /// All cells but the first.
    pub(super) fn cells(&self, json: Option<&Value>) -> Result<[String; 3]> {
        let mut others = Vec::new();
        if self.names.is_empty() {
            others.push(("Linux", self.cell(&self.others, json)?));
        }
        for name in &self.names {
            others.push((
                name.as_str(),
                self.cell(&self.others.replace('%', name), json)?,
            ));
        }
        let granule = self.cell(&self.granule, json)?;
        let ahead = match &self.ahead {
            Some(ahead) => ahead.clone(),
            None => ahead(&others, &granule),
        };
        let ahead = match &self.note {
            Some(note) if ahead != NONE => format!("{ahead}, {note}"),
            _ => ahead,
        };
        let mut others: Vec<String> = others.into_iter().map(|(_, (text, _))| text).collect();
        others.dedup();
        Ok([others.join(", "), granule.0, ahead])
    }

    /// Fills a cell in; without results that it needs it is a dash.
    fn cell(&self, template: &str, json: Option<&Value>) -> Result<Cell> {
        let (mut text, mut figures) = (String::new(), Vec::new());
        let mut parts = template.split('{');
        text += parts.next().unwrap_or_default();
        for part in parts {
            let (inside, rest) = part.split_once('}').context("a `{` without a `}`")?;
            let (expression, form) = inside.split_once('|').unwrap_or((inside, ""));
            let literal = expression.parse::<f64>().is_ok().then_some(&Value::Null);
            let Some(json) = json.or(literal) else {
                return Ok((NONE.to_owned(), Vec::new()));
            };
            let figure = path::figure(json, &self.at, expression)?;
            text += &write(figure, form).with_context(|| format!("no form `{form}`"))?;
            text += rest;
            figures.push(figure);
        }
        Ok((text, figures))
    }
}

/// Whose first figure is less, in bold if it is not Granule's.
fn ahead(others: &[(&str, Cell)], (_, granule): &Cell) -> String {
    let least =
        |(name, (_, figures)): &(_, Cell)| Some((*name, figures.iter().copied().reduce(f64::min)?));
    let others = others.iter().filter_map(least);
    let (Some(&ours), Some((name, theirs))) =
        (granule.first(), others.min_by(|a, b| a.1.total_cmp(&b.1)))
    else {
        return NONE.to_owned();
    };
    let barely = if (ours - theirs).abs() <= NEAR * theirs.abs() {
        ", barely"
    } else {
        ""
    };
    if ours < theirs {
        format!("Granule{barely}")
    } else {
        format!("**{name}**{barely}")
    }
}

/// A number in a form: nothing for thousands divided by commas, `M` for millions, `.2` for that many decimals, a `+`
/// before them for a sign.
fn write(figure: f64, form: &str) -> Option<String> {
    if form == "M" {
        return Some(format!("{:.1} M", figure / 1e6));
    }
    if form.is_empty() {
        return Some(grouped(figure.round() as u64));
    }
    let (signed, decimals) = match form.strip_prefix('+') {
        Some(rest) => (true, rest),
        None => (false, form),
    };
    let decimals: usize = decimals.strip_prefix('.')?.parse().ok()?;
    Some(if signed {
        format!("{figure:+.decimals$}")
    } else {
        format!("{figure:.decimals$}")
    })
}

/// A number with commas between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const BEGIN: &str = "<!-- figures -->\n";
const END: &str = "<!-- end -->";

/// The table in a document.
pub(super) fn within(document: &str) -> Result<&str> {
    let (_, rest) = document
        .split_once(BEGIN)
        .with_context(|| format!("no line `{}`", BEGIN.trim()))?;
    let (table, _) = rest
        .split_once(END)
        .with_context(|| format!("no line `{END}`"))?;
    Ok(table)
}

/// The document with another table.
pub(super) fn replace(document: &str, table: &str) -> Result<String> {
    let old = format!("{BEGIN}{}{END}", within(document)?);
    Ok(document.replacen(&old, &format!("{BEGIN}{table}{END}"), 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(others: &str, granule: &str) -> Row {
        Row {
            what: "TLBIs".to_owned(),
            run: Some("a".to_owned()),
            at: "map".to_owned(),
            others: others.to_owned(),
            names: Vec::new(),
            granule: granule.to_owned(),
            ahead: None,
            note: None,
        }
    }

    fn cells(row: &Row) -> [String; 3] {
        let json = json!({"map": {"tlbi": 1234, "dsb": 0.25}, "a": 96, "b": 3.4});
        row.cells(Some(&json)).unwrap()
    }

    #[test]
    fn the_lesser_figure_is_ahead() {
        for (others, granule, wanted) in [
            (
                "x {40e6|M}, y {16.7e6|M}",
                "{.tlbi} ({.dsb|+.1})",
                ["x 40.0 M, y 16.7 M", "1,234 (+0.2)", "Granule"],
            ),
            ("{100}", "{.tlbi}", ["100", "1,234", "**Linux**"]),
            ("{1200}", "{.tlbi}", ["1,200", "1,234", "**Linux**, barely"]),
            ("none", "{.tlbi}", ["none", "1,234", "–"]),
        ] {
            assert_eq!(cells(&row(others, granule)), wanted);
        }
        let mut named = row("{%|.1} (%)", "{50}");
        named.names = vec!["a".to_owned(), "b".to_owned()];
        named.note = Some("with less to do".to_owned());
        assert_eq!(
            cells(&named),
            ["96.0 (a), 3.4 (b)", "50", "**b**, with less to do"]
        );
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let rows = [row("{7}", "{.tlbi} ({.dsb|.1})")];
        let text = table(&rows, &BTreeMap::new()).unwrap();
        assert_eq!(text.lines().last(), Some("| TLBIs | 7 | – | – |"));
        let empty = BTreeMap::from([("a".to_owned(), json!({}))]);
        let error = format!("{:#}", table(&rows, &empty).unwrap_err());
        assert_eq!(error, "TLBIs: map.tlbi: no `map`");
    }

    #[test]
    fn only_the_table_of_a_document_is_replaced() {
        let document = "# A\n<!-- figures -->\nold\n<!-- end -->\nold\n";
        assert_eq!(within(document).unwrap(), "old\n");
        let new = replace(document, "new\n").unwrap();
        assert_eq!(new, "# A\n<!-- figures -->\nnew\n<!-- end -->\nold\n");
        assert!(within("# A\n").is_err());
    }
}
