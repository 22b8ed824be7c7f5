//! Rules of the house that can be checked by reading the files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

/// Most lines of a Rust file.
const LINES_MAX: usize = 500;

/// Which crates of the workspace each crate may use in its product code.
///
/// Dependencies point one way: cli -> {gateway, lab} -> {text, wire, engine, records, enginesim} -> core.
const MAY_USE: &[(&str, &[&str])] = &[
    ("agent", &[]),
    ("core", &[]),
    ("wire", &[]),
    ("text", &["core", "wire"]),
    ("engine", &["core", "wire"]),
    ("records", &["core"]),
    ("zmtp", &[]),
    ("enginesim", &["core", "wire", "zmtp"]),
    ("lab", &["core", "enginesim", "records", "text", "wire"]),
    (
        "gateway",
        &["core", "engine", "records", "text", "wire", "zmtp"],
    ),
    (
        "cli",
        &[
            "agent",
            "core",
            "engine",
            "enginesim",
            "gateway",
            "lab",
            "records",
            "text",
            "wire",
        ],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Every file of the repository that is not built, fetched or hidden (`.ci` is looked at).
fn files() -> Vec<PathBuf> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        let skipped = [
            "target",
            "node_modules",
            "__pycache__",
            "proptest-regressions",
        ];
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            if skipped.contains(&name.as_str()) || name.starts_with('.') && name != ".ci" {
                continue;
            }
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                walk(&entry.path(), found);
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found
}

fn rust_files() -> Vec<(String, String)> {
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "rs");
    files()
        .into_iter()
        .filter(is_rust)
        .map(|path| (shown(&path), read(&path)))
        .collect()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()
}

fn assert_none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn files_fit_in_a_head() {
    let long: Vec<String> = rust_files()
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|&(_, lines)| lines > LINES_MAX)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert_none("Rust files of more than 500 lines", &long);
}

#[test]
fn names_say_what_a_thing_is() {
    let empty = [
        "utils", "util", "helpers", "helper", "manager", "common", "misc",
    ];
    let mut found = Vec::new();
    for path in files() {
        let shown = shown(&path);
        let parts = shown.split(['/', '.']);
        found.extend(
            parts
                .filter(|part| empty.contains(part))
                .map(|part| format!("{shown}: {part}")),
        );
    }
    for (path, text) in rust_files() {
        for line in text.lines() {
            let mut words = line
                .split_whitespace()
                .skip_while(|word| word.starts_with("pub"));
            let declared = match words.next() {
                Some("mod" | "struct" | "enum" | "trait") => words.next().unwrap_or_default(),
                _ => continue,
            };
            let name = declared.trim_end_matches(['{', ';', '(']).to_lowercase();
            if empty.iter().any(|word| name == *word) || name.ends_with("manager") {
                found.push(format!("{path}: {}", line.trim()));
            }
        }
    }
    assert_none("names that say nothing", &found);
}

/// The scheduler and the formats take time, chance and bytes as arguments.
#[test]
fn the_core_cannot_name_a_clock() {
    let banned = [
        "std::time",
        "Instant::now",
        "SystemTime",
        "thread_rng",
        "std::net",
        "std::fs",
        "std::thread",
        "std::env",
        "std::collections::HashMap",
        "RandomState",
        "tokio::",
    ];
    let mut found = Vec::new();
    let pure =
        |path: &str| path.starts_with("crates/core/src") || path.starts_with("crates/wire/src");
    let files: Vec<_> = rust_files()
        .into_iter()
        .filter(|(path, _)| pure(path))
        .collect();
    let tests: Vec<String> = files
        .iter()
        .flat_map(|(path, text)| test_modules(path, text))
        .collect();
    for (path, text) in files {
        if tests.iter().any(|module| path.starts_with(module.as_str())) {
            continue;
        }
        // An inline test module is the last thing in its file (clippy sees to that).
        let product = text
            .find("\nmod tests {")
            .map_or(text.as_str(), |end| &text[..end]);
        for (number, line) in product.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let hits = banned.iter().filter(|name| code.contains(*name));
            found.extend(hits.map(|name| format!("{path}:{}: {name}", number + 1)));
        }
    }
    assert_none(
        "clocks, sockets, threads or random hashers in core and wire",
        &found,
    );
    assert!(
        read(&root().join("crates/core/src/lib.rs")).contains("no_std"),
        "core is no_std"
    );
}

/// Where the modules are that a file declares for its tests only: beginnings of their paths.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let stem = path.trim_end_matches(".rs");
    let dir = stem
        .strip_suffix("/mod")
        .or(stem.strip_suffix("/lib"))
        .unwrap_or(stem);
    let mut attributed = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line == "#[cfg(test)]" {
            attributed = true;
        } else if let Some(name) = line
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(';'))
        {
            if attributed {
                found.extend([format!("{dir}/{name}.rs"), format!("{dir}/{name}/")]);
            }
            attributed = false;
        } else if !line.starts_with("#[") {
            attributed = false;
        }
    }
    found
}

/// Names in a table of a manifest.
fn keys(manifest: &str, table: &str) -> Vec<String> {
    let header = format!("[{table}]");
    manifest
        .lines()
        .skip_while(|line| line.trim() != header)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let runtimes = [
        "tokio",
        "mio",
        "hyper",
        "hyper-util",
        "socket2",
        "async-std",
        "rand",
    ];
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let dir = entry.unwrap().path();
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let used = keys(&read(&dir.join("Cargo.toml")), "dependencies");
        assert!(
            !used.is_empty() || name == "core",
            "{name}: no dependencies read"
        );
        let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| *known == name) else {
            panic!("crates/{name}: say in MAY_USE what it may depend on");
        };
        for dependency in used {
            let own = dependency.strip_prefix("maitred-");
            if own.is_some_and(|own| !allowed.contains(&own)) {
                found.push(format!("{name} -> {dependency}"));
            }
            let pure = matches!(name.as_str(), "core" | "wire" | "text");
            if pure && runtimes.contains(&dependency.as_str()) {
                found.push(format!("{name} (pure) -> {dependency}"));
            }
        }
    }
    assert_none("dependencies against the direction", &found);
}

#[test]
fn no_path_of_one_machine() {
    // Put together here so that this file does not hold them itself.
    let banned = ["work", "root", "home", "tmp"].map(|dir| format!("/{dir}/"));
    let mut found = Vec::new();
    for path in files() {
        let text = read(&path);
        for (number, line) in text.lines().enumerate() {
            if banned.iter().any(|dir| line.contains(dir.as_str())) {
                found.push(format!("{}:{}: {}", shown(&path), number + 1, line.trim()));
            }
        }
    }
    assert_none("paths of one machine", &found);
}

/// What the documents name is there: each name in a table of metrics is one that is registered.
#[test]
fn documented_metrics_are_registered() {
    let sources: String = files()
        .iter()
        .filter(|path| path.to_string_lossy().contains("gateway/src/metrics/"))
        .map(|path| read(path))
        .collect();
    // The library adds the unit and `_total`.
    let registered = |name: &str| {
        let bare = name.strip_suffix("_total").unwrap_or(name);
        let unit = bare.strip_suffix("_seconds").unwrap_or(bare);
        [name, bare, unit]
            .iter()
            .any(|form| sources.contains(&format!("\"{form}\"")))
    };
    let (mut seen, mut found) = (0, Vec::new());
    for path in files() {
        let text = match path.extension() {
            Some(kind) if kind == "md" => read(&path),
            _ => continue,
        };
        for table in text
            .split("\n\n")
            .filter(|t| t.starts_with("| `maitred_` |"))
        {
            for row in table.lines().skip(2) {
                let names = row.split('|').nth(1).unwrap_or_default().split('`');
                for name in names.skip(1).step_by(2) {
                    seen += 1;
                    if !registered(name.split('{').next().unwrap_or_default()) {
                        found.push(format!("{}: {name}", shown(&path)));
                    }
                }
            }
        }
    }
    assert!(seen > 10, "{seen} names were read");
    assert_none("metrics that nobody registers", &found);
}
