//! The arrows between the rooms: who may use whom, and which crates from outside the two pure rooms may have.
//!
//! Read from `cargo metadata`; a dependency that is not drawn here is a defect. To draw a new arrow, change [`ARROWS`], the
//! table in `docs/contributing.md` and the picture in `docs/architecture.md` in one commit that says why.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// Room (folder) and the rooms it may depend on, to build and to run.
const ARROWS: [(&str, &[&str]); 13] = [
    ("wire", &[]),
    ("shm", &["wire"]),
    ("engine", &["shm", "wire"]),
    ("ffi", &[]),
    ("pmd", &["ffi", "wire"]),
    ("daemon", &["engine", "pmd", "shm", "wire"]),
    ("verbs", &["shm", "wire"]),
    ("verbs-c", &["verbs"]),
    ("cli", &["shm", "verbs", "wire"]),
    ("sim", &["engine", "shm", "verbs", "wire"]),
    ("fabric", &["pmd", "sim", "wire"]),
    ("bench", &["cli", "daemon", "engine", "pmd", "shm", "sim", "verbs", "wire"]),
    ("tests", &[]),
];

/// Rooms without I/O, and all that they may take from outside. Their tests, too, may use only the rooms below them:
/// whatever needs more is a test of the room above.
const PURE: [(&str, &[&str]); 2] = [("wire", &["crc32fast"]), ("engine", &[])];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Clone, Deserialize)]
struct Dependency {
    name: String,
    /// `None` is an ordinary dependency; else "build" or "dev".
    kind: Option<String>,
    /// Folder of a crate of this workspace.
    path: Option<PathBuf>,
}

impl Dependency {
    fn is_dev(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
}

/// The dependencies of one room: on rooms (by folder), and on crates from outside.
#[derive(Default)]
struct Room {
    inside: Vec<(String, Dependency)>,
    outside: Vec<Dependency>,
}

fn rooms() -> BTreeMap<String, Room> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).expect("cargo metadata is the JSON it is known for");

    let folder = |path: &Path| {
        path.strip_prefix(&metadata.workspace_root)
            .expect("a room lies in the workspace")
            .to_string_lossy()
            .into_owned()
    };
    let mut rooms = BTreeMap::new();
    for package in &metadata.packages {
        let mut room = Room::default();
        for dependency in &package.dependencies {
            match &dependency.path {
                Some(path) => room.inside.push((folder(path), dependency.clone())),
                None => room.outside.push(dependency.clone()),
            }
        }
        rooms.insert(folder(package.manifest_path.parent().expect("a manifest lies in a folder")), room);
    }
    rooms
}

/// What one room may not have, in sentences.
fn violations(name: &str, room: &Room) -> Vec<String> {
    let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == name) else {
        return vec![format!("{name} is not among the rooms; draw its arrows in tests/layering.rs")];
    };
    let pure = PURE.iter().find(|(room, _)| *room == name).map(|(_, crates)| *crates);
    let mut found = Vec::new();
    for (to, dependency) in &room.inside {
        if allowed.contains(&to.as_str()) || (dependency.is_dev() && pure.is_none()) {
            continue;
        }
        let kind = dependency.kind.as_deref().unwrap_or("normal");
        found.push(format!("{name} -> {to} ({kind} dependency); {name} may only use {allowed:?}"));
    }
    if let Some(crates) = pure {
        for dependency in room.outside.iter().filter(|d| !d.is_dev() && !crates.contains(&d.name.as_str())) {
            found.push(format!(
                "{name} is pure, yet depends on {}; from outside it may have {crates:?}",
                dependency.name
            ));
        }
    }
    found
}

#[test]
fn rooms_use_only_the_rooms_below_them() {
    let rooms = rooms();
    assert!(rooms.contains_key("wire") && rooms.contains_key("engine"), "no such rooms: {:?}", rooms.keys());
    let found: Vec<String> = rooms.iter().flat_map(|(name, room)| violations(name, room)).collect();
    assert!(found.is_empty(), "arrows that are not drawn:\n  {}", found.join("\n  "));
}

#[test]
fn contributors_are_told_the_same_arrows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/contributing.md");
    let text = fs::read_to_string(&path).expect("docs/contributing.md can be read");
    let (_, text) = text.split_once("## Rooms and arrows").expect("docs/contributing.md has a chapter on the arrows");
    let rooms = rooms();
    for name in rooms.keys() {
        let (_, allowed) = ARROWS.iter().find(|(from, _)| from == name).expect("the room has arrows");
        let start = format!("| `{name}` |");
        let row = text.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("docs/contributing.md has no row that starts with {start}"));
        let told: BTreeSet<&str> = row.split('|').nth(2).unwrap_or_default().split([',', ' ']).collect();
        let told: BTreeSet<&str> = told.into_iter().filter(|word| !word.is_empty() && *word != "none").collect();
        let drawn: BTreeSet<&str> = allowed.iter().copied().collect();
        // The row may leave out rooms that do not exist yet, and may not name others.
        let exist: BTreeSet<&str> = drawn.iter().copied().filter(|room| rooms.contains_key(*room)).collect();
        assert!(
            told.is_superset(&exist) && told.is_subset(&drawn),
            "{name} may use {drawn:?}, docs/contributing.md says {told:?}"
        );
    }
}

/// The check itself: a forbidden arrow of each sort is found, an allowed one is not.
#[test]
fn forbidden_arrows_are_found() {
    let dependency = |name: &str, kind: Option<&str>| Dependency {
        name: name.to_owned(),
        kind: kind.map(str::to_owned),
        path: None,
    };
    let inside = |to: &str, kind| Room { inside: vec![(to.to_owned(), dependency(to, kind))], outside: Vec::new() };
    let outside = |name: &str, kind| Room { inside: Vec::new(), outside: vec![dependency(name, kind)] };
    let cases = [
        ("engine", inside("shm", None), 0),
        ("engine", inside("pmd", None), 1),
        ("engine", inside("sim", Some("dev")), 1),
        ("engine", outside("nix", None), 1),
        ("engine", outside("cc", Some("build")), 1),
        ("engine", outside("proptest", Some("dev")), 0),
        ("wire", outside("crc32fast", None), 0),
        ("verbs", inside("engine", None), 1),
        ("verbs", inside("engine", Some("build")), 1),
        ("verbs", inside("daemon", Some("dev")), 0),
        ("verbs", outside("nix", None), 0),
        ("bench", inside("ffi", None), 1),
        ("attic", Room::default(), 1),
    ];
    for (name, room, count) in cases {
        let found = violations(name, &room);
        assert_eq!(found.len(), count, "{name}: {found:?}");
    }
}
