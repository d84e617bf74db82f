//! Finds for each source file of a crate the files whose items it uses, and finds circles among the files.
//!
//! The tests of both packages use this module. The module reads the text of the sources: `use` lines, and paths such as
//! `super::pool::Pool` in the code. An item that a module re-exports counts as an item of the file that defines the
//! item. Methods, macros and the code of unit tests are not considered.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a helper of a test may fail the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// Files, each with the files whose items it uses. The paths are relative to the folder of the sources.
pub(crate) type Imports = BTreeMap<String, BTreeSet<String>>;

/// Returns the imports among the files of a crate. `root` is the first file of the crate, such as `src/lib.rs`.
pub(crate) fn imports(root: &Path) -> Imports {
    let mut crate_ = Crate { folder: root.parent().unwrap().to_owned(), modules: BTreeMap::new() };
    crate_.read(Vec::new(), root, root.parent().unwrap());
    let files = crate_.modules.iter();
    files.map(|(path, module)| (module.file.clone(), crate_.used_by(path, module))).collect()
}

/// Returns the circles among files or modules. A circle is a list of files that use items of each other, directly or
/// through other files of the list.
pub(crate) fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|file| (file, reach(imports, file))).collect();
    let mut circles = BTreeSet::new();
    for (file, its) in &reached {
        if its.contains(file) {
            let with_file = its.iter().filter(|other| reached.get(**other).is_some_and(|its| its.contains(file)));
            circles.insert(with_file.map(|other| (*other).clone()).collect());
        }
    }
    circles.into_iter().collect()
}

/// Returns the imports among the modules of each folder. A module is a file together with the folder of its submodules.
pub(crate) fn between_modules(imports: &Imports) -> Imports {
    let mut between = Imports::new();
    for (file, used) in imports {
        for other in used {
            let (mine, its) = (module_of(file), module_of(other));
            let shared = mine.iter().zip(&its).take_while(|(a, b)| a == b).count();
            // One of the two files is the parent module of the other.
            if shared == mine.len() || shared == its.len() {
                continue;
            }
            let name = |module: &[&str]| module[..=shared].join("/");
            between.entry(name(&mine)).or_default().insert(name(&its));
            between.entry(name(&its)).or_default();
        }
    }
    between
}

/// Returns all files whose items a file uses, directly or through other files.
fn reach<'i>(imports: &'i Imports, file: &str) -> BTreeSet<&'i String> {
    let (mut found, mut next) = (BTreeSet::new(), vec![file]);
    while let Some(file) = next.pop() {
        for other in imports.get(file).into_iter().flatten() {
            if found.insert(other) {
                next.push(other);
            }
        }
    }
    found
}

fn module_of(file: &str) -> Vec<&str> {
    file.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect()
}

struct Crate {
    folder: PathBuf,
    /// The modules, by path without `crate`.
    modules: BTreeMap<Vec<String>, Module>,
}

#[derive(Default)]
struct Module {
    file: String,
    /// The words and signs of the code, without comments, strings and unit tests.
    tokens: Vec<String>,
    /// Each name that a `use` line brings into scope, with its path.
    names: BTreeMap<String, Vec<String>>,
    /// Paths of modules from which `use` lines import all items.
    globs: Vec<Vec<String>>,
    /// The names that `pub use` lines give to items of other modules.
    passed_on: BTreeSet<String>,
}

// === impl Crate ===

impl Crate {
    fn read(&mut self, path: Vec<String>, file: &Path, folder: &Path) {
        let tokens = without_tests(tokens(&fs::read_to_string(file).unwrap()));
        let name = file.strip_prefix(&self.folder).unwrap().to_str().unwrap().to_owned();
        let mut module = Module { file: name, tokens, ..Module::default() };
        let mut children = Vec::new();
        let mut rest = Vec::new();
        let mut at = 0;
        while let Some(token) = module.tokens.get(at) {
            let text = |at: usize| module.tokens.get(at).map_or("", String::as_str);
            if token == "mod" && text(at + 2) == ";" {
                children.push(text(at + 1).to_owned());
                at += 3;
            } else if token == "use" {
                let is_public = text(at.wrapping_sub(1)) == "pub" || text(at.wrapping_sub(1)) == ")";
                let end = at + module.tokens[at..].iter().position(|token| token == ";").unwrap();
                let mut leaves = Vec::new();
                use_tree(&module.tokens[at + 1..end], &mut 0, &[], &mut leaves);
                for (name, path) in leaves {
                    if name == "*" {
                        module.globs.push(path);
                        continue;
                    }
                    if is_public {
                        module.passed_on.insert(name.clone());
                    }
                    module.names.insert(name, path);
                }
                at = end + 1;
            } else {
                rest.push(token.clone());
                at += 1;
            }
        }
        module.tokens = rest;
        self.modules.insert(path.clone(), module);
        for child in children {
            let flat = folder.join(format!("{child}.rs"));
            let file = if flat.exists() { flat } else { folder.join(&child).join("mod.rs") };
            let path = path.iter().cloned().chain([child.clone()]).collect();
            self.read(path, &file, &folder.join(child));
        }
    }

    fn used_by(&self, at: &[String], module: &Module) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        let of_child = |path: &[String]| path.first().is_some_and(|first| self.modules.contains_key(&child(at, first)));
        for (name, path) in &module.names {
            // A module that only re-exports items of its submodules does not use these items.
            if module.passed_on.contains(name) && of_child(path) {
                continue;
            }
            // An import of a module uses no item of the module. The loop below finds the paths in the code that begin
            // with the name of the module.
            used.extend(self.find(at, path, 0).filter(|(_, is_item)| *is_item).map(|(file, _)| file));
        }
        used.extend(module.globs.iter().filter_map(|path| Some(self.find(at, path, 0)?.0)));
        for (path, is_call) in paths(&module.tokens) {
            match self.find(at, &path, 0) {
                Some((file, true)) => drop(used.insert(file)),
                // The path names a module and also a function. The code calls the function.
                Some((_, false)) if is_call => {
                    used.extend(self.find(at, &path[..path.len() - 1], 0).map(|(file, _)| file));
                }
                _ => {}
            }
        }
        used.remove(&module.file);
        used
    }

    /// Resolves a path in a module. If the path names an item, returns the file that defines the item, and `true`. If
    /// the path names a module, returns the file of this module, and `false`. `None`: the path names an item of another
    /// crate, or nothing that this function knows.
    fn find(&self, at: &[String], path: &[String], depth: usize) -> Option<(String, bool)> {
        let mut rest = path;
        let mut current = at.to_vec();
        let mut is_relative = true;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" => current.clear(),
                "self" => {}
                "super" => drop(current.pop()?),
                _ => break,
            }
            (rest, is_relative) = (others, false);
        }
        if depth > 20 {
            return None;
        }
        let mut is_first = is_relative;
        while let Some((first, others)) = rest.split_first() {
            let module = self.modules.get(&current)?;
            let inner = child(&current, first);
            if self.modules.contains_key(&inner) {
                current = inner;
            } else if let Some(meant) = module.names.get(first) {
                let meant: Vec<String> = meant.iter().chain(others).cloned().collect();
                return self.find(&current, &meant, depth + 1);
            } else if is_first {
                return None;
            } else {
                let of_glob = module.globs.iter().find_map(|glob| {
                    let meant: Vec<String> = glob.iter().chain(rest).cloned().collect();
                    self.find(&current, &meant, depth + 1)
                });
                return Some(of_glob.unwrap_or_else(|| (module.file.clone(), true)));
            }
            (rest, is_first) = (others, false);
        }
        Some((self.modules.get(&current)?.file.clone(), false))
    }
}

fn child(of: &[String], name: &str) -> Vec<String> {
    of.iter().cloned().chain([name.to_owned()]).collect()
}

/// Adds each name of a `use` line with its path. The name is `*` for all items of a module.
fn use_tree(tokens: &[String], at: &mut usize, prefix: &[String], leaves: &mut Vec<(String, Vec<String>)>) {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        match token.as_str() {
            "::" => {}
            "{" => {
                while tokens.get(*at).is_some_and(|token| token != "}") {
                    use_tree(tokens, at, &path, leaves);
                    if tokens.get(*at).is_some_and(|token| token == ",") {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            "*" => return leaves.push(("*".to_owned(), path)),
            "as" => {
                let name = tokens[*at].clone();
                *at += 1;
                return leaves.push((name, path));
            }
            "self" if !prefix.is_empty() && path.len() == prefix.len() => {}
            word => path.push(word.to_owned()),
        }
        if tokens.get(*at).is_none_or(|token| token == "," || token == "}") {
            break;
        }
    }
    leaves.extend(path.last().cloned().map(|name| (name, path)));
}

/// Returns each path of several words in the code, and whether the code calls the path as a function.
fn paths(tokens: &[String]) -> Vec<(Vec<String>, bool)> {
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let mut path = Vec::new();
        let follows_path = at > 0 && (tokens[at - 1] == "::" || tokens[at - 1] == ".");
        while tokens.get(at).is_some_and(|token| is_word(token)) {
            path.push(tokens[at].clone());
            at += 1;
            if tokens.get(at).is_none_or(|token| token != "::") {
                break;
            }
            at += 1;
        }
        if path.len() > 1 && !follows_path {
            paths.push((path, tokens.get(at).is_some_and(|token| token == "(")));
        }
        if !tokens.get(at).is_some_and(|token| is_word(token)) || at == 0 {
            at += 1;
        }
    }
    paths
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the words, `::` and single signs of a text. Comments, strings, characters and lifetimes are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    flatten(text.parse().unwrap(), &mut tokens);
    tokens
}

fn flatten(stream: TokenStream, tokens: &mut Vec<String>) {
    let mut trees = stream.into_iter();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                tokens.push(open.to_owned());
                flatten(group.stream(), tokens);
                tokens.push(close.to_owned());
            }
            TokenTree::Ident(word) => tokens.push(word.to_string()),
            // This sign begins a lifetime or `::`.
            TokenTree::Punct(sign) if matches!(sign.as_char(), '\'' | ':') && sign.spacing() == Spacing::Joint => {
                trees.next();
                if sign.as_char() == ':' {
                    tokens.push("::".to_owned());
                }
            }
            TokenTree::Punct(sign) => tokens.push(sign.to_string()),
            TokenTree::Literal(_) => {}
        }
    }
}

/// Removes the items that only unit tests have.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    let (mut kept, mut at) = (Vec::new(), 0);
    let of_tests = ["#", "[", "cfg", "(", "test", ")", "]"];
    while at < tokens.len() {
        if tokens[at..].iter().zip(of_tests).filter(|(token, other)| *token == other).count() != of_tests.len() {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += of_tests.len();
        let mut depth = 0;
        while at < tokens.len() {
            match tokens[at].as_str() {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            at += 1;
            if depth == 0 && matches!(tokens[at - 1].as_str(), "}" | ";") {
                break;
            }
        }
    }
    kept
}
