//! The markers in a document and the text between them. Pure: no file is read or written here.
//!
//! There are three kinds, all HTML comments, which no reader of the rendered page sees:
//!
//! - `<!-- measured -->` … `<!-- end -->`: the line that says which commit was measured.
//! - `<!-- figures: NAME -->` … `<!-- end -->`: a block, whole lines.
//! - `<!-- = NAME -->`…`<!-- / -->`: one figure within a line.

use anyhow::{Result, bail};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Measured,
    Block,
    Value,
}

/// A pair of markers and the text between them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Marker<'a> {
    pub(super) kind: Kind,
    /// Which block or figure; empty for [`Kind::Measured`].
    pub(super) name: &'a str,
    pub(super) body: &'a str,
    /// The line of the document that the body begins in, from 1.
    pub(super) line: usize,
    /// Where the body begins in the document.
    at: usize,
}

const OPEN: &str = "<!-- ";
const CLOSE: &str = " -->";

/// All markers, in the document's order.
pub(super) fn markers(text: &str) -> Result<Vec<Marker<'_>>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(OPEN).map(|offset| at + offset) {
        let line = 1 + text[..start].matches('\n').count();
        let inner = start + OPEN.len();
        let Some(length) = text[inner..].find(CLOSE) else {
            bail!("line {line}: a comment without `-->`");
        };
        let words = &text[inner..inner + length];
        let mut body = inner + length + CLOSE.len();
        let (kind, name, end) = if words == "measured" {
            (Kind::Measured, "", "<!-- end -->")
        } else if let Some(name) = words.strip_prefix("figures: ") {
            (Kind::Block, name, "<!-- end -->")
        } else if let Some(name) = words.strip_prefix("= ") {
            (Kind::Value, name, "<!-- / -->")
        } else if words == "end" || words == "/" {
            bail!("line {line}: `<!-- {words} -->` without a beginning");
        } else {
            // Some other comment.
            at = body;
            continue;
        };
        if kind != Kind::Value && text[body..].starts_with('\n') {
            body += 1;
        }
        let Some(length) = text[body..].find(end) else {
            bail!("line {line}: `<!-- {words} -->` has no `{end}`");
        };
        let marker = Marker {
            kind,
            name,
            body: &text[body..body + length],
            line: 1 + text[..body].matches('\n').count(),
            at: body,
        };
        if marker.body.contains(OPEN) || (kind == Kind::Value && marker.body.contains('\n')) {
            bail!("line {line}: `<!-- {words} -->` has no `{end}` before the next marker");
        }
        at = body + length + end.len();
        found.push(marker);
    }
    Ok(found)
}

/// The document with the bodies replaced for which `new` has a text.
pub(super) fn rewrite(
    text: &str,
    mut new: impl FnMut(&Marker) -> Result<Option<String>>,
) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for marker in markers(text)? {
        if let Some(body) = new(&marker)? {
            out.push_str(&text[copied..marker.at]);
            out.push_str(&body);
            copied = marker.at + marker.body.len();
        }
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A\n<!-- measured -->\nold\n<!-- end -->\n<!-- a remark -->\n\
        Takes <!-- = tlbi -->7<!-- / --> and <!-- = dsb -->8<!-- / -->.\n\
        <!-- figures: map -->\n| a |\n| b |\n<!-- end -->\n";

    #[test]
    fn markers_are_found_with_their_lines() {
        let all = markers(TEXT).unwrap();
        let told: Vec<_> = all
            .iter()
            .map(|m| (m.kind, m.name, m.body, m.line))
            .collect();
        assert_eq!(
            told,
            [
                (Kind::Measured, "", "old\n", 3),
                (Kind::Value, "tlbi", "7", 6),
                (Kind::Value, "dsb", "8", 6),
                (Kind::Block, "map", "| a |\n| b |\n", 8),
            ]
        );
    }

    #[test]
    fn only_what_is_new_is_replaced() {
        let text = rewrite(TEXT, |marker| {
            Ok((marker.name == "dsb").then(|| "3".to_owned()))
        });
        assert_eq!(text.unwrap(), TEXT.replace(">8<", ">3<"));
        assert_eq!(rewrite(TEXT, |_| Ok(None)).unwrap(), TEXT);
    }

    #[test]
    fn an_unclosed_marker_is_told_with_its_line() {
        for (text, told) in [
            ("\n<!-- = a -->7", "line 2"),
            ("<!-- = a -->7\n<!-- / -->", "before the next marker"),
            (
                "<!-- figures: a -->\n<!-- figures: b -->\n<!-- end -->",
                "line 1",
            ),
            ("a\n\n<!-- end -->", "line 3"),
            ("<!-- / -->", "without a beginning"),
            ("<!-- figures: a", "without `-->`"),
        ] {
            let error = markers(text).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
