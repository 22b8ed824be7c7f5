//! How far a request came, as labels.

/// How far a request was when its client left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelStage {
    /// In the line.
    Queued,
    /// Connecting to the worker or sending the request.
    Connecting,
    /// Waiting for the head of the answer or its first token.
    Waiting,
    /// After the first token.
    Streaming,
}

impl CancelStage {
    pub(super) const ALL: [Self; 4] = [
        Self::Queued,
        Self::Connecting,
        Self::Waiting,
        Self::Streaming,
    ];

    /// The name used in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Connecting => "connecting",
            Self::Waiting => "waiting",
            Self::Streaming => "streaming",
        }
    }
}

/// How a wait for a seat ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// It was placed.
    Seated,
    /// It was refused.
    Refused,
    /// Its client left.
    Left,
}

impl WaitEnd {
    pub(super) const ALL: [Self; 3] = [Self::Seated, Self::Refused, Self::Left];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Seated => "seated",
            Self::Refused => "refused",
            Self::Left => "left",
        }
    }
}
