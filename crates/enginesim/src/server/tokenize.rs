//! `/tokenize`, `/detokenize` and `/v1/messages/count_tokens`.

use serde_json::{Value, json};

use super::ask::{self, Refusal};
use crate::tokens;

/// Answers one of the three paths.
pub(super) fn answer(path: &str, body: &[u8], context_tokens: usize) -> Result<Value, Refusal> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|e| Refusal::bad(format!("the body is not JSON: {e}"), None))?;
    match path {
        "/detokenize" => {
            let ids = body
                .get("tokens")
                .and_then(Value::as_array)
                .and_then(|ids| {
                    ids.iter()
                        .map(|id| u32::try_from(id.as_u64()?).ok())
                        .collect::<Option<Vec<u32>>>()
                })
                .ok_or_else(|| {
                    Refusal::bad("tokens must be a list of token ids", Some("tokens"))
                })?;
            Ok(json!({"prompt": tokens::text_of(&ids)}))
        }
        "/tokenize" => {
            let ids = match body.get("prompt") {
                Some(Value::String(text)) => {
                    let mut ids = Vec::new();
                    tokens::push_text(text, &mut ids);
                    ids
                }
                Some(_) => return Err(Refusal::bad("prompt must be a string", Some("prompt"))),
                None => ask::chat(&body)?,
            };
            Ok(
                json!({"count": ids.len(), "max_model_len": context_tokens, "tokens": ids, "token_strs": null}),
            )
        }
        _ => Ok(json!({"input_tokens": ask::chat(&body)?.len()})),
    }
}
