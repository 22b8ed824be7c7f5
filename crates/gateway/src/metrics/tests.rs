use super::{CancelStage, Metrics};
use maitred_core::request::{Failure, KeySource, Usage};
use maitred_records::{Outcome, SinkCounts};
use maitred_wire::Endpoint;
use std::time::Duration;

fn text(metrics: &Metrics) -> String {
    metrics.render(&[], SinkCounts::default())
}

fn series(text: &str, family: &str) -> usize {
    text.lines().filter(|line| line.starts_with(family)).count()
}

fn assert_has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|l| l == *line), "{line}\n{text}");
    }
}

#[test]
fn unknown_models_share_one_series() {
    let metrics = Metrics::new();
    let pool = metrics.pool("chat");
    pool.know_model("llama");
    for number in 0..10_000 {
        let handles = pool.model(&format!("junk-{number}"));
        handles.request(Endpoint::Chat, Outcome::Served);
    }
    pool.model("llama").request(Endpoint::Chat, Outcome::Served);
    let text = text(&metrics);
    assert_eq!(series(&text, "maitred_requests_total{"), 2, "{text}");
    assert_has(
        &text,
        &[
            "maitred_requests_total{pool=\"chat\",model=\"other\",route=\"/v1/chat/completions\",outcome=\"served\"} 10000",
            "maitred_requests_total{pool=\"chat\",model=\"llama\",route=\"/v1/chat/completions\",outcome=\"served\"} 1",
        ],
    );
}

#[test]
fn discovered_models_are_bounded() {
    let metrics = Metrics::new();
    let pool = metrics.pool("chat");
    for number in 0..10_000 {
        let name = format!("adapter-{number}");
        pool.know_model(&name);
        pool.model(&name)
            .request(Endpoint::Other, Outcome::Rejected);
    }
    // 64 with their own and the one for all others.
    assert_eq!(series(&text(&metrics), "maitred_requests_total{"), 65);
}

#[test]
fn tokens_are_summed_and_unknown_is_counted_apart() {
    let metrics = Metrics::new();
    let pool = metrics.pool("chat");
    let told = Usage {
        prompt_tokens: Some(100),
        cached_tokens: Some(80),
        output_tokens: Some(7),
    };
    pool.served(1, Duration::from_millis(40), &told);
    pool.served(3, Duration::from_secs(2), &Usage::default());
    pool.first_token(3, Duration::from_millis(200));
    assert_has(
        &text(&metrics),
        &[
            "maitred_prompt_tokens_total{pool=\"chat\"} 100",
            "maitred_output_tokens_total{pool=\"chat\"} 7",
            "maitred_cached_tokens_total{pool=\"chat\"} 80",
            "maitred_cached_unknown_total{pool=\"chat\"} 1",
            "maitred_request_duration_seconds_count{pool=\"chat\",turn=\"first\"} 1",
            "maitred_request_duration_seconds_count{pool=\"chat\",turn=\"follow_up\"} 1",
            "maitred_time_to_first_token_seconds_count{pool=\"chat\",turn=\"follow_up\"} 1",
            "maitred_time_to_first_token_seconds_bucket{le=\"0.25\",pool=\"chat\",turn=\"follow_up\"} 1",
        ],
    );
}

#[test]
fn every_failure_stage_and_source_has_its_counter() {
    let metrics = Metrics::new();
    let pool = metrics.pool("chat");
    pool.retried(Failure::Connect);
    pool.cancelled(CancelStage::Streaming);
    pool.session_key(KeySource::PromptCacheKey);
    let worker = pool.worker("w1");
    worker.failed(Failure::Saturated);
    worker.probe_failed();
    assert_has(
        &text(&metrics),
        &[
            "maitred_retries_total{pool=\"chat\",failure=\"connect\"} 1",
            "maitred_cancels_total{pool=\"chat\",stage=\"streaming\"} 1",
            "maitred_session_keys_total{pool=\"chat\",source=\"prompt_cache_key\"} 1",
            "maitred_upstream_failures_total{pool=\"chat\",worker=\"w1\",failure=\"saturated\"} 1",
            "maitred_probe_failures_total{pool=\"chat\",worker=\"w1\"} 1",
        ],
    );
    let again = pool.worker("w1");
    drop(worker);
    again.probe_failed();
    assert_has(
        &text(&metrics),
        &["maitred_probe_failures_total{pool=\"chat\",worker=\"w1\"} 2"],
    );
    drop(again);
    assert!(!text(&metrics).contains("worker=\"w1\""));
}
