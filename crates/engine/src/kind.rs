//! The kinds of engines.

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

    /// What a probe's answer says.
    #[must_use]
    pub fn readiness(self, status: u16, body: &[u8]) -> Readiness {
        let _ = body;
        match status {
            200..=299 => Readiness::Ready,
            _ => Readiness::Unready,
        }
    }

    /// The kind, from a metrics text; None where it does not tell.
    #[must_use]
    pub fn of_metrics(_text: &str) -> Option<Self> {
        None
    }

    /// The kind, from the answer of `/v1/models`; None where it does not tell.
    #[must_use]
    pub fn of_models(_body: &[u8]) -> Option<Self> {
        None
    }
}
