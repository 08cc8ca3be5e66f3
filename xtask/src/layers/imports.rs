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
    /// As written, seen from the module.
    path: String,
}

impl fmt::Display for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, .. } = self;
        let (file, line, path) = (self.file.display(), self.line, &self.path);
        write!(f, "{from} ({file}:{line}) -> {to} ({path})")
    }
}

/// The modules of a crate and the imports among them.
#[derive(Debug)]
pub(super) struct Modules {
    names: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
}

impl Modules {
    /// Reads all files of a source folder.
    pub(super) fn read(source: &Path) -> Self {
        let mut names = BTreeSet::from([String::new()]);
        let mut reader = Reader::default();
        for path in xtask::files::sources(source).unwrap() {
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
        }
        let Reader {
            mut imports,
            macros,
            tests,
            ..
        } = reader;
        // A module declared for tests only is test code with everything inside it.
        let is_test = |module: &str| {
            let mut around = std::iter::successors(Some(module), |&it| Some(super::parent(it)))
                .take_while(|it| !it.is_empty());
            around.any(|it| tests.contains(it))
        };
        names.retain(|name| !is_test(name));
        imports.retain_mut(|import| {
            let to = resolve(&import.from, &import.path, &names, &macros);
            import.to = to.clone().unwrap_or_default();
            to.is_some() && !is_test(&import.from)
        });
        Self { names, imports }
    }

    /// The modules right below the root. Their children are files of their own or inline modules.
    pub(super) fn top_level(&self) -> BTreeSet<&str> {
        let tops = self.names.iter().map(|name| super::top(name));
        tops.filter(|name| !name.is_empty()).collect()
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

fn inside(module: &str, name: &str) -> String {
    let parts = [module, name];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("::")
}

/// The longest module that the path names, seen from the module that contains it. Paths into other crates
/// and local names lead nowhere.
fn resolve(
    module: &str,
    path: &str,
    names: &BTreeSet<String>,
    macros: &BTreeMap<String, String>,
) -> Option<String> {
    let segments: Vec<&str> = path.split("::").collect();
    let (mut at, mut rest) = (module.to_owned(), &segments[..]);
    match segments[0] {
        "crate" => at.clear(),
        "self" | "super" => (),
        // A child of this module, by its bare name.
        first if !names.contains(&inside(module, first)) => return None,
        _ => (),
    }
    while let [first @ ("crate" | "self" | "super"), more @ ..] = rest {
        if *first == "super" {
            let own = Some(at).filter(|at| !at.is_empty())?;
            at = super::parent(&own).to_owned();
        }
        rest = more;
    }
    for segment in rest {
        let longer = inside(&at, segment);
        if !names.contains(&longer) {
            break;
        }
        at = longer;
    }
    // The language puts exported macros into the root, whatever module defines them.
    let is_macro = at.is_empty() && segments.len() == 2;
    let home = macros.get(segments[segments.len() - 1]);
    Some(home.filter(|_| is_macro).cloned().unwrap_or(at))
}

/// Visits a file and collects its paths.
#[derive(Default)]
struct Reader {
    file: PathBuf,
    /// The file's module: code in an inline module counts as the file's.
    module: String,
    imports: Vec<Import>,
    /// Exported macros, and the modules that define them.
    macros: BTreeMap<String, String>,
    /// Modules declared for tests only.
    tests: BTreeSet<String>,
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
        self.imports.push(Import {
            from: self.module.clone(),
            to: String::new(),
            file: self.file.clone(),
            line,
            path: segments[if supers > 0 { self.depth } else { 0 }..].join("::"),
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
            self.tests.insert(inside(&self.module, &name));
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

#[test]
fn files_are_modules() {
    for (file, module) in [
        ("lib.rs", ""),
        ("main.rs", ""),
        ("a.rs", "a"),
        ("a/mod.rs", "a"),
        ("a/b.rs", "a::b"),
        ("a/main.rs", "a::main"),
    ] {
        assert_eq!(module_of(Path::new(file)), module);
    }
}
