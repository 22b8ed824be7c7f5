//! `identity` of a pool: the files by which its engines turn requests into tokens.

use super::problem::Problem;
use super::tree::{Field, Section, Value};
use maitred_text::template::{ContentShape, Dialect};
use maitred_text::{ModelFiles, TextOptions};
use serde_json::json;
use std::path::{Path, PathBuf};

/// How a pool's requests become tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentitySettings {
    /// Chat template and tokenizer.
    pub files: ModelFiles,
    /// Whose reading of a request, and bounds.
    pub options: TextOptions,
}

impl IdentitySettings {
    pub(super) fn show(&self) -> serde_json::Value {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|p| p.display().to_string());
        json!({
            "model_dir": path(&self.files.directory),
            "tokenizer": path(&self.files.tokenizer),
            "tokenizer_config": path(&self.files.tokenizer_config),
            "chat_template": path(&self.files.chat_template),
            "dialect": match self.options.dialect {
                Dialect::Transformers => "transformers",
                Dialect::Vllm => "vllm",
                Dialect::Sglang => "sglang",
            },
            "content": match self.options.content {
                None => "auto",
                Some(ContentShape::String) => "string",
                Some(ContentShape::Parts) => "parts",
            },
            "memo_bytes_max": self.options.limits.memo_bytes_max,
            "text_bytes_max": self.options.limits.text_bytes_max,
        })
    }
}

/// Reads a model's directory alone, or a mapping. That the files are there is looked at here, so that
/// what is wrong has a place; they are read at start.
pub(super) fn read(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<IdentitySettings> {
    let mut settings = IdentitySettings::default();
    if matches!(field.node.value, Value::Text(_)) {
        match directory(field) {
            Ok(path) => settings.files.directory = path,
            Err(problem) => problems.push(problem),
        }
    } else {
        let section = Section::open(field)
            .map_err(|_| field.wrong_kind("a model's directory, or a mapping with files"));
        match section {
            Ok(section) => read_section(section, &mut settings, problems),
            Err(problem) => {
                problems.push(problem);
                return None;
            }
        }
    }
    let files = &settings.files;
    let inside = |dir: &PathBuf| dir.join("tokenizer.json").is_file();
    if files.tokenizer.is_none() && files.directory.as_ref().is_none_or(|dir| !inside(dir)) {
        // One problem is enough where the directory itself is not there.
        if problems.iter().all(|p| !p.field.starts_with(&field.path)) {
            problems.push(field.problem("has no tokenizer.json: name `tokenizer`, or a directory"));
        }
        return None;
    }
    Some(settings)
}

fn read_section(
    mut section: Section<'_>,
    settings: &mut IdentitySettings,
    problems: &mut Vec<Problem>,
) {
    let (files, options) = (&mut settings.files, &mut settings.options);
    section.set(problems, "model_dir", &mut files.directory, directory);
    section.set(problems, "tokenizer", &mut files.tokenizer, file);
    let config = &mut files.tokenizer_config;
    section.set(problems, "tokenizer_config", config, file);
    section.set(problems, "chat_template", &mut files.chat_template, file);
    section.set(
        problems,
        "dialect",
        &mut options.dialect,
        |field| match field.text()? {
            "vllm" => Ok(Dialect::Vllm),
            "sglang" => Ok(Dialect::Sglang),
            "transformers" => Ok(Dialect::Transformers),
            _ => Err(field.problem("must be vllm, sglang or transformers")),
        },
    );
    section.set(
        problems,
        "content",
        &mut options.content,
        |field| match field.text()? {
            "auto" => Ok(None),
            "string" => Ok(Some(ContentShape::String)),
            "parts" => Ok(Some(ContentShape::Parts)),
            _ => Err(field.problem("must be auto, string or parts")),
        },
    );
    let limits = &mut options.limits;
    let memo = &mut limits.memo_bytes_max;
    section.set_bytes(problems, "memo_bytes_max", memo, 0..=(1 << 40));
    let text = &mut limits.text_bytes_max;
    section.set_bytes(problems, "text_bytes_max", text, 1..=(1 << 32));
    section.finish(problems);
}

fn directory(field: &Field<'_>) -> Result<Option<PathBuf>, Problem> {
    found(field, Path::is_dir, "is no directory")
}

fn file(field: &Field<'_>) -> Result<Option<PathBuf>, Problem> {
    found(field, Path::is_file, "is no file")
}

fn found(
    field: &Field<'_>,
    is: fn(&Path) -> bool,
    message: &str,
) -> Result<Option<PathBuf>, Problem> {
    let text = field.text()?;
    if is(Path::new(text)) {
        return Ok(Some(PathBuf::from(text)));
    }
    Err(field.problem(format!("`{text}` {message}")))
}
