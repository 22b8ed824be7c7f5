//! What an engine says it read and wrote. Unknown is not zero.

use crate::json::Value;

/// Token counts of one answer, as far as the engine said them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireUsage {
    /// All prompt tokens, cached ones included.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens served from cache.
    pub cached_tokens: Option<u32>,
    /// Tokens of the answer.
    pub output_tokens: Option<u32>,
}

/// What has been said so far, in the engine's own terms; several reports lie over each other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reports {
    /// OpenAI's `prompt_tokens` or Responses' `input_tokens`: cached ones included.
    prompt: Option<u32>,
    /// Anthropic's `input_tokens`: cached ones not included.
    uncached: Option<u32>,
    cache_read: Option<u32>,
    cache_written: Option<u32>,
    cached: Option<u32>,
    output: Option<u32>,
    total: Option<u32>,
    /// llama.cpp's `timings`: counts where `usage` says nothing.
    timings: WireUsage,
}

/// How a family counts its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// `input_tokens` includes cached ones (Responses).
    Whole,
    /// `input_tokens` excludes what was read from and written to the cache (Anthropic).
    Uncached,
}

impl Reports {
    /// Lays a `usage` object over what is known. What it does not say stays.
    pub(crate) fn usage(&mut self, usage: &Value<'_, '_>, input: Input) {
        let mut anthropic = [None; 3];
        for (key, value) in usage.members() {
            let target = match key {
                b"prompt_tokens" => &mut self.prompt,
                b"input_tokens" if input == Input::Whole => &mut self.prompt,
                b"input_tokens" => &mut anthropic[0],
                b"cache_read_input_tokens" => &mut anthropic[1],
                b"cache_creation_input_tokens" => &mut anthropic[2],
                b"completion_tokens" | b"output_tokens" => &mut self.output,
                b"total_tokens" => &mut self.total,
                // DeepSeek's name, and one of SGLang's.
                b"prompt_cache_hit_tokens" | b"cached_tokens" => &mut self.cached,
                b"prompt_tokens_details" | b"input_tokens_details" => {
                    let cached = value.get("cached_tokens").and_then(|v| v.u32());
                    self.cached = cached.or(self.cached);
                    continue;
                }
                _ => continue,
            };
            *target = value.u32().or(*target);
        }
        self.parts(anthropic);
    }

    /// Anthropic's three parts of the input, which belong together: a later report that fills them all
    /// with 0 unsays nothing, but one of them may be 0 beside others (vLLM first says the whole prompt
    /// as `input_tokens`, at the end only what was neither read nor written).
    fn parts(&mut self, said: [Option<u32>; 3]) {
        let known = self.uncached.is_some();
        if known && said.iter().all(|count| count.unwrap_or(0) == 0) {
            return;
        }
        let [uncached, read, written] = said;
        self.uncached = uncached.or(self.uncached);
        self.cache_read = read.or(self.cache_read);
        self.cache_written = written.or(self.cache_written);
    }

    /// Reads llama.cpp's `timings`.
    pub(crate) fn timings(&mut self, timings: &Value<'_, '_>) {
        let count = |name| timings.get(name).and_then(|v: Value<'_, '_>| v.u32());
        let cached = count("cache_n");
        self.timings = WireUsage {
            prompt_tokens: cached
                .zip(count("prompt_n"))
                .map(|(c, p)| c.saturating_add(p)),
            cached_tokens: cached,
            output_tokens: count("predicted_n"),
        };
    }

    /// The counts in one form: the prompt is whole, cached tokens are a part of it. More cached tokens
    /// than the prompt has (some engines add them up over choices) are no count of it: unknown.
    pub(crate) fn normalised(&self) -> WireUsage {
        let parts = self.uncached.map(|input| {
            input
                .saturating_add(self.cache_read.unwrap_or(0))
                .saturating_add(self.cache_written.unwrap_or(0))
        });
        // Embeddings and rerank write nothing, and some say the total only.
        let total = self.total.filter(|_| self.output.is_none());
        let prompt = self
            .prompt
            .or(parts)
            .or(self.timings.prompt_tokens)
            .or(total);
        let cached = self
            .cached
            .or(self.cache_read)
            .or(self.timings.cached_tokens);
        WireUsage {
            prompt_tokens: prompt,
            cached_tokens: cached.filter(|cached| prompt.is_none_or(|prompt| *cached <= prompt)),
            output_tokens: self.output.or(self.timings.output_tokens),
        }
    }
}
