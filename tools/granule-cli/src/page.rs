//! A page of HTML that needs nothing else: its style, its scripts and its data are in it. What a page shows is
//! made elsewhere, by `granule report` and by `--report` of `granule watch` and `granule check`.

use serde_json::Value;

pub(crate) const STYLE: &str = include_str!("inspect/report/page.css");
/// Words, elements and colours; first of the scripts of every page.
pub(crate) const COMMON: &str = include_str!("inspect/report/common.js");
/// Charts and tables.
pub(crate) const CHARTS: &str = include_str!("inspect/report/charts.js");

/// A page of this template with its scripts, in the order in which they use each other, and its data. Only the
/// template is searched for places to fill.
pub(crate) fn fill(template: &str, scripts: &[&str], data: &Value) -> String {
    let data = in_script(data);
    let script = scripts.concat();
    let length = template.len() + STYLE.len() + script.len() + data.len();
    let mut page = String::with_capacity(length);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        page.push_str(match name {
            "style" => STYLE,
            "data" => &data,
            "script" => &script,
            _ => "",
        });
        rest = after;
    }
    page.push_str(rest);
    page
}

/// JSON that cannot end the script element that it is in. `<` is in strings only.
fn in_script(data: &Value) -> String {
    data.to_string().replace('<', "\\u003c")
}

/// Text for people out of foreign bytes: without characters that are not seen, or that change the order
/// of others.
pub(crate) fn visible(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let mut shown = String::new();
    for c in text.chars() {
        match hidden(c) {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
    }
    shown
}
