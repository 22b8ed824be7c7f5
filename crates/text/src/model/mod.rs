//! A model's text side: template, tokenizer, memo; and a request's identity in its tokens.

mod counts;
mod files;

pub use counts::TextCounts;
pub use files::{LoadError, ModelFiles};

use crate::identify::{Context, Identified};
use crate::keys::seeds;
use crate::prefixes::{ChainPlan, Cutting, Prefixes, TokenChain, leading};
use crate::scope::token_seed;
use crate::template::{ContentShape, Dialect, RenderError, Templates, WallTime};
use crate::tokenizer::{Cut, Ids, Plan, Tokenizer, TokenizerError, WholeReason};
use counts::Counters;
use maitred_core::prefix::ChainBuilder;
use maitred_core::request::Identity;
use maitred_wire::{Endpoint, RequestHead};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What one request and one model may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimits {
    /// The longest rendered text, in bytes; longer ones stay on byte identity.
    pub text_bytes_max: usize,
    /// What the memos may hold, in bytes: one half for messages as templates get them, three
    /// eighths for the ids of texts, one eighth for chains.
    pub memo_bytes_max: usize,
    /// What a template may do for one request: instructions, and units of 64 bytes made.
    pub fuel: u64,
}

impl Default for TextLimits {
    fn default() -> Self {
        Self {
            text_bytes_max: 16 << 20,
            memo_bytes_max: 64 << 20,
            fuel: 20_000_000,
        }
    }
}

/// How one pool's engines read requests, and what that may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// Whose reading of a request is followed.
    pub dialect: Dialect,
    /// The form of content that templates get, where the engines were told so (vLLM's
    /// `--chat-template-content-format`); None finds it out as they do. vLLM reads the template's
    /// syntax, which misses some loops over parts (Kimi K2); here both forms are tried.
    pub content: Option<ContentShape>,
    /// Bounds.
    pub limits: TextLimits,
}

/// Why a request stays on byte identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fallback {
    /// It was not rendered.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// It was not tokenised.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The client sent token ids: they are the identity already.
    #[error("the prompt is token ids already")]
    TokenPrompt,
}

impl Fallback {
    /// All reasons, in a fixed order.
    pub const REASONS: [&'static str; 13] = [
        "raised",
        "template",
        "fuel",
        "media",
        "own_template",
        "no_template",
        "endpoint",
        "field",
        "too_large",
        "truncated",
        "tokenizer",
        "token_prompt",
        "busy",
    ];

    /// A short name, for metrics and records: one of [`Self::REASONS`].
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Render(RenderError::Raised(_)) => "raised",
            Self::Render(RenderError::Failed { .. } | RenderError::Unlike) => "template",
            Self::Render(RenderError::Fuel) => "fuel",
            Self::Render(RenderError::Media) => "media",
            Self::Render(RenderError::OwnTemplate) => "own_template",
            Self::Render(RenderError::NoTemplate) => "no_template",
            Self::Render(RenderError::Endpoint) => "endpoint",
            Self::Render(RenderError::Field(_)) => "field",
            Self::Render(RenderError::TooLarge) => "too_large",
            Self::Render(RenderError::Truncated) => "truncated",
            Self::Tokenizer(_) => "tokenizer",
            Self::TokenPrompt => "token_prompt",
        }
    }
}

/// Template and tokenizer of one model.
pub struct TextModel {
    templates: Templates,
    tokenizer: Tokenizer,
    prefixes: Prefixes,
    limits: TextLimits,
    digest: u64,
    counters: Counters,
}

impl TextModel {
    /// Reads a model's files. Takes seconds for large vocabularies: not for a thread that must
    /// answer. A model without chat template is loaded; its chats stay on byte identity.
    ///
    /// # Errors
    /// A file is missing or cannot be used.
    pub fn load(files: &ModelFiles, options: TextOptions) -> Result<Self, LoadError> {
        let texts = files.read()?;
        let (path, json) = texts.tokenizer.ok_or(LoadError::NoTokenizer)?;
        let loaded = Self::from_texts(&texts.templates, &texts.special, &json, options);
        // Who is to mend it must know the file.
        loaded.map_err(|error| match error {
            LoadError::Tokenizer(_) => LoadError::form(&path, error),
            LoadError::Template { ref name, .. } => match texts.origins.get(name) {
                Some(origin) => LoadError::form(origin, error),
                None => error,
            },
            other => other,
        })
    }

    /// As [`Self::load`], from what the files hold: templates by name, the model's own tokens by
    /// variable name, `tokenizer.json`.
    ///
    /// # Errors
    /// A template or the tokenizer cannot be used.
    pub fn from_texts(
        templates: &[(String, String)],
        special: &[(String, String)],
        tokenizer: &[u8],
        options: TextOptions,
    ) -> Result<Self, LoadError> {
        let TextOptions {
            dialect, limits, ..
        } = options;
        // Ids take about as many bytes as the text that they stand for.
        let memo_bytes = limits.memo_bytes_max / 2;
        let prefix_bytes = limits.memo_bytes_max / 8;
        let compiled = Templates::compile(templates, special, dialect, limits.fuel, memo_bytes);
        let mut compiled = compiled.map_err(|(name, what)| LoadError::Template { name, what })?;
        if let Some(shape) = options.content {
            compiled.set_shape(shape);
        }
        let mut digest = xxh3_64_with_seed(tokenizer, seeds::TEXT);
        for (name, text) in templates.iter().chain(special) {
            digest = xxh3_64_with_seed(name.as_bytes(), digest);
            digest = xxh3_64_with_seed(text.as_bytes(), digest);
        }
        Ok(Self {
            templates: compiled,
            tokenizer: Tokenizer::from_json(tokenizer, memo_bytes - prefix_bytes)?,
            prefixes: Prefixes::new(prefix_bytes),
            limits,
            digest,
            counters: Counters::default(),
        })
    }

    /// Stands for templates and tokenizer: equal for equal files, on every machine. See
    /// [`crate::scope::with_text`].
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The encoder in use: `fastokens`, or `tokenizers`.
    #[must_use]
    pub fn encoder(&self) -> &'static str {
        self.tokenizer.encoder()
    }

    /// Why texts are tokenised whole at every turn; None where they are cut and remembered.
    #[must_use]
    pub fn whole_reason(&self) -> Option<WholeReason> {
        self.tokenizer.whole_reason()
    }

    /// The templates.
    #[must_use]
    pub fn templates(&self) -> &Templates {
        &self.templates
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Whether a plain prompt gets this token put before it.
    #[must_use]
    pub fn adds_before(&self, token: &str) -> bool {
        let ids = |text: &str, special| self.tokenizer.reference_ids(text, special).ok();
        match (ids(token, false).as_deref(), ids("a", true)) {
            (Some([only]), Some(with)) => with.first() == Some(only),
            _ => false,
        }
    }

    /// What was done since the start.
    #[must_use]
    pub fn counts(&self) -> TextCounts {
        let mut counts = self.tokenizer.counts();
        counts.memo.bytes += self.templates.memo_bytes() + self.prefixes.bytes();
        self.counters.read(counts)
    }

    /// Renders a request and looks up what was tokenised before: one pass over what is new in it, no
    /// tokenising. The plan owns its text, so [`Self::ids`] may run on another thread: how long
    /// that takes is told by [`Plan::missing_bytes`]. A caller that must not spend milliseconds
    /// looks at the body's length first.
    ///
    /// # Errors
    /// The request stays on byte identity; counted.
    pub fn plan(
        &self,
        endpoint: Endpoint,
        head: &RequestHead<'_>,
        now: WallTime,
    ) -> Result<Plan, Fallback> {
        let cut = self.cut(endpoint, head, now)?;
        Ok(self.tokenizer.look_up(cut, 0))
    }

    /// As [`Self::plan`], for the chain: what a prompt seen before begins with is looked up as a
    /// whole.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub fn plan_chain(
        &self,
        endpoint: Endpoint,
        head: &RequestHead<'_>,
        now: WallTime,
        cutting: Cutting,
    ) -> Result<ChainPlan, Fallback> {
        let cut = self.cut(endpoint, head, now)?;
        Ok(self.prefixes.plan(&self.tokenizer, cut, cutting))
    }

    fn cut(
        &self,
        endpoint: Endpoint,
        head: &RequestHead<'_>,
        now: WallTime,
    ) -> Result<Cut, Fallback> {
        if is_token_prompt(endpoint, head) {
            return Err(self.fall_back(Fallback::TokenPrompt));
        }
        let rendered = self
            .templates
            .render(endpoint, head, now, self.limits.text_bytes_max)
            .map_err(|e| self.fall_back(e.into()))?;
        Ok(self
            .tokenizer
            .cut(rendered.text, rendered.add_special_tokens))
    }

    /// The prompt's token ids.
    ///
    /// # Errors
    /// The request stays on byte identity; counted.
    pub fn ids(&self, plan: Plan) -> Result<Ids, Fallback> {
        let ids = self.tokenizer.finish(plan);
        let ids = ids.map_err(|e| self.fall_back(e.into()))?;
        self.counters.identified(ids.count());
        Ok(ids)
    }

    /// The prompt's chain.
    ///
    /// # Errors
    /// The request stays on byte identity; counted.
    pub fn chain(&self, plan: ChainPlan) -> Result<TokenChain, Fallback> {
        let chain = self.prefixes.chain(&self.tokenizer, plan);
        let chain = chain.map_err(|e| self.fall_back(e.into()))?;
        self.counters.identified(chain.tokens as usize);
        Ok(chain)
    }

    /// Counts a request that its caller left on byte identity, because nothing was free to
    /// tokenise it.
    pub fn count_busy(&self) {
        self.counters.fell_back("busy");
    }

    fn fall_back(&self, why: Fallback) -> Fallback {
        self.counters.fell_back(why.reason());
        why
    }

    /// All steps at once, on this thread: `bytes` (what [`crate::identify()`] said) in tokens.
    ///
    /// # Errors
    /// The request stays on byte identity; counted.
    pub fn identify_tokens(
        &self,
        endpoint: Endpoint,
        head: &RequestHead<'_>,
        context: &Context<'_>,
        now: WallTime,
        bytes: Identified,
    ) -> Result<Identified, Fallback> {
        let cutting = Cutting {
            scope: context.scope,
            token_block: context.token_block,
        };
        let plan = self.plan_chain(endpoint, head, now, cutting)?;
        Ok(with_chain(bytes, self.chain(plan)?))
    }
}

/// An identity with its chain over `ids` instead of bytes; session, opening, scenario, turn and the
/// count of bytes stay. `scope` should have the model's digest in it, see [`crate::scope::with_text`];
/// `token_block` is the number of tokens in a block.
#[must_use]
pub fn in_tokens(bytes: Identified, ids: &Ids, scope: u64, token_block: usize) -> Identified {
    let block = token_block.max(1);
    let tokens = ids.count();
    let blocks = Vec::with_capacity(tokens / block);
    let seed = token_seed(scope);
    let mut chain = ChainBuilder::with_buffer(seed, block.saturating_mul(4), blocks);
    ids.parts().for_each(|some| chain.push_tokens(some));
    with_chain(
        bytes,
        TokenChain {
            chain: chain.finish().0,
            tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            leading: leading(ids, scope),
        },
    )
}

/// An identity with a chain over tokens instead of bytes.
fn with_chain(bytes: Identified, found: TokenChain) -> Identified {
    Identified {
        chain: found.chain,
        prompt_tokens: Some(found.tokens),
        identity: Identity::Tokens,
        leading: found.leading,
        ..bytes
    }
}

/// Whether the prompt is an array of numbers, or an array of such arrays.
fn is_token_prompt(endpoint: Endpoint, head: &RequestHead<'_>) -> bool {
    if endpoint != Endpoint::Completions {
        return false;
    }
    let first = head.value("prompt").and_then(|p| p.elements().next());
    let first = first.map(|f| f.elements().next().unwrap_or(f));
    first.is_some_and(|f| f.raw().first().is_some_and(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests;
