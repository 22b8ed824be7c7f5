//! The effective configuration as JSON, without its secrets.

use super::identity::IdentitySettings;
use super::kv_events::KvEventsSettings;
use super::line;
use super::pull::PullSettings;
use super::settings::{Config, EngineChoice, PoolSettings, WorkerSettings};
use super::tenants::TenantSettings;
use maitred_core::pool::Seats;
use maitred_core::scheduler::LostResponse;
use serde_json::{Value, json};
use std::time::Duration;

const REDACTED: &str = "[redacted]";

impl Config {
    /// Every setting in force, under its name in the file. Secrets show only whether they are set.
    #[must_use]
    pub fn show(&self) -> Value {
        json!({
            "listen": self.listen.to_string(),
            "admin": self.admin.to_string(),
            "admin_token": self.admin_token.as_ref().map(|_| REDACTED),
            "worker_allow": texts(&self.worker_allow),
            "threads": self.threads,
            "strict": self.strict,
            "limits": {
                "body_max_bytes": self.limits.body_max_bytes,
                "header_max_bytes": self.limits.header_max_bytes,
                "headers_max": self.limits.headers_max,
                "connections_max": self.limits.connections_max,
                "json_depth_max": self.limits.json_depth_max,
            },
            "timeouts": {
                "connect": seconds(self.timeouts.connect),
                "first_byte": seconds(self.timeouts.first_byte),
                "idle": seconds(self.timeouts.idle),
                "total": seconds(self.timeouts.total),
                "header_read": seconds(self.timeouts.header_read),
            },
            "tolerate_half_close": self.tolerate_half_close,
            "trusted_proxies": texts(&self.trusted_proxies),
            "tenants": self.show_tenants(),
            "anonymous": self.anonymous().as_str(),
            "tenant_header": self.tenant_header,
            "salt_secret": self.salt_secret.as_ref().map(|_| REDACTED),
            "cors_origins": self.cors_origins,
            "expose": self.expose,
            "session_header": self.session_headers,
            "scenario_header": self.scenario_header,
            "records": {
                "dir": self.records.dir.as_ref().map(|dir| dir.display().to_string()),
                "rotate_bytes": self.records.rotate_bytes,
                "keep_files": self.records.keep_files,
                "buffer": self.records.buffer,
            },
            "shutdown_grace": seconds(self.shutdown_grace),
            "seed": self.seed,
            "pull": self.pull.as_ref().map(PullSettings::show),
            "pools": self.pools.iter().map(show_pool).collect::<Vec<_>>(),
        })
    }
}

impl Config {
    /// The tenants as they are shown.
    pub(crate) fn show_tenants(&self) -> Value {
        self.tenants.iter().map(TenantSettings::show).collect()
    }
}

fn show_pool(pool: &PoolSettings) -> Value {
    let core = &pool.core;
    let mut shown = json!({
        "name": pool.name,
        "model": pool.model,
        "aliases": pool.aliases,
        "upstream_model": pool.upstream_model,
        "policy": core.policy.name(),
        "attempts": core.attempts,
        "hold_max": seconds(core.hold_max),
        "line_max": core.line_max,
        "max_wait": seconds(core.max_wait),
        "no_worker_wait": seconds(core.no_worker_wait),
        "session_idle": seconds(core.session_idle),
        "sessions_max": core.sessions_max,
        "index_bytes_max": core.index_bytes_max,
        "block_bytes": core.block_bytes,
        "token_block": core.token_block,
        "identity": pool.identity.as_ref().map(IdentitySettings::show),
        "learn_slots": core.learn_slots,
        "stale_after": seconds(core.stale_after),
        "kv_tokens_assumed": core.kv_tokens,
        "output_tokens": core.output_tokens,
        "breaker": { "faults": core.breaker.faults, "open": seconds(core.breaker.open) },
        "lost_response": match core.lost_response {
            LostResponse::Place => "place",
            LostResponse::Refuse => "refuse",
        },
        "probe": {
            "interval": seconds(pool.probe.interval),
            "interval_down": seconds(pool.probe.interval_down),
            "timeout": seconds(pool.probe.timeout),
            "failures": core.probes.failures,
            "bytes_count_for": seconds(core.probes.bytes_count_for),
            "path": pool.probe.path,
        },
        "scrape": {
            "interval": seconds(pool.scrape.interval),
            "timeout": seconds(pool.scrape.timeout),
        },
        "idle_connections": {
            "timeout": seconds(pool.idle.timeout),
            "max": pool.idle.connections_max,
        },
        "queue_heartbeat": seconds(pool.queue_heartbeat),
        "pass_credentials": pool.pass_credentials,
        "developer_as_system": pool.developer_as_system,
        "forward_priority": pool.forward_priority,
        "isolation": pool.isolation.mode.as_str(),
        "inject_cache_salt": pool.isolation.inject_cache_salt,
        "revision": pool.revision,
        "api_key": pool.api_key.as_ref().map(|_| REDACTED),
        "engine": engine(pool.engine),
        "workers": pool.workers.iter().map(show_worker).collect::<Vec<_>>(),
    });
    for (name, value) in line::show(core) {
        shown[name] = value;
    }
    add_seats(&mut shown, &pool.seats);
    shown
}

fn show_worker(worker: &WorkerSettings) -> Value {
    let mut shown = json!({
        "name": worker.name,
        "url": worker.url.to_string(),
        "engine": engine(worker.engine),
        "models": worker.models,
        "assume_ready": worker.assume_ready,
        "kv_events": worker.kv_events.as_ref().map(KvEventsSettings::show),
        "api_key": worker.api_key.as_ref().map(|_| REDACTED),
    });
    add_seats(&mut shown, &worker.seats);
    shown
}

fn add_seats(shown: &mut Value, seats: &Seats) {
    shown["slots"] = json!(seats.slots);
    shown["prefill_tokens"] = json!(seats.prefill_tokens);
    shown["kv_tokens"] = json!(seats.kv_tokens);
}

fn engine(choice: EngineChoice) -> &'static str {
    match choice {
        EngineChoice::Auto => "auto",
        EngineChoice::Kind(kind) => kind.as_str(),
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

fn texts<T: std::fmt::Display>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}
