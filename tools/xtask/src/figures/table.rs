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
    /// The cell of others; with `names` it is made for each of them, which replaces `NAME`.
    others: String,
    #[serde(default)]
    names: Vec<String>,
    granule: String,
    /// Who is ahead; computed if it is left out: less is better.
    ahead: Option<String>,
    /// The limits of the comparison.
    note: Option<String>,
}

/// A cell and its figures.
type Cell = (String, Vec<f64>);

/// Stands for a figure that was not measured.
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

/// The table of the text that calls of the library take, from the results of `text`.
pub(super) fn of_text(file: &Value) -> Result<String> {
    let rows = file["results"][0]["rows"].as_array();
    let rows = rows.context("no rows of text")?;
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | ").replace('"', ""));
    let column = |key: &str| line(rows.iter().map(|row| row[key].to_string()).collect());
    let rule = line(vec!["---".to_owned(); rows.len()]);
    Ok(column("what") + &rule + &column("bytes"))
}

impl Row {
    /// All cells but the first.
    pub(super) fn cells(&self, json: Option<&Value>) -> Result<[String; 3]> {
        let linux = ["Linux".to_owned()];
        let names = if self.names.is_empty() {
            &linux
        } else {
            self.names.as_slice()
        };
        let other = |name: &String| self.cell(&self.others.replace("NAME", name), json);
        let others = names.iter().map(other).collect::<Result<Vec<Cell>>>()?;
        let granule = self.cell(&self.granule, json)?;
        let ahead = match &self.ahead {
            Some(ahead) => ahead.clone(),
            None => ahead(names, &others, &granule),
        };
        let ahead = match &self.note {
            Some(note) if ahead != NONE => format!("{ahead}, {note}"),
            _ => ahead,
        };
        let mut others: Vec<String> = others.into_iter().map(|(text, _)| text).collect();
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
fn ahead(names: &[String], others: &[Cell], (_, granule): &Cell) -> String {
    let figures = names
        .iter()
        .zip(others)
        .flat_map(|(name, (_, figures))| figures.iter().map(move |it| (name, *it)));
    let least = figures.min_by(|a, b| a.1.total_cmp(&b.1));
    let (Some(&ours), Some((name, theirs))) = (granule.first(), least) else {
        return NONE.to_owned();
    };
    let is_near = (ours - theirs).abs() <= NEAR * theirs.abs();
    let barely = if is_near { ", barely" } else { "" };
    match ours < theirs {
        true => format!("Granule{barely}"),
        false => format!("**{name}**{barely}"),
    }
}

/// A number in a form: nothing for thousands divided by commas, `M` for millions, `.2` for that many decimals, a `+`
/// before them for a sign.
fn write(figure: f64, form: &str) -> Option<String> {
    if form == "M" {
        return Some(format!("{:.1} M", figure / 1e6));
    } else if form.is_empty() {
        let mut text = format!("{figure:.0}");
        for place in (1..text.len())
            .rev()
            .filter(|place| (text.len() - place).is_multiple_of(3))
            .collect::<Vec<_>>()
        {
            text.insert(place, ',');
        }
        return Some(text);
    }
    let decimals: usize = form
        .trim_start_matches('+')
        .strip_prefix('.')?
        .parse()
        .ok()?;
    let sign = if form.starts_with('+') && figure >= 0.0 {
        "+"
    } else {
        ""
    };
    Some(format!("{sign}{figure:.decimals$}"))
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
        let text = "what = 'TLBIs'\nrun = 'a'\nat = 'map'";
        toml::from_str(&format!(
            "{text}\nothers = '{others}'\ngranule = '{granule}'"
        ))
        .unwrap()
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
        let mut named = row("{NAME|.1} (NAME)", "{50}");
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
