//! The imports of one crate, read from its sources with a parser: `use` items, paths in code, and paths in
//! the arguments of macros.
//!
//! Test code is left out, because it may import anything. This file does not judge imports by layers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// One import: the importing module, the imported module, and the place in the source.
#[derive(Debug)]
pub(super) struct Import {
    /// Module paths without `crate`; the root is empty.
    pub(super) from: String,
    pub(super) to: String,
    file: PathBuf,
    line: usize,
    path: String,
}

impl fmt::Display for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            from,
            to,
            file,
            line,
            path,
        } = self;
        write!(f, "{from} ({}:{line}) -> {to} ({path})", file.display())
    }
}

/// The modules of a crate and the imports among them.
#[derive(Debug)]
pub(super) struct Modules {
    names: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
}

/// A path as written, and the module that it is written in.
struct Mention {
    module: String,
    file: PathBuf,
    line: usize,
    segments: Vec<String>,
}

impl Modules {
    /// Reads all files of a source folder.
    pub(super) fn read(source: &Path) -> Self {
        let mut files = Vec::new();
        collect(source, &mut files);
        let mut names = BTreeSet::from([String::new()]);
        let mut mentions = Vec::new();
        let mut reader = Reader::default();
        for path in files {
            let relative = path.strip_prefix(source).unwrap().to_owned();
            let module = module_of(&relative);
            let text = std::fs::read_to_string(&path).unwrap();
            let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{relative:?}: {e}"));
            if is_test(&parsed.attrs) {
                continue;
            }
            names.insert(module.clone());
            reader.file = relative;
            reader.module = module;
            reader.visit_file(&parsed);
            mentions.append(&mut reader.mentions);
        }
        // A module declared for tests only is test code with everything inside it.
        let tests = std::mem::take(&mut reader.tests);
        let is_test = |module: &str| {
            tests.iter().any(|test| {
                module
                    .strip_prefix(test.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            })
        };
        names.retain(|name| !is_test(name));
        mentions.retain(|mention| !is_test(&mention.module));
        let macros = std::mem::take(&mut reader.macros);
        let imports = mentions
            .into_iter()
            .filter_map(|it| resolve(it, &names, &macros))
            .collect();
        Self { names, imports }
    }

    /// The modules right below the root. Their children are files of their own or inline modules.
    pub(super) fn top_level(&self) -> BTreeSet<&str> {
        let tops = self.names.iter().map(|name| super::top(name));
        tops.filter(|name| !name.is_empty()).collect()
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
}

/// The module of a file: `a/b.rs` and `a/b/mod.rs` are `a::b`, `lib.rs` and `main.rs` the root.
fn module_of(file: &Path) -> String {
    let mut parts: Vec<_> = file
        .with_extension("")
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    let last = parts.last().map(String::as_str);
    if last == Some("mod") || (parts.len() == 1 && matches!(last, Some("lib" | "main"))) {
        parts.pop();
    }
    parts.join("::")
}

/// Whether attributes contain `#[cfg(test)]`, or `all(test, …)`.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Ok(list) = attribute.meta.require_list() else {
            return false;
        };
        let words = list.tokens.to_string();
        list.path.is_ident("cfg") && (words == "test" || words.starts_with("all (test"))
    })
}

/// The longest module that the path names, seen from the module that contains it. Paths into other crates
/// and local names lead nowhere.
fn resolve(
    mention: Mention,
    names: &BTreeSet<String>,
    macros: &BTreeMap<String, String>,
) -> Option<Import> {
    let Mention {
        module,
        file,
        line,
        segments,
    } = mention;
    let mut at: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let mut rest = segments.as_slice();
    match rest.first()?.as_str() {
        "crate" => {
            at.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|it| it == "super") {
                at.pop()?;
                rest = &rest[1..];
            }
        }
        // A child of this module, by its bare name.
        first => {
            let child = at
                .iter()
                .copied()
                .chain([first])
                .collect::<Vec<_>>()
                .join("::");
            if !names.contains(&child) {
                return None;
            }
        }
    }
    for segment in rest {
        let longer = at
            .iter()
            .copied()
            .chain([segment.as_str()])
            .collect::<Vec<_>>()
            .join("::");
        if !names.contains(&longer) {
            break;
        }
        at.push(segment);
    }
    // The language puts exported macros into the root, whatever module defines them.
    let is_macro = at.is_empty() && segments.len() == 2;
    let to = match segments.last().and_then(|name| macros.get(name)) {
        Some(home) if is_macro => home.clone(),
        _ => at.join("::"),
    };
    let path = segments.join("::");
    Some(Import {
        from: module,
        to,
        file,
        line,
        path,
    })
}

/// Visits a file and collects its paths.
#[derive(Default)]
struct Reader {
    file: PathBuf,
    /// The file's module: code in an inline module counts as the file's.
    module: String,
    mentions: Vec<Mention>,
    /// Exported macros, and the modules that define them.
    macros: BTreeMap<String, String>,
    /// Modules declared for tests only.
    tests: Vec<String>,
    /// The number of inline modules around the current place: `super` counts from there.
    depth: usize,
}

impl Reader {
    fn mention(&mut self, line: usize, segments: Vec<String>) {
        let supers = segments.iter().take_while(|it| *it == "super").count();
        // The path stays inside the file, or just leaves an inline module of it.
        if self.depth > 0
            && segments.first().is_some_and(|it| it != "crate")
            && supers <= self.depth
        {
            return;
        }
        self.mentions.push(Mention {
            module: self.module.clone(),
            file: self.file.clone(),
            line,
            segments: segments[if supers > 0 { self.depth } else { 0 }..].to_vec(),
        });
    }

    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.mention(name.span().start().line, with(&name.ident)),
            syn::UseTree::Rename(name) => self.mention(name.span().start().line, with(&name.ident)),
            syn::UseTree::Glob(glob) => self.mention(glob.span().start().line, before.to_vec()),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(before, tree);
                }
            }
        }
    }

    /// Macros take tokens, so a path in them is recognised by `crate`, `$crate`, `self` or `super` at its
    /// beginning.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(ident) => {
                    let line = ident.span().start().line;
                    let mut segments = vec![ident.to_string()];
                    while let Some((next, end)) = segment(&tokens, at + 1) {
                        segments.push(next);
                        at = end;
                    }
                    if segments.len() > 1 && ["crate", "super"].contains(&segments[0].as_str()) {
                        self.mention(line, segments);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// The `::name` at a place among tokens, and its end.
fn segment(tokens: &[TokenTree], at: usize) -> Option<(String, usize)> {
    match tokens.get(at..at + 3)? {
        [
            TokenTree::Punct(a),
            TokenTree::Punct(b),
            TokenTree::Ident(name),
        ] if a.as_char() == ':' && b.as_char() == ':' => Some((name.to_string(), at + 2)),
        _ => None,
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Mod(it) => &it.attrs,
            syn::Item::Fn(it) => &it.attrs,
            syn::Item::Use(it) => &it.attrs,
            syn::Item::Impl(it) => &it.attrs,
            syn::Item::Struct(it) => &it.attrs,
            syn::Item::Enum(it) => &it.attrs,
            syn::Item::Const(it) => &it.attrs,
            syn::Item::Static(it) => &it.attrs,
            syn::Item::Macro(it) => &it.attrs,
            _ => &[],
        };
        if let syn::Item::Macro(it) = item
            && let Some(name) = &it.ident
            && it.attrs.iter().any(|at| at.path().is_ident("macro_export"))
        {
            self.macros.insert(name.to_string(), self.module.clone());
        }
        if !is_test(attributes) {
            visit::visit_item(self, item);
        } else if let syn::Item::Mod(module) = item
            && module.content.is_none()
        {
            let name = module.ident.to_string();
            let parts = [self.module.as_str(), name.as_str()];
            let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            self.tests.push(parts.join("::"));
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.content.is_some() {
            self.depth += 1;
            visit::visit_item_mod(self, module);
            self.depth -= 1;
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path
            .segments
            .iter()
            .map(|it| it.ident.to_string())
            .collect();
        if segments.len() > 1 {
            self.mention(path.span().start().line, segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        visit::visit_macro(self, found);
        self.tokens(found.tokens.clone());
    }
}

/// A crate's files by module, for a test that checks what was read.
#[test]
fn files_are_modules() {
    let of = |file: &str| module_of(Path::new(file));
    let read: BTreeMap<_, _> = [
        "lib.rs",
        "main.rs",
        "a.rs",
        "a/mod.rs",
        "a/b.rs",
        "a/main.rs",
    ]
    .into_iter()
    .map(|file| (file, of(file)))
    .collect();
    assert_eq!(read["lib.rs"], "");
    assert_eq!(read["main.rs"], "");
    assert_eq!(
        (read["a.rs"].as_str(), read["a/mod.rs"].as_str()),
        ("a", "a")
    );
    assert_eq!(
        (read["a/b.rs"].as_str(), read["a/main.rs"].as_str()),
        ("a::b", "a::main")
    );
}
