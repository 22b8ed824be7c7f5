//! Who pulls: registration, names and their owners, silence and removal.

use super::desk::{Desk, Job};
use crate::config::{PullSettings, PullToken, WorkerSettings, WorkerUrl, hash_token};
use crate::gateway::Gateway;
use crate::pool::Pool;
use maitred_core::Input;
use maitred_core::ids::WorkerId;
use maitred_core::pool::{FleetChange, Report, RequestLimits, Seats};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Names whose owner is remembered; beyond it no new ones are taken.
const NAMES_MAX: usize = 16_384;
/// Polls of one worker at once, whatever it says of its slots.
const POLLS_MAX: u32 = 256;
/// How long a poll that was promised to a request waits for it beyond its own time.
const PROMISED_WAIT: Duration = Duration::from_secs(5);
/// Between two looks for silent workers.
const WATCH_EVERY: Duration = Duration::from_millis(250);

/// What a worker says of itself when it asks for a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Ask {
    pub(super) name: String,
    /// Which life of the worker: a new one begins with a cold cache.
    pub(super) instance: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) models: Vec<String>,
    pub(super) slots: Option<u32>,
    pub(super) limits: RequestLimits,
}

/// Why a worker is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The name is another owner's, or that of a worker that does not pull.
    NotYours,
    /// There are as many as there may be.
    TooMany,
    /// It may serve no pool that it could.
    NoPool(String),
}

pub(super) struct Member {
    pub(super) name: String,
    owner: String,
    pool: Arc<Pool>,
    id: WorkerId,
    pub(super) desk: Arc<Desk>,
    said: Mutex<Said>,
}

/// What it last said of itself.
#[derive(PartialEq)]
struct Said {
    instance: Option<String>,
    models: Vec<String>,
    slots: Option<u32>,
    limits: RequestLimits,
    silent: bool,
}

impl Member {
    pub(super) fn belongs_to(&self, token: &PullToken) -> bool {
        self.owner == token.owner
    }

    /// A sign of life.
    pub(super) fn heard(&self) {
        self.desk.heard();
        if std::mem::take(&mut self.said.lock().silent) {
            self.pool.report(self.id, Report::Alive);
        }
    }

    fn seats(&self, slots: Option<u32>) -> Seats {
        Seats {
            slots: slots.or(self.pool.settings.seats.slots),
            ..self.pool.settings.seats
        }
    }

    /// Takes over what it says now.
    fn update(&self, ask: &Ask) {
        let mut said = self.said.lock();
        if said.instance != ask.instance {
            said.instance.clone_from(&ask.instance);
            // Another process: what the old one had is lost, and so is its cache.
            self.pool.driver.pop(self.id, || self.desk.clear());
            self.pool.report(self.id, Report::Dead { refused: true });
            self.pool.report(self.id, Report::Alive);
        }
        if said.models != ask.models {
            said.models.clone_from(&ask.models);
            self.pool.listed_by(self.id, ask.models.clone());
        }
        if said.slots != ask.slots {
            said.slots = ask.slots;
            let change = FleetChange::Seats(self.id, self.seats(ask.slots));
            self.pool.driver.handle(Input::Fleet(change));
        }
        if said.limits != ask.limits {
            said.limits.clone_from(&ask.limits);
            let change = FleetChange::Limits(self.id, ask.limits.clone());
            self.pool.driver.handle(Input::Fleet(change));
        }
    }

    /// It lost everything that it had.
    fn lose_all(&self) {
        self.pool.driver.pop(self.id, || self.desk.clear());
    }
}

/// All workers that pull.
pub(crate) struct Broker {
    pub(super) gateway: Arc<Gateway>,
    pub(super) settings: PullSettings,
    members: Mutex<BTreeMap<String, Arc<Member>>>,
    owners: Mutex<BTreeMap<String, String>>,
}

impl Broker {
    pub(crate) fn new(gateway: Arc<Gateway>, settings: PullSettings) -> Self {
        Self {
            gateway,
            settings,
            members: Mutex::default(),
            owners: Mutex::default(),
        }
    }

    /// The owner of a token. Hashes are compared, each in full, in a time that does not depend on them.
    pub(super) fn owner(&self, token: &str) -> Option<&PullToken> {
        let given = hash_token(token);
        let mut found = None;
        for known in &self.settings.tokens {
            let pairs = known.hash.iter().zip(given);
            if pairs.fold(0, |difference, (a, b)| difference | (a ^ b)) == 0 {
                found = Some(known);
            }
        }
        found
    }

    pub(super) fn member(&self, name: &str) -> Option<Arc<Member>> {
        self.members.lock().get(name).cloned()
    }

    /// Who has this job.
    pub(super) fn holder(&self, job: &str) -> Option<Arc<Member>> {
        let members = self.members.lock();
        members.values().find(|m| m.desk.has(job)).cloned()
    }

    /// The worker that asks, registered where it is new.
    pub(super) fn join(&self, token: &PullToken, ask: &Ask) -> Result<Arc<Member>, Refused> {
        let mut members = self.members.lock();
        if let Some(member) = members.get(&ask.name) {
            if !member.belongs_to(token) {
                return Err(Refused::NotYours);
            }
            if member.pool.upstream(member.id).is_some() {
                let member = Arc::clone(member);
                drop(members);
                member.heard();
                member.update(ask);
                return Ok(member);
            }
            // An operator removed it; it is back.
            members.remove(&ask.name);
        }
        if members.len() >= self.settings.workers_max {
            return Err(Refused::TooMany);
        }
        let pool = self.pool_for(token, ask)?;
        self.own(token, &ask.name)?;
        let member = Arc::new(self.register(pool, token, ask)?);
        members.insert(ask.name.clone(), Arc::clone(&member));
        tracing::info!(pool = %member.pool.name, worker = %ask.name, owner = %token.owner, "worker pulls");
        Ok(member)
    }

    fn own(&self, token: &PullToken, name: &str) -> Result<(), Refused> {
        let mut owners = self.owners.lock();
        match owners.get(name) {
            Some(owner) if *owner == token.owner => Ok(()),
            Some(_) => Err(Refused::NotYours),
            None if owners.len() >= NAMES_MAX => Err(Refused::TooMany),
            None => {
                owners.insert(name.to_owned(), token.owner.clone());
                Ok(())
            }
        }
    }

    fn register(&self, pool: &Arc<Pool>, token: &PullToken, ask: &Ask) -> Result<Member, Refused> {
        let desk = Arc::new(Desk::new());
        let defaults = pool.settings.seats;
        let settings = WorkerSettings {
            name: ask.name.clone(),
            // It has no address; nothing is ever sent to this one.
            url: WorkerUrl {
                host: "pull".to_owned(),
                port: 0,
                base_path: String::new(),
            },
            seats: Seats {
                slots: ask.slots.or(defaults.slots),
                ..defaults
            },
            engine: pool.settings.engine,
            api_key: None,
            models: ask.models.clone(),
            assume_ready: true,
            kv_events: None,
        };
        let added = pool.add_pulling(&settings, Arc::clone(&desk), ask.limits.clone());
        let id = added.map_err(|error| match error {
            crate::pool::AddError::Full => Refused::TooMany,
            _ => Refused::NotYours,
        })?;
        pool.report(id, Report::Alive);
        Ok(Member {
            name: ask.name.clone(),
            owner: token.owner.clone(),
            pool: Arc::clone(pool),
            id,
            desk,
            said: Mutex::new(Said {
                instance: ask.instance.clone(),
                models: ask.models.clone(),
                slots: ask.slots,
                limits: ask.limits.clone(),
                silent: false,
            }),
        })
    }

    /// The pool that it names, or that is configured for one of its models, or the only one.
    fn pool_for(&self, token: &PullToken, ask: &Ask) -> Result<&Arc<Pool>, Refused> {
        let allowed =
            |pool: &&Arc<Pool>| token.pools.is_empty() || token.pools.contains(&pool.name);
        let fits = |pool: &&Arc<Pool>| {
            ask.models.is_empty()
                || pool.models.is_empty()
                || ask.models.iter().any(|model| pool.is_configured(model))
        };
        let pools = self.gateway.pools.iter().filter(allowed);
        if let Some(name) = &ask.pool {
            let named = pools.filter(|pool| pool.name == *name).find(fits);
            return named.ok_or_else(|| {
                Refused::NoPool(format!("no pool `{name}` that this worker may serve"))
            });
        }
        let fitting: Vec<&Arc<Pool>> = pools.filter(fits).collect();
        let configured = |pool: &&&Arc<Pool>| ask.models.iter().any(|m| pool.is_configured(m));
        match fitting.as_slice() {
            [] => Err(Refused::NoPool(
                "no pool that this worker may serve has one of its models".to_owned(),
            )),
            [only] => Ok(*only),
            several => several.iter().find(configured).copied().ok_or_else(|| {
                Refused::NoPool("several pools could be meant: name one as `pool`".to_owned())
            }),
        }
    }

    /// Waits for a request; None: there was none in that time.
    pub(super) async fn next(&self, member: &Arc<Member>, wait: Duration) -> Option<Job> {
        let (send, mut receive) = oneshot::channel();
        let poll = Poll::open(member, send)?;
        match tokio::time::timeout(wait, &mut receive).await {
            Ok(job) => job.ok(),
            Err(_) if poll.withdraw() => None,
            // Its turn came at that very moment.
            Err(_) => {
                let job = tokio::time::timeout(PROMISED_WAIT, receive).await;
                job.ok().and_then(Result::ok)
            }
        }
    }

    /// It leaves: running jobs go back.
    pub(super) fn leave(&self, member: &Member) {
        self.members.lock().remove(&member.name);
        if member.pool.upstream(member.id).is_some() {
            // It may have been removed at the same moment.
            let _ = member.pool.remove(&member.name);
        }
        member.lose_all();
        tracing::info!(pool = %member.pool.name, worker = %member.name, "worker pulls no more");
    }

    /// Looks for workers that say nothing any more, for ever.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut beat = tokio::time::interval(WATCH_EVERY);
        loop {
            beat.tick().await;
            let members: Vec<Arc<Member>> = self.members.lock().values().cloned().collect();
            for member in members {
                self.look_at(&member);
            }
        }
    }

    fn look_at(&self, member: &Member) {
        let silent = member.desk.silent_for();
        if silent > self.settings.silence {
            if !std::mem::replace(&mut member.said.lock().silent, true) {
                tracing::warn!(worker = %member.name, "worker is silent");
            }
            member.lose_all();
            member
                .pool
                .report(member.id, Report::Dead { refused: false });
        }
        if silent > self.settings.idle && member.desk.jobs() == 0 {
            self.leave(member);
        }
    }
}

/// An open poll; dropping it closes it, whatever became of the worker's connection.
struct Poll {
    member: Arc<Member>,
    number: u64,
}

impl Poll {
    fn open(member: &Arc<Member>, send: oneshot::Sender<Job>) -> Option<Self> {
        let number = member.desk.number();
        let mut send = Some(send);
        let mut full = false;
        member.pool.driver.pop(member.id, || match send.take() {
            Some(send) if member.desk.open_polls() < POLLS_MAX => member.desk.wait(number, send),
            _ => {
                full = true;
                member.desk.open_polls()
            }
        });
        (!full).then(|| Self {
            member: Arc::clone(member),
            number,
        })
    }

    /// Whether it was still open.
    fn withdraw(&self) -> bool {
        let member = &self.member;
        let mut was_open = false;
        member.pool.driver.pop(member.id, || {
            let (open, left) = member.desk.withdraw(self.number);
            was_open = open;
            left
        });
        was_open
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        self.withdraw();
    }
}
