//! The tidiness of the tree, as far as a machine can see it: what `docs/contributing.md` asks of every file.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use source::Source;

mod source;

/// Crates that talk to C, to the hardware or to memory that another process maps; all others forbid `unsafe`.
const UNSAFE_ROOMS: [&str; 4] = ["ffi", "pmd", "shm", "verbs-c"];

const FILE_LINES_MAX: usize = 1000;
const FUNCTION_LINES_MAX: usize = 100;

/// How far above an ordering its comment may be. It may also be in the next line, between a store and its fence.
const ORDERING_COMMENT_LINES: usize = 6;

/// Names that say nothing of what is in a file.
const EMPTY_NAMES: [&str; 6] = ["common", "helper", "helpers", "manager", "util", "utils"];

/// What is left unfinished, as macros.
const UNFINISHED: [&str; 2] = ["todo", "unimplemented"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

impl Target {
    fn is(&self, kinds: &[&str]) -> bool {
        self.kind.iter().any(|kind| kinds.contains(&kind.as_str()))
    }
}

fn top() -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    top.canonicalize().expect("this package lies in the repository")
}

/// Folders of version control and of what builds and fuzzing leave.
const NOT_OURS: [&str; 3] = [".git", "artifacts", "target"];

/// Every file that belongs to the project.
fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![top()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository can be read") {
            let entry = entry.expect("an entry of a folder can be read");
            let (path, kind) = (entry.path(), entry.file_type().expect("an entry has a type"));
            if kind.is_file() {
                found.push(path);
            } else if kind.is_dir()
                && !NOT_OURS.iter().any(|name| entry.file_name() == *name)
                && !path.join("CACHEDIR.TAG").exists()
            {
                folders.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A path as people write it, from the top of the repository.
fn shown(path: &Path) -> String {
    path.strip_prefix(top()).unwrap_or(path).display().to_string()
}

fn source(path: &Path) -> Source {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", shown(path)));
    Source::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", shown(path)))
}

fn rust_files() -> Vec<(PathBuf, Source)> {
    let rust = files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|path| (path.clone(), source(&path))).collect()
}

/// The packages of one manifest's workspace.
fn packages(manifest: &Path) -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path"])
        .arg(manifest)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).expect("cargo metadata is the JSON it is known for");
    metadata.packages
}

/// The files that a crate root reaches by `mod`, itself included, and whether each is for tests only.
fn reached(root: &Path, test: bool) -> BTreeMap<PathBuf, bool> {
    let mut found = BTreeMap::new();
    let mut open = vec![(root.to_owned(), test)];
    while let Some((path, test)) = open.pop() {
        if found.insert(path.clone(), test).is_some() {
            continue;
        }
        let folder = path.parent().expect("a file lies in a folder");
        let stem = path.file_stem().expect("a file has a name");
        let children = if path == root || stem == "mod" { folder.to_owned() } else { folder.join(stem) };
        for module in source(&path).modules {
            let base = module.path.iter().fold(children.clone(), |base, name| base.join(name));
            let candidates = match &module.file {
                Some(file) => [folder.join(file), children.join(file)],
                None => [base.with_extension("rs"), base.join("mod.rs")],
            };
            // A module of another platform may have no file here: the compiler's business, not ours.
            let file = candidates.into_iter().find(|candidate| candidate.is_file());
            open.extend(file.map(|file| (file, test || module.test)));
        }
    }
    found
}

/// All files that some target of some package compiles, and whether they are for tests only.
fn compiled() -> BTreeMap<PathBuf, bool> {
    let mut manifests: BTreeSet<PathBuf> = files().into_iter().filter(|path| path.ends_with("Cargo.toml")).collect();
    let mut all = BTreeMap::new();
    while let Some(manifest) = manifests.pop_first() {
        for package in packages(&manifest) {
            manifests.remove(&package.manifest_path);
            // A target whose file is not there is the compiler's to complain about.
            for target in package.targets.iter().filter(|target| target.src_path.is_file()) {
                // The build script of ffi is named by a path with dots in it.
                let root = target.src_path.canonicalize().expect("a file that exists has a canonical path");
                for (path, test) in reached(&root, target.is(&["test", "bench"])) {
                    all.entry(path).and_modify(|only| *only &= test).or_insert(test);
                }
            }
        }
    }
    all
}

/// Rust files that ship, each with its source: not those for tests only.
fn production_files() -> Vec<(PathBuf, Source)> {
    let compiled = compiled();
    rust_files().into_iter().filter(|(path, _)| compiled.get(path) == Some(&false)).collect()
}

#[track_caller]
fn assert_none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

/// Runs a check of one source on every file, with the file's name before what it finds.
fn found_in(files: &[(PathBuf, Source)], check: Check) -> Vec<String> {
    assert!(files.len() > 20, "only {} files were looked at", files.len());
    let each = files.iter().flat_map(|(path, source)| check(source).into_iter().map(|what| (shown(path), what)));
    each.map(|(path, what)| format!("{path}:{what}")).collect()
}

/// Finds faults in one file: "line: what".
type Check = fn(&Source) -> Vec<String>;

/// Orderings that no comment above explains: one that names its partner (`PAIRS WITH`) or at least the ordering itself.
fn unexplained_orderings(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let explains = |line: &str, ordering: &str| {
        line.split_once("//").is_some_and(|(_, comment)| comment.contains("PAIRS WITH") || comment.contains(ordering))
    };
    let used = source.orderings.iter().filter(|ordering| !ordering.test);
    let bare = used.filter(|ordering| {
        let first = ordering.line.saturating_sub(ORDERING_COMMENT_LINES + 1);
        let near = &lines[first..lines.len().min(ordering.line + 1)];
        !near.iter().any(|line| explains(line, &ordering.text))
    });
    bare.map(|ordering| format!("{}: {}", ordering.line, ordering.text)).collect()
}

fn long_functions(source: &Source) -> Vec<String> {
    let functions = source.functions.iter().filter(|function| !function.test);
    let sized = functions.map(|function| (function, function.lines.end() + 1 - function.lines.start()));
    let long = sized.filter(|(_, count)| *count > FUNCTION_LINES_MAX);
    long.map(|(function, count)| format!("{}: {} has {count} lines", function.lines.start(), function.name)).collect()
}

/// Unfinished code and ignored tests, but for those that another test runs, as a process of their own.
fn unfinished(source: &Source) -> Vec<String> {
    let macros = source.macros.iter().filter(|word| UNFINISHED.contains(&word.text.as_str()));
    let ignored = source.attributes.iter().filter(|word| word.text == "ignore" || word.text.starts_with("ignore="));
    let never_run = ignored.filter(|word| !word.text.starts_with("ignore=\"runby"));
    macros.chain(never_run).map(|word| format!("{}: {}", word.line, word.text)).collect()
}

fn forbids_unsafe(source: &Source) -> bool {
    source.attributes.iter().any(|attribute| attribute.text == "forbid(unsafe_code)")
}

#[test]
fn crates_forbid_unsafe_code_or_are_named() {
    let mut found = Vec::new();
    for package in packages(&top().join("Cargo.toml")) {
        let room = package.manifest_path.parent().map(shown).unwrap_or_default();
        let shipped = package.targets.iter().filter(|target| target.is(&["lib", "bin", "example", "cdylib"]));
        let shipped = shipped.filter(|target| target.src_path.is_file());
        let open = shipped.filter(|target| !forbids_unsafe(&source(&target.src_path)));
        if !UNSAFE_ROOMS.contains(&room.as_str()) {
            found.extend(open.map(|target| shown(&target.src_path)));
        }
    }
    assert_none("crate roots without #![forbid(unsafe_code)]", &found);
}

#[test]
fn every_rust_file_is_compiled() {
    let compiled = compiled();
    let orphans = rust_files().into_iter().filter(|(path, _)| !compiled.contains_key(path));
    assert_none("files that no target reaches by mod", &orphans.map(|(path, _)| shown(&path)).collect::<Vec<_>>());
}

#[test]
fn orderings_are_explained() {
    let found = found_in(&production_files(), unexplained_orderings);
    assert_none("orderings without a PAIRS WITH comment in the lines above", &found);
}

#[test]
fn files_and_functions_are_short() {
    let files = production_files();
    let long = files.iter().map(|(path, source)| (path, source.production_line_count()));
    let long = long.filter(|(_, count)| *count > FILE_LINES_MAX);
    assert_none("files of too many lines", &long.map(|(path, n)| format!("{}: {n}", shown(path))).collect::<Vec<_>>());
    assert_none("functions of too many lines", &found_in(&files, long_functions));
}

#[test]
fn nothing_is_left_unfinished() {
    assert_none("unfinished code or ignored tests", &found_in(&rust_files(), unfinished));
}

#[test]
fn file_names_say_what_is_inside() {
    let named = files().into_iter().filter(|path| {
        let inside = path.strip_prefix(top()).unwrap_or(path).with_extension("");
        inside.iter().any(|part| EMPTY_NAMES.iter().any(|name| part == *name))
    });
    assert_none("names that say nothing", &named.map(|path| shown(&path)).collect::<Vec<_>>());
}

#[test]
fn no_path_of_one_machine_is_written_down() {
    let paths = ["work", "root", "home"].map(|folder| format!("/{folder}/"));
    let mut found = Vec::new();
    for path in files() {
        // Captures and fuzz inputs are not text.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let lines = text.lines().enumerate().filter(|(_, line)| paths.iter().any(|path| line.contains(path)));
        found.extend(lines.map(|(number, line)| format!("{}:{}: {}", shown(&path), number + 1, line.trim())));
    }
    assert_none("paths of one machine", &found);
}

/// The checks themselves, on a file that has one of each fault, and on its mended form.
#[test]
fn faults_are_found() {
    let long = |lines: usize| format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines));
    let far = format!("// PAIRS WITH: nothing near.\n{}", "f();\n".repeat(ORDERING_COMMENT_LINES));
    let cases: [(&str, String, Check, usize); 13] = [
        ("bare ordering", "fn f() { X.load(Ordering::Acquire); }".into(), unexplained_orderings, 1),
        ("import", "use Ordering::{Acquire, Release};".into(), unexplained_orderings, 0),
        ("relaxed", "fn f() { X.load(Ordering::Relaxed); }".into(), unexplained_orderings, 0),
        ("explained", "fn f() {\n// PAIRS WITH: `g`.\nX.load(Acquire); }".into(), unexplained_orderings, 0),
        ("too far above", format!("fn f() {{\n{far}X.load(Acquire); }}"), unexplained_orderings, 1),
        ("in a test", "#[cfg(test)] mod tests { fn f() { X.load(SeqCst); } }".into(), unexplained_orderings, 0),
        ("after a test", "#[test] fn t() {} fn f() { X.load(SeqCst); }".into(), unexplained_orderings, 1),
        ("long", long(FUNCTION_LINES_MAX), long_functions, 1),
        ("just short enough", long(FUNCTION_LINES_MAX - 2), long_functions, 0),
        ("long test", format!("#[test]\n{}", long(FUNCTION_LINES_MAX)), long_functions, 0),
        ("unfinished", format!("fn f() {{ {}!() }}", UNFINISHED[0]), unfinished, 1),
        ("a child", "#[test]\n#[ignore = \"run by the next test\"]\nfn child() {}".into(), unfinished, 0),
        ("ignored", "#[test]\n#[ignore = \"slow\"]\nfn t() { let s = \"todo!()\"; }".into(), unfinished, 1),
    ];
    for (name, text, check, count) in cases {
        let source = Source::parse(&text).expect("this is Rust");
        assert_eq!(check(&source).len(), count, "{name}: {text}");
    }
    assert!(forbids_unsafe(&Source::parse("//! A crate.\n#![forbid(unsafe_code)]").expect("this is Rust")));
    assert!(!forbids_unsafe(&Source::parse("// #![forbid(unsafe_code)]").expect("this is Rust")));
    let half_tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{}}}\n", long(20));
    assert_eq!(Source::parse(&half_tests).expect("this is Rust").production_line_count(), 2);
}
