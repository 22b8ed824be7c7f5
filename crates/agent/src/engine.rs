//! What the engine says of itself: its models, and how long a prompt with its answer may be.

use crate::call::{Base, CallError};
use http::Method;
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);

/// What was found out. Unknown is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) models: Vec<String>,
    pub(crate) context_max: Option<u32>,
}

/// Asks the engine; an error: it is not there, or not ready.
pub(crate) async fn ask(engine: &Base, key: Option<&str>) -> Result<About, CallError> {
    let get = |path| engine.ask(Method::GET, path, key, Vec::new(), PATIENCE);
    let (status, body) = get("/v1/models").await?;
    if status >= 500 {
        return Err(CallError::Broken(format!("/v1/models: status {status}")));
    }
    let mut about = read_models(&body);
    if about.context_max.is_none()
        && let Ok((200, body)) = get("/props").await
    {
        about.context_max = read_props(&body);
    }
    Ok(about)
}

/// vLLM and SGLang say `max_model_len` of each model; the shortest counts.
fn read_models(body: &[u8]) -> About {
    let list: Value = serde_json::from_slice(body).unwrap_or_default();
    let data = list["data"].as_array().map_or(&[][..], Vec::as_slice);
    let names = data.iter().filter_map(|model| model["id"].as_str());
    let lengths = data
        .iter()
        .filter_map(|model| model["max_model_len"].as_u64());
    About {
        models: names.map(str::to_owned).collect(),
        context_max: lengths.min().and_then(|n| u32::try_from(n).ok()),
    }
}

/// llama.cpp says it for one slot.
fn read_props(body: &[u8]) -> Option<u32> {
    let props: Value = serde_json::from_slice(body).ok()?;
    let length = props["default_generation_settings"]["n_ctx"].as_u64()?;
    u32::try_from(length).ok().filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::{read_models, read_props};

    #[test]
    fn engines_tell_in_different_places() {
        let vllm =
            br#"{"data":[{"id":"m","max_model_len":4096},{"id":"lora","max_model_len":4096}]}"#;
        let about = read_models(vllm);
        assert_eq!(about.models, ["m", "lora"]);
        assert_eq!(about.context_max, Some(4_096));
        assert_eq!(read_models(br#"{"data":[{"id":"m"}]}"#).context_max, None);
        let props = br#"{"default_generation_settings":{"n_ctx":2048}}"#;
        assert_eq!(read_props(props), Some(2_048));
        assert_eq!(read_props(b"no"), None);
    }
}
