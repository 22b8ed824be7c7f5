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
    /// Seconds by which the engines' local time, which templates print, is ahead of UTC. Containers are
    /// in UTC unless somebody said otherwise.
    pub utc_offset_seconds: i32,
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
            "utc_offset": offset_text(self.utc_offset_seconds),
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
    let offset = &mut settings.utc_offset_seconds;
    section.set(problems, "utc_offset", offset, |field| {
        let wrong = || field.problem("must be an offset from UTC such as \"+02:00\", in quotes");
        offset_of(field.text().map_err(|_| wrong())?).ok_or_else(wrong)
    });
    section.finish(problems);
}

/// The seconds of `+hh:mm` or `-hh:mm`; zones reach from -12 to +14 hours.
fn offset_of(text: &str) -> Option<i32> {
    let (sign, rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let two = |digits: &str| -> Option<i32> {
        let plain = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse().ok())?
    };
    let (hours, minutes) = rest.split_once(':')?;
    let minutes = two(hours)? * 60 + two(minutes).filter(|minutes| *minutes < 60)?;
    (minutes <= 14 * 60).then_some(sign * minutes * 60)
}

fn offset_text(seconds: i32) -> String {
    let minutes = seconds.unsigned_abs() / 60;
    let sign = if seconds < 0 { '-' } else { '+' };
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
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

#[cfg(test)]
mod tests {
    use super::{offset_of, offset_text};

    #[test]
    fn offsets_are_hours_and_minutes() {
        for (text, seconds) in [
            ("+00:00", 0),
            ("+02:00", 7_200),
            ("-03:30", -12_600),
            ("+14:00", 50_400),
        ] {
            assert_eq!(offset_of(text), Some(seconds));
            assert_eq!(offset_text(seconds), text);
        }
        for wrong in [
            "", "+", "2", "02:00", "+2:00", "+02:60", "+14:01", "+02:00 ", "++2:00", "\u{e9}",
        ] {
            assert_eq!(offset_of(wrong), None, "{wrong}");
        }
    }
}
