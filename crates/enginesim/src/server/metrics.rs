//! `/metrics`, under vLLM's names.

use std::fmt::Write as _;

use super::Replica;

/// The Prometheus text of one replica.
pub(super) fn text(replica: &Replica) -> String {
    let m = replica.metrics();
    let labels = format!(
        "engine=\"0\",model_name=\"{}\"",
        replica
            .served_model
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
    );
    let kv_usage = m.blocks_used as f64 / m.blocks_total.max(1) as f64;
    let rows: [(&str, &str, &str, f64); 9] = [
        (
            "vllm:num_requests_running",
            "gauge",
            "Sequences running.",
            m.running as f64,
        ),
        (
            "vllm:num_requests_waiting",
            "gauge",
            "Requests waiting.",
            m.waiting as f64,
        ),
        (
            "vllm:kv_cache_usage_perc",
            "gauge",
            "KV blocks in use, 1 is all.",
            kv_usage,
        ),
        (
            "vllm:prefix_cache_queries_total",
            "counter",
            "Prompt tokens looked up.",
            m.prefix_queries as f64,
        ),
        (
            "vllm:prefix_cache_hits_total",
            "counter",
            "Prompt tokens found.",
            m.prefix_hits as f64,
        ),
        (
            "vllm:prompt_tokens_total",
            "counter",
            "Prompt tokens.",
            m.prompt_tokens as f64,
        ),
        (
            "vllm:generation_tokens_total",
            "counter",
            "Generated tokens.",
            m.generation_tokens as f64,
        ),
        (
            "vllm:num_preemptions_total",
            "counter",
            "Preemptions.",
            m.preemptions as f64,
        ),
        (
            "vllm:request_success_total",
            "counter",
            "Requests finished.",
            m.finished as f64,
        ),
    ];
    let mut out = String::with_capacity(2_048);
    for (name, kind, help, value) in rows {
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{{labels}}} {value}\n"
        );
    }
    let _ = write!(
        out,
        "# HELP vllm:cache_config_info Cache configuration.\n# TYPE vllm:cache_config_info gauge\n\
         vllm:cache_config_info{{block_size=\"{}\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"{}\"}} 1\n\
         # HELP process_start_time_seconds Start of the process, Unix seconds.\n\
         # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {:.3}\n",
        replica.block_tokens,
        m.blocks_total,
        replica.started.as_secs_f64(),
    );
    out
}
