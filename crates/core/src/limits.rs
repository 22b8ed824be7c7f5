//! Every bound of the core, by name. Reaching one is a typed outcome that is counted, never a panic.

/// Workers in one pool.
pub const WORKERS_MAX: usize = 4_096;
/// Attempts of one request, the first included, whatever the configuration says.
pub const ATTEMPTS_MAX: u8 = 8;
/// Blocks of one chain that are looked at; a longer prompt is known by its beginning.
pub const CHAIN_BLOCKS_MAX: usize = 65_536;
/// Candidates written into one decision record (the chosen one and the best of the rest).
pub const DECISION_CANDIDATES_MAX: usize = 8;
/// Bands of one pool.
pub const BANDS_MAX: usize = 16;
/// Tenants that one view of the line lists.
pub const TENANTS_SHOWN_MAX: usize = 64;
/// Requests of one class that hold for their workers at once; beyond it they sit where a seat is.
pub const HOLDERS_MAX: usize = 64;
/// Heads of the line that one dispatch opportunity looks at.
pub const LINE_SCAN_MAX: usize = 64;
/// Sessions whose home is remembered, per pool.
pub const SESSIONS_MAX: usize = 65_536;
/// Sessions whose lineage is remembered, per pool; of one that is forgotten the causes are unknown.
pub const LINEAGES_MAX: usize = 16_384;
/// Response ids whose worker is remembered, per pool.
pub const RESPONSES_MAX: usize = 65_536;
/// Bytes of predicted residency, per pool, before the oldest is dropped.
pub const INDEX_BYTES_MAX: usize = 32 << 20;
/// Ranks of all workers of a pool that send KV events.
pub const OWNERS_MAX: usize = 16_384;
/// Bytes of observed residency, per pool; what does not fit is not known, and counted.
pub const OBSERVED_BYTES_MAX: usize = 256 << 20;
/// Blocks missing in the middle of what a rank said it holds, before all of it is given up.
pub const GAPS_MAX: usize = 1_024;
/// Removals remembered for a moment, per pool.
pub const REMOVED_LATELY_MAX: usize = 65_536;
/// Engine blocks in one `KvEvents`: see [`KvBatch::split`](crate::prefix::KvBatch::split).
pub const KV_BLOCKS_AT_ONCE: usize = 4_096;
