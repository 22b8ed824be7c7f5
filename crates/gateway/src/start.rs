//! Starting and stopping the gateway.

use crate::admin;
use crate::config::{Config, PoolSettings};
use crate::fleet::Fleet;
use crate::gateway::Gateway;
use crate::listener::Listener;
use crate::metrics::Metrics;
use crate::pool::{AddError, Pool};
use crate::pull::{self, Broker};
use crate::recent::Recent;
use crate::tenants::Registry;
use crate::text::{Places, PoolText};
use maitred_core::request::Identity;
use maitred_records::RecordSink;
use parking_lot::RwLock;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Why the gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("{setting}: cannot listen on {address}: {source}")]
    Bind {
        /// `listen` or `admin`.
        setting: &'static str,
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A setting is wrong.
    #[error("{setting}: {message}")]
    Setting {
        /// Its name, as in the configuration file.
        setting: String,
        /// What is wrong.
        message: String,
    },
    /// A worker of the configuration cannot be added.
    #[error("pool {pool}: {source}")]
    Worker {
        /// Of which pool.
        pool: String,
        /// Why.
        source: AddError,
    },
    /// The record sink cannot be opened.
    #[error(transparent)]
    Records(#[from] maitred_records::SinkError),
}

/// A running gateway. [`Running::shutdown`] ends it in order; dropping it ends it at once.
pub struct Running {
    /// Where clients connect (the real port where 0 was asked for).
    pub data: SocketAddr,
    /// Where operators connect.
    pub admin: SocketAddr,
    /// Where workers that pull connect, where any may.
    pub pull: Option<SocketAddr>,
    /// What it shares.
    pub gateway: Arc<Gateway>,
    listener: Listener,
    /// The admin listener and the pools' timers.
    tasks: JoinSet<()>,
}

/// Starts a gateway. The data path gets threads of its own; probes, timers and the admin listener run
/// on the current tokio runtime.
///
/// # Errors
/// An address, the record directory or a setting cannot be used; the error names it.
pub async fn start(config: Config) -> Result<Running, StartError> {
    check_admin(&config)?;
    let threads = threads(&config);
    let records = RecordSink::open(&config.records)?;
    let data_socket = bind("listen", config.listen)?;
    let admin_socket = bind("admin", config.admin)?;
    let pull_socket = match &config.pull {
        Some(pull) => Some(bind("pull.listen", pull.listen)?),
        None => None,
    };
    let gateway = Arc::new(build(config, records, threads)?);
    for (pool, settings) in gateway.pools.iter().zip(&gateway.config.pools) {
        for worker in &settings.workers {
            gateway
                .fleet
                .add(pool, worker)
                .map_err(|source| StartError::Worker {
                    pool: pool.name.clone(),
                    source,
                })?;
        }
    }
    let mut tasks = JoinSet::new();
    for pool in &gateway.pools {
        tasks.spawn(Arc::clone(&pool.driver).keep_time());
    }
    let (data, data_socket) = data_socket;
    let (admin, admin_socket) = admin_socket;
    let admin_socket = tokio::net::TcpListener::from_std(admin_socket)
        .map_err(|source| unusable("admin", admin, source))?;
    tasks.spawn(admin::serve(Arc::clone(&gateway), admin_socket));
    let mut pull = None;
    if let Some((address, socket)) = pull_socket
        && let Some(settings) = gateway.config.pull.clone()
    {
        let socket = tokio::net::TcpListener::from_std(socket)
            .map_err(|source| unusable("pull.listen", address, source))?;
        let broker = Arc::new(Broker::new(Arc::clone(&gateway), settings));
        tasks.spawn(Arc::clone(&broker).watch());
        tasks.spawn(pull::serve(broker, socket));
        pull = Some(address);
    }
    let listener = Listener::start(Arc::clone(&gateway), data_socket, threads)
        .map_err(|source| unusable("listen", data, source))?;
    Ok(Running {
        data,
        admin,
        pull,
        gateway,
        listener,
        tasks,
    })
}

fn check_admin(config: &Config) -> Result<(), StartError> {
    if config.admin.ip().is_loopback() || config.admin_token.is_some() {
        return Ok(());
    }
    Err(StartError::Setting {
        setting: "admin".to_owned(),
        message: "must be a loopback address unless `admin_token` is set".to_owned(),
    })
}

fn threads(config: &Config) -> usize {
    match config.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

fn build(config: Config, records: RecordSink, threads: usize) -> Result<Gateway, StartError> {
    let origin = Instant::now();
    let metrics = Arc::new(Metrics::new());
    // The standard library's hasher is keyed from the system's randomness.
    let drawn = || {
        std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish()
    };
    let seed = config.seed.unwrap_or_else(drawn);
    let tenants = Registry::load(&config).map_err(|message| StartError::Setting {
        setting: "tenants".to_owned(),
        message,
    })?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let places = Arc::new(Places::new(cores));
    let mut pools = Vec::with_capacity(config.pools.len());
    for (index, settings) in config.pools.iter().enumerate() {
        let seed = seed.wrapping_add(index as u64);
        let mut settings = settings.clone();
        if settings.identity.is_some() {
            settings.core.identity = Identity::Tokens;
        }
        settings.core.tenants = tenants.terms(&settings.core.bands);
        let text = load_text(&settings, &places)?;
        let mut pool =
            Pool::new(settings.clone(), &metrics, origin, threads, seed).map_err(|error| {
                StartError::Setting {
                    setting: format!("pool {}: {}", settings.name, error.setting),
                    message: format!("must be {}", error.allowed),
                }
            })?;
        pool.text = text.map(Arc::new);
        pools.push(Arc::new(pool));
    }
    Ok(Gateway {
        config,
        pools,
        fleet: Fleet::new(Handle::current()),
        tenants: RwLock::new(Arc::new(tenants)),
        metrics,
        recent: Recent::default(),
        records,
        origin,
        closing: AtomicBool::new(false),
    })
}

/// Reads template and tokenizer, where the pool has them.
fn load_text(
    settings: &PoolSettings,
    places: &Arc<Places>,
) -> Result<Option<PoolText>, StartError> {
    let Some(identity) = &settings.identity else {
        return Ok(None);
    };
    let text = PoolText::load(identity, places).map_err(|error| StartError::Setting {
        setting: format!("pool {}: identity", settings.name),
        message: error.to_string(),
    })?;
    let (pool, model) = (&settings.name, &text.model);
    tracing::info!(
        pool,
        encoder = model.encoder(),
        "requests are known by their tokens"
    );
    if let Some(reason) = model.whole_reason() {
        tracing::warn!(pool, ?reason, "prompts are tokenised whole at every turn");
    }
    if model.templates().shape(false).is_none() {
        tracing::warn!(
            pool,
            "there is no chat template: chats are known by their bytes"
        );
    }
    Ok(Some(text))
}

fn bind(
    setting: &'static str,
    address: SocketAddr,
) -> Result<(SocketAddr, TcpListener), StartError> {
    let listener = listen(address).map_err(|source| unusable(setting, address, source))?;
    let real = listener
        .local_addr()
        .map_err(|source| unusable(setting, address, source))?;
    Ok((real, listener))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    use socket2::{Domain, Socket, Type};
    /// Connections that may wait to be accepted; the kernel has its own bound below.
    const BACKLOG: i32 = 4_096;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A restarted gateway must not wait for its old connections to time out.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn unusable(setting: &'static str, address: SocketAddr, source: io::Error) -> StartError {
    StartError::Bind {
        setting,
        address,
        source,
    }
}

impl Running {
    /// Takes no new requests, lets running ones finish for at most `grace`, then ends everything and
    /// writes out the records.
    pub async fn shutdown(mut self, grace: Duration) {
        self.gateway.closing.store(true, Ordering::Relaxed);
        self.listener.shutdown(grace).await;
        self.gateway.fleet.stop();
        self.tasks.shutdown().await;
        let records = self.gateway.records.clone();
        // Joining the writer thread blocks.
        if tokio::task::spawn_blocking(move || records.close())
            .await
            .is_err()
        {
            tracing::error!("the record sink could not be closed");
        }
    }
}
