//! The request fields that each endpoint knows: OpenAI's and Anthropic's own and the extensions of
//! vLLM, SGLang and llama.cpp. Used only where an operator asks for strict bodies; otherwise
//! unknown fields are the engine's business.

use crate::endpoint::Endpoint;
use crate::head::RequestHead;

/// Known on every endpoint with a body: scheduling, isolation and bookkeeping fields.
const EVERYWHERE: &[&str] = &[
    "cache_salt",
    "metadata",
    "model",
    "priority",
    "request_id",
    "rid",
    "session_params",
    "user",
    "vllm_xargs",
];

/// Sampling and generation, in the names of all engines.
const GENERATION: &[&str] = &[
    "allowed_token_ids",
    "bad_words",
    "best_of",
    "cache_prompt",
    "custom_logit_processor",
    "custom_params",
    "data_parallel_rank",
    "detokenize",
    "dry_allowed_length",
    "dry_base",
    "dry_multiplier",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "dynatemp_range",
    "ebnf",
    "echo",
    "frequency_penalty",
    "grammar",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "id_slot",
    "ignore_eos",
    "include_stop_str_in_output",
    "json_schema",
    "kv_transfer_params",
    "length_penalty",
    "logit_bias",
    "logits_processors",
    "logprobs",
    "lora",
    "lora_path",
    "max_completion_tokens",
    "max_tokens",
    "min_keep",
    "min_p",
    "min_tokens",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "n",
    "n_discard",
    "n_keep",
    "n_predict",
    "n_probs",
    "no_stop_trim",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_logprobs",
    "regex",
    "repeat_last_n",
    "repeat_penalty",
    "repetition_penalty",
    "response_format",
    "return_hidden_states",
    "return_progress",
    "return_token_ids",
    "return_tokens",
    "return_tokens_as_token_ids",
    "safety_identifier",
    "samplers",
    "seed",
    "service_tier",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_regex",
    "stop_token_ids",
    "store",
    "stream",
    "stream_options",
    "structured_outputs",
    "suffix",
    "t_max_predict_ms",
    "temperature",
    "tfs_z",
    "timings_per_token",
    "top_a",
    "top_k",
    "top_logprobs",
    "top_n_sigma",
    "top_p",
    "truncate_prompt_tokens",
    "truncation_side",
    "typical_p",
    "use_beam_search",
    "xtc_probability",
    "xtc_threshold",
];

const CHAT: &[&str] = &[
    "add_generation_prompt",
    "add_special_tokens",
    "audio",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "enable_thinking",
    "function_call",
    "functions",
    "include_reasoning",
    "media_io_kwargs",
    "messages",
    "mm_processor_kwargs",
    "modalities",
    "parallel_tool_calls",
    "parse_tool_calls",
    "reasoning",
    "reasoning_budget",
    "reasoning_effort",
    "reasoning_format",
    "return_assistant_tokens_mask",
    "separate_reasoning",
    "stream_reasoning",
    "thinking",
    "thinking_budget_tokens",
    "tool_choice",
    "tools",
    "verbosity",
    "web_search_options",
];

const COMPLETIONS: &[&str] = &[
    "add_special_tokens",
    "prompt",
    "prompt_embeds",
    "response_fields",
];

const RESPONSES: &[&str] = &[
    "background",
    "chat_template_kwargs",
    "client_metadata",
    "context_management",
    "conversation",
    "enable_response_messages",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "mm_processor_kwargs",
    "parallel_tool_calls",
    "previous_input_messages",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "text",
    "tool_choice",
    "tools",
    "truncation",
];

const MESSAGES: &[&str] = &[
    "cache_control",
    "chat_template_kwargs",
    "container",
    "context_management",
    "inference_geo",
    "max_tokens",
    "mcp_servers",
    "messages",
    "output_config",
    "output_format",
    "prompt_cache_key",
    "service_tier",
    "speed",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];

const EMBEDDINGS: &[&str] = &[
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "dimensions",
    "embed_dtype",
    "encoding_format",
    "endianness",
    "input",
    "input_type",
    "messages",
    "mm_processor_kwargs",
    "normalize",
    "truncate_prompt_tokens",
    "truncation_side",
];

const RANKING: &[&str] = &[
    "activation",
    "add_special_tokens",
    "apply_softmax",
    "chat_template",
    "documents",
    "instruct",
    "instruction",
    "item_first",
    "items",
    "label_token_ids",
    "max_tokens_per_doc",
    "mm_processor_kwargs",
    "queries",
    "query",
    "return_documents",
    "softmax",
    "text_1",
    "text_2",
    "texts",
    "top_k",
    "top_n",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_activation",
];

const TOKENIZE: &[&str] = &[
    "add_generation_prompt",
    "add_special",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "content",
    "continue_final_message",
    "messages",
    "mm_processor_kwargs",
    "parse_special",
    "prompt",
    "return_token_strs",
    "skip_special_tokens",
    "text",
    "tokens",
    "tools",
    "with_pieces",
];

/// The lists of an endpoint beside [`EVERYWHERE`]; none: it knows all fields.
fn lists(endpoint: Endpoint) -> &'static [&'static [&'static str]] {
    match endpoint {
        Endpoint::Chat => &[CHAT, GENERATION],
        Endpoint::Completions => &[COMPLETIONS, GENERATION],
        Endpoint::Responses => &[RESPONSES, GENERATION],
        Endpoint::Messages | Endpoint::CountTokens => &[MESSAGES],
        Endpoint::Embeddings => &[EMBEDDINGS],
        Endpoint::Rerank | Endpoint::Score => &[RANKING],
        Endpoint::Tokenize | Endpoint::Detokenize => &[TOKENIZE],
        Endpoint::Models | Endpoint::Other => &[],
    }
}

/// The request's top-level fields that the endpoint does not know, in wire order. Endpoints
/// without a list of fields know all.
pub fn unsupported_fields<'h, 'a: 'h>(
    head: &'h RequestHead<'a>,
    endpoint: Endpoint,
) -> impl Iterator<Item = &'a str> + 'h {
    let lists = lists(endpoint);
    head.fields.iter().map(|f| f.name).filter(move |name| {
        let known = || EVERYWHERE.contains(name) || lists.iter().any(|list| list.contains(name));
        !lists.is_empty() && !known()
    })
}

/// The option that has an engine cut the prompt to so many tokens; -1: to what it can take.
pub const TRUNCATE: &str = "truncate_prompt_tokens";
/// Which side it cuts.
pub const TRUNCATION_SIDE: &str = "truncation_side";

/// Whether the engine is to cut the prompt where it is too long.
#[must_use]
pub fn truncates(head: &RequestHead<'_>) -> bool {
    head.value(TRUNCATE).is_some_and(|value| !value.is_null())
}

/// Whether the engine may serve the prompt from its cache: not where the request says so (llama.cpp's
/// `cache_prompt`), nor where it asks for the probabilities of the prompt's own tokens, which are only
/// had by computing them (vLLM; a completion's `echo` with `logprobs` is the same).
#[must_use]
pub fn reads_cache(head: &RequestHead<'_>) -> bool {
    let said = |name: &str| head.value(name).filter(|value| !value.is_null());
    let is = |name: &str, flag: bool| said(name).and_then(|value| value.bool()) == Some(flag);
    let probabilities = said("prompt_logprobs").is_some()
        || said("prompt_logprob_token_ids").is_some()
        || (is("echo", true) && said("logprobs").is_some());
    !(is("cache_prompt", false) || probabilities)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::head::parse;

    #[test]
    fn unknown_fields_are_named_in_wire_order() {
        let body = br#"{"model":"m","zz":1,"messages":[],"min_p":0.1,"aa":{}}"#;
        let head = parse(Endpoint::Chat, body, 128).unwrap();
        let names: Vec<_> = unsupported_fields(&head, Endpoint::Chat).collect();
        assert_eq!(names, ["zz", "aa"]);
        assert_eq!(unsupported_fields(&head, Endpoint::Other).count(), 0);
    }
}
