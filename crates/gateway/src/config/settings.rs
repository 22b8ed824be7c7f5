//! What can be set, with the gateway's defaults (a pool's scheduling defaults stand in
//! [`maitred_core::scheduler::PoolConfig`]).

use super::identity::IdentitySettings;
use super::isolation::IsolationSettings;
use super::kv_events::KvEventsSettings;
use super::pull::PullSettings;
use super::tenants::{Anonymous, TenantSettings};
use crate::pool::IdleSettings;
use maitred_core::pool::Seats;
use maitred_core::scheduler::PoolConfig;
use maitred_engine::EngineKind;
use maitred_records::SinkSettings;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The placement policy of a pool that names none: the core's default by its name.
pub const DEFAULT_POLICY: &str = "session";

/// The whole configuration, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where operators connect; must be loopback unless `admin_token` is set.
    pub admin: SocketAddr,
    /// Bearer token of the admin API.
    pub admin_token: Option<Secret>,
    /// Hosts and address ranges at which workers may be registered through the admin API; empty:
    /// any but link-local ones.
    pub worker_allow: Vec<AllowRule>,
    /// Threads of the data path; 0: one per core.
    pub threads: usize,
    /// Refuse request fields that nothing supports, by name.
    pub strict: bool,
    /// Bounds of requests and connections.
    pub limits: Limits,
    /// Bounds of waiting.
    pub timeouts: Timeouts,
    /// Whether a client that closes only its sending side still gets its answer; by default that
    /// counts as gone.
    pub tolerate_half_close: bool,
    /// Peers whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<AllowRule>,
    /// Who may call, with which key and on which terms; empty: everybody is anonymous.
    pub tenants: Vec<TenantSettings>,
    /// What becomes of callers without a key; None: they are served as long as there are no
    /// `tenants`, else refused.
    pub anonymous: Option<Anonymous>,
    /// The header, lower case, in which `trusted_proxies` name the tenant; from all others it is
    /// ignored. None: nobody is believed.
    pub tenant_header: Option<String>,
    /// Key of the salts that are sent to engines; equal in all gateways that share engines.
    pub salt_secret: Option<Secret>,
    /// Origins that browsers may call from; `*`: any; empty: no CORS headers are sent.
    pub cors_origins: Vec<String>,
    /// Whether answers carry `x-maitred-*` headers (worker, policy, reason, cached tokens).
    pub expose: bool,
    /// Headers that name the session, in order, lower case.
    pub session_headers: Vec<String>,
    /// The header that names the scenario, lower case.
    pub scenario_header: String,
    /// Where attempt records go.
    pub records: SinkSettings,
    /// How long running requests may take to finish at shutdown.
    pub shutdown_grace: Duration,
    /// Seed of all random choices; None: drawn at start.
    pub seed: Option<u64>,
    /// Workers that pull; None: none may.
    pub pull: Option<PullSettings>,
    /// The pools; never empty, names unique.
    pub pools: Vec<PoolSettings>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8_080),
            admin: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8_081),
            admin_token: None,
            worker_allow: Vec::new(),
            threads: 0,
            strict: false,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            tolerate_half_close: false,
            trusted_proxies: Vec::new(),
            tenants: Vec::new(),
            anonymous: None,
            tenant_header: None,
            salt_secret: None,
            cors_origins: Vec::new(),
            expose: true,
            session_headers: vec!["x-session-id".to_owned()],
            scenario_header: "x-scenario".to_owned(),
            records: SinkSettings::default(),
            shutdown_grace: Duration::from_secs(30),
            seed: None,
            pull: None,
            pools: Vec::new(),
        }
    }
}

/// Bounds of requests and connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request body, decoded.
    pub body_max_bytes: usize,
    /// Bytes of a request's or an answer's head.
    pub header_max_bytes: usize,
    /// Header fields of a request or an answer.
    pub headers_max: usize,
    /// Client connections at once.
    pub connections_max: usize,
    /// Nesting of a JSON body.
    pub json_depth_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_max_bytes: 64 << 20,
            header_max_bytes: 64 << 10,
            headers_max: 64,
            connections_max: 65_536,
            json_depth_max: 128,
        }
    }
}

/// Bounds of waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Connecting to a worker.
    pub connect: Duration,
    /// From sending a request to a worker to the head of its answer.
    pub first_byte: Duration,
    /// Silence within an answer.
    pub idle: Duration,
    /// The whole request, waiting included; zero: no bound (an agent may stream for hours).
    pub total: Duration,
    /// A client's request head.
    pub header_read: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
            first_byte: Duration::from_secs(600),
            idle: Duration::from_secs(120),
            total: Duration::ZERO,
            header_read: Duration::from_secs(30),
        }
    }
}

/// A pool's settings.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// Its name: a metric label, a path in the admin API.
    pub name: String,
    /// The model it serves; None: whatever its workers list, the whole gateway's only pool.
    pub model: Option<String>,
    /// Other names by which clients may ask for `model`.
    pub aliases: Vec<String>,
    /// The name that workers know the model by: a request under another configured name is
    /// forwarded under this one. Set to `model` where there are aliases and nothing else is said.
    pub upstream_model: Option<String>,
    /// Workers at start.
    pub workers: Vec<WorkerSettings>,
    /// Scheduling.
    pub core: PoolConfig,
    /// Health probes.
    pub probe: ProbeSettings,
    /// Scrapes of the workers' own metrics.
    pub scrape: ScrapeSettings,
    /// Idle connections to the workers.
    pub idle: IdleSettings,
    /// Between comments in a stream whose request waits in the line; zero: none, and the head is sent
    /// with the answer.
    pub queue_heartbeat: Duration,
    /// Whether client credentials go to the workers (default: they are removed).
    pub pass_credentials: bool,
    /// Chat messages of role `developer` go to the workers as `system`.
    pub developer_as_system: bool,
    /// Whether workers are told the band of a request, as `priority`.
    pub forward_priority: bool,
    /// The credential to send to workers that have none of their own.
    pub api_key: Option<Secret>,
    /// Whose caches are apart.
    pub isolation: IsolationSettings,
    /// Revision of the weights that the workers serve: a part of every scope.
    pub revision: Option<String>,
    /// How its requests become tokens; None: chains are over bytes.
    pub identity: Option<IdentitySettings>,
    /// Engine of workers that do not say.
    pub engine: EngineChoice,
    /// Limits of workers that do not say.
    pub seats: Seats,
}

impl PoolSettings {
    /// A pool without workers, with every default.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            model: None,
            aliases: Vec::new(),
            upstream_model: None,
            workers: Vec::new(),
            core: PoolConfig::default(),
            probe: ProbeSettings::default(),
            scrape: ScrapeSettings::default(),
            idle: IdleSettings::default(),
            queue_heartbeat: Duration::ZERO,
            pass_credentials: false,
            developer_as_system: false,
            forward_priority: false,
            api_key: None,
            isolation: IsolationSettings::default(),
            revision: None,
            identity: None,
            engine: EngineChoice::Auto,
            seats: Seats::default(),
        }
    }

    /// A worker at this address with the pool's defaults, named after the address.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn worker(&self, url: &str) -> Result<WorkerSettings, &'static str> {
        let url = WorkerUrl::parse(url)?;
        Ok(WorkerSettings {
            name: format!("{}{}", url.authority(), url.base_path),
            url,
            seats: self.seats,
            engine: self.engine,
            api_key: self.api_key.clone(),
            models: Vec::new(),
            assume_ready: false,
            kv_events: None,
        })
    }
}

/// Which engine a worker runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// Found out from what it exports.
    #[default]
    Auto,
    /// Set.
    Kind(EngineKind),
}

impl EngineChoice {
    /// The engine, where it is set.
    #[must_use]
    pub fn set(self) -> Option<EngineKind> {
        match self {
            Self::Kind(kind) => Some(kind),
            Self::Auto => None,
        }
    }
}

/// Health probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Between probes of a worker that is up.
    pub interval: Duration,
    /// Between probes of a worker that starts or is unhealthy.
    pub interval_down: Duration,
    /// Longest wait for an answer.
    pub timeout: Duration,
    /// The path; None: the engine kind's own.
    pub path: Option<String>,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            interval_down: Duration::from_millis(250),
            timeout: Duration::from_secs(5),
            path: None,
        }
    }
}

/// Scrapes of the workers' own metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrapeSettings {
    /// Between scrapes; zero: none.
    pub interval: Duration,
    /// Longest wait for an answer.
    pub timeout: Duration,
}

impl Default for ScrapeSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
        }
    }
}

/// One worker.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Its stable name (default: host and port, and the path where it has one): what rendezvous
    /// hashing goes by, a metric label, a path in the admin API.
    pub name: String,
    /// Where it is.
    pub url: WorkerUrl,
    /// Its limits.
    pub seats: Seats,
    /// Its engine.
    pub engine: EngineChoice,
    /// The credential to send it.
    pub api_key: Option<Secret>,
    /// Models and adapters it serves; empty: what it lists itself.
    pub models: Vec<String>,
    /// Whether it gets work before its first good probe.
    pub assume_ready: bool,
    /// Where it says what its cache holds; none: it does not.
    pub kv_events: Option<KvEventsSettings>,
}

impl WorkerSettings {
    /// Its limits, given what engine it is and how many slots that says it has: llama.cpp keeps one
    /// conversation in each. What is configured goes before what is told.
    #[must_use]
    pub fn seats_as(&self, engine: Option<EngineKind>, told: Option<u32>) -> Seats {
        let keeps_slots = engine == Some(EngineKind::LlamaCpp);
        let slots = self.seats.slots.or(told);
        Seats {
            slots,
            cache_slots: slots.filter(|_| keeps_slots),
            ..self.seats
        }
    }
}

/// The base URL of a worker: `http://host:port/path`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkerUrl {
    /// Name or address (IPv6 without brackets).
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path in front of every request's path; empty, or `/...` without a slash at the end.
    pub base_path: String,
}

/// Something that must not be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the wire only.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

/// A host name, or a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowRule {
    /// This host name, exactly (lower case).
    Host(String),
    /// These addresses: the first `prefix` bits of `address`.
    Range {
        /// Base address.
        address: IpAddr,
        /// Bits that count.
        prefix: u8,
    },
}

impl AllowRule {
    /// Whether the address is in the range (a host name contains none).
    #[must_use]
    pub fn contains(&self, peer: IpAddr) -> bool {
        let Self::Range { address, prefix } = self else {
            return false;
        };
        match (address, peer) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(*prefix)).unwrap_or(0);
                u32::from(*a) & mask == u32::from(b) & mask
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(*prefix)).unwrap_or(0);
                u128::from(*a) & mask == u128::from(b) & mask
            }
            _ => false,
        }
    }
}

impl std::fmt::Display for AllowRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(host) => f.write_str(host),
            Self::Range { address, prefix } => write!(f, "{address}/{prefix}"),
        }
    }
}

impl WorkerUrl {
    /// Reads `http://host:port/path`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        const FORM: &str = "must be a URL of the form http://host:port";
        const PORT: &str = "must have a port from 1 to 65535";
        let uri: http::Uri = url.trim().parse().map_err(|_| FORM)?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err("must begin with http:// (https to workers is not supported)");
            }
            _ => return Err(FORM),
        }
        let authority = uri.authority().ok_or(FORM)?;
        if uri.query().is_some() || authority.as_str().contains('@') {
            return Err("must have no query and no credentials in it");
        }
        let host = authority.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(host);
        let port = match authority.port_u16() {
            Some(0) => return Err(PORT),
            Some(port) => port,
            // A port that does not fit is no port to the parser; 80 would be another worker.
            None if authority.as_str().len() > host.len() => return Err(PORT),
            None => 80,
        };
        if bare.is_empty() {
            return Err(FORM);
        }
        let base_path = uri.path().trim_end_matches('/');
        // What clients are given as base URL; here every path would get it twice.
        if base_path.ends_with("/v1") {
            return Err("must not end in /v1: the paths that clients ask for begin with it");
        }
        Ok(Self {
            host: bare.to_ascii_lowercase(),
            port,
            base_path: base_path.to_owned(),
        })
    }

    /// Host and port as in a `Host` header.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl std::fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.base_path)
    }
}
