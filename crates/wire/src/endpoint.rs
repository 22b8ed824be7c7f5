//! Which API a path belongs to.

/// The API family: it decides the shape of errors and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// OpenAI's shapes.
    OpenAi,
    /// Anthropic's shapes.
    Anthropic,
}

/// What a request asks of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
    /// `/v1/messages/count_tokens`.
    CountTokens,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/v1/rerank`, `/v2/rerank`, `/rerank`.
    Rerank,
    /// `/v1/score`, `/score`.
    Score,
    /// `/tokenize`.
    Tokenize,
    /// `/detokenize`.
    Detokenize,
    /// `/v1/models` and one of them.
    Models,
    /// Any other path.
    Other,
}

impl Endpoint {
    /// Reads method and path (a query is ignored).
    #[must_use]
    pub fn of(method: &str, path: &str) -> Self {
        let path = path.split('?').next().unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        let short = path.strip_prefix("/v1").unwrap_or(path);
        if method.eq_ignore_ascii_case("GET") {
            return if short == "/models" || short.starts_with("/models/") {
                Self::Models
            } else {
                Self::Other
            };
        }
        if !method.eq_ignore_ascii_case("POST") {
            return Self::Other;
        }
        match short {
            "/chat/completions" => Self::Chat,
            "/completions" => Self::Completions,
            "/responses" => Self::Responses,
            "/messages" => Self::Messages,
            "/messages/count_tokens" => Self::CountTokens,
            "/embeddings" => Self::Embeddings,
            "/rerank" | "/reranking" | "/v2/rerank" => Self::Rerank,
            "/score" => Self::Score,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            _ => Self::Other,
        }
    }

    /// The family whose shapes it speaks.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::Messages | Self::CountTokens => Family::Anthropic,
            _ => Family::OpenAi,
        }
    }

    /// The route as a metric label: one value per endpoint, whatever the client's path was.
    #[must_use]
    pub fn route(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::Embeddings => "/v1/embeddings",
            Self::Rerank => "/v1/rerank",
            Self::Score => "/v1/score",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::Models => "/v1/models",
            Self::Other => "unmatched",
        }
    }

    /// Whether the body carries a prompt that the engine reads.
    #[must_use]
    pub fn has_prompt(self) -> bool {
        !matches!(self, Self::Models | Self::Other)
    }

    /// Whether the engine writes tokens for it (so that a stream, a first token and usage exist).
    #[must_use]
    pub fn generates(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Completions | Self::Responses | Self::Messages
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_known_in_all_the_forms_that_engines_have() {
        for (path, endpoint) in [
            ("/v1/chat/completions", Endpoint::Chat),
            ("/chat/completions", Endpoint::Chat),
            ("/v1/completions?x=1", Endpoint::Completions),
            ("/v1/responses", Endpoint::Responses),
            ("/v1/responses/compact", Endpoint::Other),
            ("/v1/messages", Endpoint::Messages),
            ("/v1/messages/count_tokens", Endpoint::CountTokens),
            ("/v2/rerank", Endpoint::Rerank),
            ("/rerank", Endpoint::Rerank),
            ("/score/", Endpoint::Score),
            ("/v1/tokenize", Endpoint::Tokenize),
            ("/detokenize", Endpoint::Detokenize),
            ("/", Endpoint::Other),
            ("/v1", Endpoint::Other),
            ("", Endpoint::Other),
        ] {
            assert_eq!(Endpoint::of("POST", path), endpoint, "{path}");
        }
        assert_eq!(Endpoint::of("GET", "/v1/models"), Endpoint::Models);
        assert_eq!(Endpoint::of("GET", "/v1/models/a/b"), Endpoint::Models);
        assert_eq!(Endpoint::of("GET", "/v1/chat/completions"), Endpoint::Other);
    }

    #[test]
    fn unknown_paths_share_one_label() {
        for n in 0..1000 {
            let path = format!("/scan/{n}.php");
            assert_eq!(Endpoint::of("GET", &path).route(), "unmatched");
        }
    }
}
