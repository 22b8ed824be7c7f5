//! The files of a model: templates, tokenizer, the names of its own tokens.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The largest file that is read, in bytes: tokenizers of 260,000 entries have 35 MB.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Where a model's files are. A file named itself counts more than the one in the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFiles {
    /// A model's directory, laid out as on the Hugging Face hub.
    pub directory: Option<PathBuf>,
    /// A chat template (`.jinja`).
    pub chat_template: Option<PathBuf>,
    /// A `tokenizer.json`.
    pub tokenizer: Option<PathBuf>,
    /// A `tokenizer_config.json`: special tokens, and templates where no file has them.
    pub tokenizer_config: Option<PathBuf>,
}

impl ModelFiles {
    /// All files from one directory.
    #[must_use]
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: Some(directory.into()),
            ..Self::default()
        }
    }

    /// The file named itself, else the one in the directory where it is there.
    fn find(&self, named: Option<&PathBuf>, name: &str) -> Option<PathBuf> {
        let in_directory = || Some(self.directory.as_ref()?.join(name)).filter(|p| p.is_file());
        named.cloned().or_else(in_directory)
    }

    /// Reads all files that are there.
    ///
    /// # Errors
    /// A file named itself is missing, or a file cannot be read.
    pub(super) fn read(&self) -> Result<ModelTexts, LoadError> {
        let path = self.find(self.tokenizer_config.as_ref(), "tokenizer_config.json");
        let config = path.as_deref().map(json).transpose()?;
        let config = config.unwrap_or(Value::Null);
        let tokenizer = self.find(self.tokenizer.as_ref(), "tokenizer.json");
        let mut texts = ModelTexts {
            special: special_tokens(&config),
            tokenizer: tokenizer
                .map(|path| read(&path).map(|json| (path, json)))
                .transpose()?,
            ..ModelTexts::default()
        };
        for (name, (origin, source)) in self.templates(&config, path.as_deref())? {
            texts.templates.push((name.clone(), source));
            texts.origins.insert(name, origin);
        }
        Ok(texts)
    }

    /// Templates by name, each with the file that it stands in; a file's own is `default`.
    fn templates(&self, config: &Value, path: Option<&Path>) -> Result<Sources, LoadError> {
        let mut found = Sources::new();
        let inside = path.unwrap_or(Path::new("tokenizer_config.json"));
        match config.get("chat_template") {
            Some(Value::String(source)) => {
                let place = (inside.to_owned(), source.clone());
                found.insert("default".to_owned(), place);
            }
            Some(Value::Array(list)) => {
                for entry in list {
                    let text = |name| entry.get(name).and_then(Value::as_str);
                    if let (Some(name), Some(source)) = (text("name"), text("template")) {
                        let place = (inside.to_owned(), source.to_owned());
                        found.insert(name.to_owned(), place);
                    }
                }
            }
            _ => {}
        }
        if let Some(path) = self.find(self.chat_template.as_ref(), "chat_template.jinja") {
            let source = text(&path)?;
            found.insert("default".to_owned(), (path, source));
            let more = self
                .directory
                .as_ref()
                .map(|d| d.join("additional_chat_templates"));
            found.extend(
                more.as_deref()
                    .map(directory)
                    .transpose()?
                    .unwrap_or_default(),
            );
        }
        Ok(found)
    }
}

/// Templates by name, each with the file that it stands in.
type Sources = BTreeMap<String, (PathBuf, String)>;

/// What the files say.
#[derive(Default)]
pub(super) struct ModelTexts {
    pub(super) templates: Vec<(String, String)>,
    /// The file of each template.
    pub(super) origins: BTreeMap<String, PathBuf>,
    pub(super) special: Vec<(String, String)>,
    /// The file and what it holds.
    pub(super) tokenizer: Option<(PathBuf, Vec<u8>)>,
}

/// Why a model's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file has not the form that it must have.
    #[error("{path}: {what}")]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A template has a fault of syntax.
    #[error("chat template `{name}`: {what}")]
    Template {
        /// The template's name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// The tokenizer cannot be used.
    #[error("tokenizer: {0}")]
    Tokenizer(#[from] crate::tokenizer::TokenizerError),
    /// The files have no tokenizer: no tokens can be told.
    #[error("no tokenizer.json: name it, or a directory that has it")]
    NoTokenizer,
}

impl LoadError {
    pub(super) fn form(path: &Path, what: impl ToString) -> Self {
        Self::Form {
            path: path.to_owned(),
            what: what.to_string(),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let failed = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    if std::fs::metadata(path).map_err(failed)?.len() > FILE_BYTES_MAX {
        return Err(LoadError::form(
            path,
            "the file is larger than a tokenizer or template is",
        ));
    }
    std::fs::read(path).map_err(failed)
}

fn text(path: &Path) -> Result<String, LoadError> {
    String::from_utf8(read(path)?).map_err(|e| LoadError::form(path, e))
}

fn json(path: &Path) -> Result<Value, LoadError> {
    serde_json::from_slice(&read(path)?).map_err(|e| LoadError::form(path, e))
}

/// The `.jinja` files of a directory, by name; none where it is missing.
fn directory(path: &Path) -> Result<Sources, LoadError> {
    let mut found = Sources::new();
    let Ok(entries) = std::fs::read_dir(path) else {
        return Ok(found);
    };
    for entry in entries.flatten().map(|e| e.path()) {
        let is_template = entry.extension().is_some_and(|e| e == "jinja");
        if let (true, Some(name)) = (is_template, entry.file_stem().and_then(|n| n.to_str())) {
            let name = name.to_owned();
            let source = text(&entry)?;
            found.insert(name, (entry, source));
        }
    }
    Ok(found)
}

/// The variables that templates get for the model's own tokens: each is a string, or an object
/// whose `content` is one.
fn special_tokens(config: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, token) in config.as_object().into_iter().flatten() {
        if !name.ends_with("_token") || name.starts_with("add_") {
            continue;
        }
        let text = token.as_str().or_else(|| token.get("content")?.as_str());
        found.extend(text.map(|text| (name.clone(), text.to_owned())));
    }
    found
}
