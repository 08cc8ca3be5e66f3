//! The reader of what `dtc -O dts` writes of a tree: each node, property and reservation has a line of its own there.
//! The meaning of properties does not belong here.

use anyhow::{Context, Result, bail, ensure};

/// A tree.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Start and bytes of each memory reservation.
    pub(super) reservations: Vec<(u64, u64)>,
    pub(super) root: Node,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// Empty for the root.
    pub(super) name: String,
    pub(super) properties: Vec<(String, Vec<u8>)>,
    pub(super) children: Vec<Node>,
}

/// Reads the text, and refuses a line that is none of these.
pub(super) fn read(text: &str) -> Result<Source> {
    let mut reservations = Vec::new();
    let mut open: Vec<Node> = Vec::new();
    let mut root = None;
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line == "/dts-v1/;" {
            continue;
        }
        if let Some(rest) = line.strip_prefix("/memreserve/") {
            let mut numbers = rest
                .trim_end_matches(';')
                .split_whitespace()
                .map(hexadecimal);
            let mut next = || numbers.next().context("a reservation is not two numbers")?;
            reservations.push((next()?, next()?));
        } else if let Some(name) = line.strip_suffix('{') {
            ensure!(root.is_none(), "a node follows the root");
            let name = name.trim();
            open.push(Node {
                name: if name == "/" { "" } else { name }.to_owned(),
                ..Node::default()
            });
        } else if line == "};" {
            let node = open.pop().context("a node ends that did not begin")?;
            match open.last_mut() {
                Some(parent) => parent.children.push(node),
                None => root = Some(node),
            }
        } else {
            let line = line.strip_suffix(';');
            let line = line.context("a property does not end on its line")?;
            let (name, value) = match line.split_once(" = ") {
                Some((name, text)) => (name, value(text).with_context(|| name.to_owned())?),
                None => (line, Vec::new()),
            };
            let node = open.last_mut().context("a property is in no node")?;
            node.properties.push((name.to_owned(), value));
        }
    }
    Ok(Source {
        reservations,
        root: root.context("it has no root")?,
    })
}

/// A value: strings, cells and bytes, with commas between them.
fn value(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        rest = if let Some(string) = rest.strip_prefix('"') {
            let end = string_bytes(string, &mut bytes)?;
            string.get(end..).unwrap_or_default()
        } else if let Some(cells) = rest.strip_prefix('<') {
            let (cells, after) = cells.split_once('>').context("cells do not end")?;
            for cell in cells.split_whitespace() {
                let number = u32::try_from(hexadecimal(cell)?).context("a cell is too large")?;
                bytes.extend(number.to_be_bytes());
            }
            after
        } else if let Some(list) = rest.strip_prefix('[') {
            let (list, after) = list.split_once(']').context("bytes do not end")?;
            for byte in list.split_whitespace() {
                bytes.push(u8::from_str_radix(byte, 16).context("a byte is no number")?);
            }
            after
        } else {
            bail!("a value begins with {:?}", rest.chars().next());
        };
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Ok(bytes)
}

/// Appends a string with its NUL, and returns the place behind its closing quote.
fn string_bytes(text: &str, bytes: &mut Vec<u8>) -> Result<usize> {
    let mut characters = text.char_indices();
    loop {
        let (at, character) = characters.next().context("a string does not end")?;
        match character {
            '"' => {
                bytes.push(0);
                return Ok(at + 1);
            }
            '\\' => {
                let (_, escaped) = characters.next().context("an escape does not end")?;
                bytes.push(match escaped {
                    '0' => 0,
                    'a' => 7,
                    'b' => 8,
                    't' => 9,
                    'n' => 10,
                    'v' => 11,
                    'f' => 12,
                    'r' => 13,
                    'x' => {
                        let digits: String = characters.by_ref().take(2).map(|it| it.1).collect();
                        u8::from_str_radix(&digits, 16).context("an escape is no number")?
                    }
                    other => u8::try_from(other).context("an escape is no byte")?,
                });
            }
            plain => bytes.extend(plain.to_string().into_bytes()),
        }
    }
}

fn hexadecimal(text: &str) -> Result<u64> {
    let digits = text.strip_prefix("0x");
    let digits = digits.with_context(|| format!("{text:?} is no hexadecimal number"))?;
    u64::from_str_radix(digits, 16).with_context(|| format!("{text:?} is no number"))
}
