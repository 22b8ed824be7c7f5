//! Chat templates in Hugging Face's dialect of Jinja: from a request to the text that an engine
//! tokenises.

mod clock;
mod environment;
mod generation;
mod joined;
mod messages;
mod methods;
mod named;
mod python;
mod request;
mod tags;

pub use clock::WallTime;
pub use messages::{ContentShape, Dialect};

use crate::memo::Memo;
use crate::pieces::{Gather, Known, Message, Pieces};
use environment::{Raised, environment};
use minijinja::Environment;
use minijinja::value::Value;
use named::Named;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Why a request was not rendered. Holds text of the template only, except in `Raised`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template called `raise_exception`; holds its message, which may quote the request.
    #[error("the template refused the request")]
    Raised(String),
    /// The template failed; holds the engine's kind of error and the line.
    #[error("the template failed: {kind} (line {line})")]
    Failed {
        /// What went wrong.
        kind: String,
        /// Line in the template, from 1; 0 where unknown.
        line: usize,
    },
    /// The template did more than it may for one request.
    #[error("the template did not end within its bound of work")]
    Fuel,
    /// The template does what Python does in another way: it joins text marked `safe` with other
    /// text, which Python escapes then.
    #[error("the template escapes text for HTML")]
    Unlike,
    /// The request has a picture, sound, video or file: engines put tokens in their place that
    /// only they can count.
    #[error("the request has parts that are no text")]
    Media,
    /// The request brings a template of its own.
    #[error("the request brings its own template")]
    OwnTemplate,
    /// The pool has no template for the request.
    #[error("no template fits the request")]
    NoTemplate,
    /// A kind of request that is not rendered.
    #[error("requests of this kind are not rendered")]
    Endpoint,
    /// A field has a form that engines refuse, or that cannot be read exactly.
    #[error("`{0}` cannot be rendered")]
    Field(&'static str),
    /// The rendered text is larger than allowed.
    #[error("the rendered text is larger than allowed")]
    TooLarge,
    /// The engine is to cut the prompt, at a place and a side that depend on its own settings.
    #[error("the engine may cut the prompt")]
    Truncated,
}

/// What a template is asked to render.
pub(crate) struct Call {
    /// All variables but the model's own tokens and the clock.
    pub(crate) variables: Vec<(String, Value)>,
    /// Messages among them whose long texts are referred to.
    pub(crate) messages: Vec<Arc<Message>>,
    /// Whether the request has tools.
    pub(crate) tools: bool,
    /// The final message's text is left open, not closed as a turn.
    pub(crate) continue_final: bool,
}

/// Stands at the end of the final message, to find where to cut.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

struct Template {
    shape: ContentShape,
    /// The template knows the `developer` role.
    developer: bool,
    /// The template does something that is not done here as Python does it.
    unlike: bool,
}

/// The templates of one model, compiled.
pub struct Templates {
    env: Environment<'static>,
    known: BTreeMap<String, Template>,
    special: Vec<(String, Value)>,
    dialect: Dialect,
    /// Messages as the templates get them, by the bytes that clients sent.
    messages: Memo<Arc<Message>>,
    /// Hashes that nobody outside can foresee: equal ones cannot be made.
    seed: u64,
}

impl Templates {
    /// Compiles `sources` (name and text; the one that counts where a request has no tools is
    /// `default`). `special` are the model's own tokens by variable name, such as `bos_token`.
    /// `fuel` bounds the work of one rendering, `memo_bytes` what is kept of messages read before.
    ///
    /// # Errors
    /// A template has a fault of syntax; the name is returned with what is wrong.
    pub fn compile(
        sources: &[(String, String)],
        special: &[(String, String)],
        dialect: Dialect,
        fuel: u64,
        memo_bytes: usize,
    ) -> Result<Self, (String, String)> {
        let fail = |name: &str, error: &minijinja::Error| (name.to_owned(), error.to_string());
        let mut env = environment(fuel).map_err(|e| fail("", &e))?;
        for (name, source) in sources {
            let source = joined::rewrite(&generation::rewrite(source));
            env.add_template_owned(name.clone(), source)
                .map_err(|e| fail(name, &e))?;
        }
        let special = special
            .iter()
            .map(|(name, token)| (name.clone(), Value::from(token.as_str())))
            .collect();
        let mut templates = Self {
            env,
            known: BTreeMap::new(),
            special,
            dialect,
            messages: Memo::new(memo_bytes),
            seed: RandomState::new().hash_one(0),
        };
        for (name, source) in sources {
            let template = Template {
                shape: templates.probe(name),
                developer: source.contains("\"developer\"") || source.contains("'developer'"),
                unlike: generation::joins_safe(source),
            };
            templates.known.insert(name.clone(), template);
        }
        Ok(templates)
    }

    /// The name of the template that a request takes; None where none fits.
    fn choose(&self, tools: bool) -> Option<(&str, &Template)> {
        let wanted = if tools { "tool_use" } else { "default" };
        let found = self
            .known
            .get_key_value(wanted)
            .or_else(|| self.known.get_key_value("default"))?;
        Some((found.0.as_str(), found.1))
    }

    /// One of the model's own tokens by its variable's name, such as `bos_token`.
    #[must_use]
    pub fn special(&self, name: &str) -> Option<&str> {
        let found = self.special.iter().find(|(known, _)| known == name);
        found.and_then(|(_, token)| token.as_str())
    }

    /// Bytes kept of messages read before, overhead estimated.
    #[must_use]
    pub fn memo_bytes(&self) -> u64 {
        self.messages.counts().bytes
    }

    /// In which form the template that a request takes wants its contents.
    #[must_use]
    pub fn shape(&self, tools: bool) -> Option<ContentShape> {
        Some(self.choose(tools)?.1.shape)
    }

    /// Gives all templates contents in one form.
    pub fn set_shape(&mut self, shape: ContentShape) {
        for template in self.known.values_mut() {
            template.shape = shape;
        }
    }

    /// Finds out which form of content the template wants: parts where it renders parts without
    /// printing them as they are, else strings.
    fn probe(&self, name: &str) -> ContentShape {
        const WORD: &str = "xProbeWordx";
        let part = Value::from_pairs([("type", "text"), ("text", WORD)]);
        let user = Value::from_pairs([
            ("role", Value::from("user")),
            ("content", Value::from(vec![part])),
        ]);
        let system = Value::from_pairs([("role", "system"), ("content", "s")]);
        let seen = [vec![user.clone()], vec![system, user]]
            .into_iter()
            .any(|messages| {
                let call = Call {
                    variables: vec![
                        ("messages".to_owned(), Value::from(messages)),
                        ("tools".to_owned(), Value::from(())),
                        ("documents".to_owned(), Value::from(())),
                        ("add_generation_prompt".to_owned(), Value::from(true)),
                    ],
                    messages: Vec::new(),
                    tools: false,
                    continue_final: false,
                };
                self.render_named(name, call, WallTime::default())
                    .is_ok_and(|pieces| {
                        let text = pieces.into_text();
                        text.contains(WORD)
                            && !text.contains("'type'")
                            && !text.contains("\"type\"")
                    })
            });
        if seen {
            ContentShape::Parts
        } else {
            ContentShape::String
        }
    }

    fn render_named(&self, name: &str, call: Call, now: WallTime) -> Result<Pieces, RenderError> {
        let template = self
            .env
            .get_template(name)
            .map_err(|_| RenderError::NoTemplate)?;
        let clock = Value::from_function(move |format: &str| now.format(format));
        let clock = [("strftime_now".to_owned(), clock)];
        let variables = self.special.iter().cloned().chain(clock);
        let context = Value::from_object(Named(variables.chain(call.variables).collect()));
        let known = Known::new(&call.messages);
        let mut printed = Gather::new(&known);
        template
            .render_captured_to(context, &mut printed)
            .map_err(|e| failure(&e))?;
        let pieces = printed.finish().ok_or_else(|| RenderError::Failed {
            kind: "no text".to_owned(),
            line: 0,
        })?;
        if call.continue_final {
            return cut_open(pieces.into_text()).map(Pieces::from);
        }
        Ok(pieces)
    }
}

/// Cuts where the final message's text ends. A template that trims contents drops the tag's space,
/// and what is before is trimmed alike.
fn cut_open(mut text: String) -> Result<String, RenderError> {
    let at = text
        .rfind(CONTINUE_TAG.trim_end())
        .ok_or(RenderError::Field("continue_final_message"))?;
    let whole = text.get(at..).is_some_and(|t| t.starts_with(CONTINUE_TAG));
    text.truncate(at);
    if !whole {
        text.truncate(text.trim_end_matches(python::is_space).len());
    }
    Ok(text)
}

fn failure(error: &minijinja::Error) -> RenderError {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
            return RenderError::Raised(message.clone());
        }
        source = inner.source();
    }
    if error.kind() == minijinja::ErrorKind::OutOfFuel {
        return RenderError::Fuel;
    }
    RenderError::Failed {
        kind: error.kind().to_string(),
        line: error.line().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
