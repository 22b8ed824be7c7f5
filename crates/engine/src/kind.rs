//! The kinds of engines.

use maitred_wire::json::{self, Value};
use maitred_wire::prometheus::samples;
use serde::{Deserialize, Serialize};

/// What kind of engine a worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's server.
    #[serde(alias = "llama.cpp", alias = "llama-cpp", alias = "llama_cpp")]
    LlamaCpp,
    /// Hugging Face text-generation-inference.
    Tgi,
    /// maitred's own simulated engine, or another maitred.
    Maitred,
    /// Anything else that speaks the API.
    #[default]
    Generic,
}

/// What a probe's answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can serve.
    Ready,
    /// Alive, but still loading its model.
    Loading,
    /// It cannot serve.
    Unready,
}

impl EngineKind {
    /// The name used in config, records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaCpp => "llamacpp",
            Self::Tgi => "tgi",
            Self::Maitred => "maitred",
            Self::Generic => "generic",
        }
    }

    /// The path to probe with GET.
    #[must_use]
    pub fn probe_path(self) -> &'static str {
        "/health"
    }

    /// The path of the metrics text; None where the kind has none.
    #[must_use]
    pub fn metrics_path(self) -> Option<&'static str> {
        Some("/metrics")
    }

    /// The path that empties the prefix cache with POST; None where the kind has none.
    #[must_use]
    pub fn reset_path(self) -> Option<&'static str> {
        match self {
            Self::Vllm | Self::Maitred => Some("/reset_prefix_cache"),
            Self::Sglang => Some("/flush_cache"),
            _ => None,
        }
    }

    /// What the answer of a probe says.
    #[must_use]
    pub fn readiness(self, status: u16, body: &[u8]) -> Readiness {
        match status {
            200..=299 => Readiness::Ready,
            // llama.cpp: 503 {"error":{"message":"Loading model","type":"unavailable_error"}}.
            // Other engines do not listen before they are loaded.
            503 if loading(body) => Readiness::Loading,
            _ => Readiness::Unready,
        }
    }

    /// The kind, from a metrics text; None where it does not tell.
    #[must_use]
    pub fn of_metrics(text: &str) -> Option<Self> {
        samples(text).find_map(|sample| {
            Some(match sample.name {
                name if name.starts_with("vllm:") => Self::Vllm,
                name if name.starts_with("sglang:") => Self::Sglang,
                name if name.starts_with("llamacpp:") => Self::LlamaCpp,
                name if name.starts_with("tgi_") => Self::Tgi,
                name if name.starts_with("maitred_") => Self::Maitred,
                _ => return None,
            })
        })
    }

    /// What the request field `priority` must be for a request of the band at that place (from 0, the
    /// most urgent) of that many; None where the engine has no such field.
    ///
    /// vLLM serves lower values first (`--scheduling-policy priority`), SGLang higher ones
    /// (`--enable-priority-scheduling`, without `--schedule-low-priority-values-first`).
    #[must_use]
    pub fn priority(self, band: u16, bands: u16) -> Option<u16> {
        match self {
            Self::Vllm => Some(band),
            Self::Sglang => Some(bands.saturating_sub(1).saturating_sub(band)),
            _ => None,
        }
    }

    /// The kind, from the answer of `/v1/models` (`owned_by` of its first entry); None where it
    /// does not tell.
    #[must_use]
    pub fn of_models(body: &[u8]) -> Option<Self> {
        let long = json::check(body, DEPTH_MAX).ok()?;
        let list = Value::document(body, &long).get("data")?;
        let owner = list.elements().find_map(|model| model.get("owned_by"))?;
        Some(match owner.string_raw()? {
            b"vllm" => Self::Vllm,
            b"sglang" => Self::Sglang,
            b"llamacpp" => Self::LlamaCpp,
            b"maitred" => Self::Maitred,
            _ => return None,
        })
    }
}

/// Nesting up to which an engine's own answers are read.
pub(crate) const DEPTH_MAX: usize = 64;

fn loading(body: &[u8]) -> bool {
    let word = b"loading";
    body.windows(word.len())
        .any(|window| window.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loading_engine_is_not_a_failed_one() {
        let body =
            br#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#;
        let kind = EngineKind::LlamaCpp;
        assert_eq!(kind.readiness(503, body), Readiness::Loading);
        assert_eq!(kind.readiness(503, b""), Readiness::Unready);
        assert_eq!(kind.readiness(500, b"loading"), Readiness::Unready);
        assert_eq!(kind.readiness(200, b""), Readiness::Ready);
    }

    #[test]
    fn the_urgent_band_is_the_first_one_of_every_engine() {
        let of = |kind: EngineKind| [0, 1, 2].map(|band| kind.priority(band, 3));
        assert_eq!(of(EngineKind::Vllm), [Some(0), Some(1), Some(2)]);
        assert_eq!(of(EngineKind::Sglang), [Some(2), Some(1), Some(0)]);
        assert_eq!(of(EngineKind::LlamaCpp), [None; 3]);
    }

    #[test]
    fn kinds_are_told_by_what_they_say() {
        let metrics = "python_info{a=\"b\"} 1\nvllm:num_requests_running 0\n";
        assert_eq!(EngineKind::of_metrics(metrics), Some(EngineKind::Vllm));
        assert_eq!(EngineKind::of_metrics("up 1"), None);
        let models = br#"{"object":"list","data":[{"id":"m","owned_by":"sglang"}]}"#;
        assert_eq!(EngineKind::of_models(models), Some(EngineKind::Sglang));
        assert_eq!(EngineKind::of_models(b"[]"), None);
        assert_eq!(EngineKind::of_models(b"not json"), None);
    }
}
