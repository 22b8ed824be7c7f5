//! An engine's load and size from its metrics text.

use crate::kind::EngineKind;
use maitred_wire::prometheus::{Sample, samples};

/// What an engine says of its load and size. Unknown is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineGauges {
    /// Requests being served.
    pub running: Option<u32>,
    /// Requests in the engine's own queue.
    pub waiting: Option<u32>,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens the KV cache can hold.
    pub kv_tokens: Option<u64>,
    /// Tokens of one KV block.
    pub block_tokens: Option<u32>,
    /// Unix time of the process's start, seconds: another value is another life of the cache.
    pub started: Option<f64>,
}

/// What a metric is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Running,
    Waiting,
    KvUsage,
    KvTokens,
    /// vLLM's cache settings, as labels.
    CacheConfig,
    Started,
}

/// The role of a metric's name; the names of all kinds differ, so one table does.
fn role(name: &str) -> Option<Role> {
    Some(match name {
        "vllm:num_requests_running"
        | "sglang:num_running_reqs"
        | "llamacpp:requests_processing"
        | "tgi_batch_current_size" => Role::Running,
        "vllm:num_requests_waiting"
        | "sglang:num_queue_reqs"
        | "llamacpp:requests_deferred"
        | "tgi_queue_size" => Role::Waiting,
        // The last is vLLM's name up to 0.10; llama.cpp had its own for a while.
        "vllm:kv_cache_usage_perc"
        | "sglang:token_usage"
        | "llamacpp:kv_cache_usage_ratio"
        | "vllm:gpu_cache_usage_perc" => Role::KvUsage,
        "sglang:max_total_num_tokens" => Role::KvTokens,
        "vllm:cache_config_info" => Role::CacheConfig,
        "process_start_time_seconds" => Role::Started,
        _ => return None,
    })
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    total: f64,
    series: u32,
}

impl Sum {
    fn add(&mut self, value: f64) {
        if value.is_finite() && value >= 0.0 {
            self.total += value;
            self.series += 1;
        }
    }

    fn total(self) -> Option<f64> {
        (self.series > 0).then_some(self.total)
    }

    fn mean(self) -> Option<f64> {
        self.total().map(|total| total / f64::from(self.series))
    }
}

/// Counts beyond the type are its largest value.
fn count(value: f64) -> u32 {
    value as u32
}

/// Reads the gauges of an engine. Several series of one name (data-parallel ranks) are added up,
/// shares averaged. The kind is not needed to tell names apart; it says whether to look at all.
#[must_use]
pub fn gauges(kind: EngineKind, text: &str) -> EngineGauges {
    let (mut running, mut waiting, mut usage, mut tokens) = (
        Sum::default(),
        Sum::default(),
        Sum::default(),
        Sum::default(),
    );
    let mut out = EngineGauges::default();
    if kind.metrics_path().is_none() {
        return out;
    }
    for sample in samples(text) {
        match role(sample.name) {
            Some(Role::Running) => running.add(sample.value),
            Some(Role::Waiting) => waiting.add(sample.value),
            Some(Role::KvUsage) => usage.add(sample.value),
            Some(Role::KvTokens) => tokens.add(sample.value),
            Some(Role::CacheConfig) => {
                let (block, capacity) = cache_config(&sample);
                out.block_tokens = block.or(out.block_tokens);
                if let Some(capacity) = capacity {
                    tokens.add(capacity);
                }
            }
            Some(Role::Started) => out.started = Some(sample.value).filter(|v| v.is_finite()),
            None => {}
        }
    }
    out.running = running.total().map(count);
    out.waiting = waiting.total().map(count);
    out.kv_usage = usage.mean().map(|share| share.min(1.0));
    out.kv_tokens = tokens.total().map(|total| total as u64);
    out
}

/// Tokens of a block, and of all blocks.
fn cache_config(sample: &Sample<'_>) -> (Option<u32>, Option<f64>) {
    let number = |name| sample.label(name)?.parse::<u32>().ok();
    let block = number("block_size").filter(|n| *n > 0);
    let blocks = number("num_gpu_blocks").filter(|n| *n > 0);
    let capacity = block.zip(blocks).map(|(b, n)| f64::from(b) * f64::from(n));
    (block, capacity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_ranks_are_added_up() {
        let text = "# TYPE vllm:num_requests_running gauge\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 2.0\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 9.0\n\
            vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 9.0\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n\
            vllm:kv_cache_usage_perc{engine=\"1\"} 0.25\n\
            vllm:cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"160\"} 1.0\n\
            process_start_time_seconds 1.79595679587e+09\n";
        assert_eq!(
            gauges(EngineKind::Vllm, text),
            EngineGauges {
                running: Some(5),
                waiting: Some(9),
                kv_usage: Some(0.375),
                kv_tokens: Some(5_120),
                block_tokens: Some(32),
                started: Some(1_795_956_795.87),
            }
        );
    }

    #[test]
    fn the_other_kinds_are_read_and_unknown_is_not_zero() {
        let sglang = "sglang:num_running_reqs{model_name=\"m\"} 4\nsglang:num_queue_reqs 1\n\
            sglang:token_usage 0.28\nsglang:max_total_num_tokens 8000\n";
        let read = gauges(EngineKind::Sglang, sglang);
        assert_eq!((read.running, read.waiting), (Some(4), Some(1)));
        assert_eq!((read.kv_usage, read.kv_tokens), (Some(0.28), Some(8_000)));
        assert_eq!(read.started, None);
        let llamacpp = "llamacpp:requests_processing 4\nllamacpp:requests_deferred 0\n";
        let read = gauges(EngineKind::LlamaCpp, llamacpp);
        assert_eq!((read.running, read.waiting), (Some(4), Some(0)));
        assert_eq!(read.kv_usage, None);
        let tgi = "tgi_batch_current_size 2\ntgi_queue_size NaN\n";
        let read = gauges(EngineKind::Tgi, tgi);
        assert_eq!((read.running, read.waiting), (Some(2), None));
        assert_eq!(gauges(EngineKind::Generic, ""), EngineGauges::default());
    }
}
