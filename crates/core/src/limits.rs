//! Every bound of the core, by name. Reaching one is a typed outcome that is counted, never a panic.

/// Workers in one pool.
pub const WORKERS_MAX: usize = 4_096;
/// Attempts of one request, the first included, whatever the configuration says.
pub const ATTEMPTS_MAX: u8 = 8;
/// Blocks of one chain that are looked at; a longer prompt is known by its beginning.
pub const CHAIN_BLOCKS_MAX: usize = 65_536;
/// Candidates written into one decision record (the chosen one and the best of the rest).
pub const DECISION_CANDIDATES_MAX: usize = 8;
/// Heads of the line that one dispatch opportunity looks at.
pub const LINE_SCAN_MAX: usize = 64;
/// Sessions whose home is remembered, per pool.
pub const SESSIONS_MAX: usize = 65_536;
/// Response ids whose worker is remembered, per pool.
pub const RESPONSES_MAX: usize = 65_536;
/// Bytes of predicted residency, per pool, before the oldest is dropped.
pub const INDEX_BYTES_MAX: usize = 32 << 20;
