//! Who pulls: registration, names and their owners, silence and removal.

use super::desk::{Desk, Said, Speaks};
use super::past::Past;
use super::work::Loss;
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

/// Names whose owner is remembered; beyond it no new ones are taken.
const NAMES_MAX: usize = 16_384;
/// A worker that can have one job and asks for another has lost it, unless its answer comes within
/// this time: one that could not be delivered is sent again after 10 s.
const DOUBTED_MAX: Duration = Duration::from_secs(15);
/// Between two looks for silent workers.
const WATCH_EVERY: Duration = Duration::from_millis(250);

/// What a worker says of itself when it asks for a request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) name: String,
    /// The name as the worker has it, where that is another.
    pub(super) shown_name: String,
    pub(super) speaks: Speaks,
    /// Which life of the worker: a new one begins with a cold cache.
    pub(super) instance: Option<String>,
    /// The program, as it names itself.
    pub(super) agent: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) models: Vec<String>,
    pub(super) slots: Option<u32>,
    pub(super) limits: RequestLimits,
}

/// Why a worker is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The token may not be used under that name.
    NameNotAllowed,
    /// The token may not serve that pool.
    PoolNotAllowed(String),
    /// The name is another owner's, or that of a worker that does not pull.
    NotYours,
    /// There are as many as there may be.
    TooMany,
    /// It may serve no pool that it could.
    NoPool(String),
}

pub(super) struct Member {
    pub(super) name: String,
    pub(super) pool: Arc<Pool>,
    id: WorkerId,
    pub(super) desk: Arc<Desk>,
}

impl Member {
    pub(super) fn belongs_to(&self, token: &PullToken) -> bool {
        self.desk.owner == token.owner
    }

    /// A sign of life.
    pub(super) fn heard(&self) {
        self.desk.heard();
        if std::mem::take(&mut self.desk.said.lock().silent) {
            self.pool.report(self.id, Report::Alive);
        }
    }

    /// Changes its open polls and tells the scheduler how many there are.
    pub(super) fn poll(&self, change: impl FnOnce() -> u32) {
        self.pool.driver.pop(self.id, change);
    }

    fn seats(&self, slots: Option<u32>) -> Seats {
        Seats {
            slots: slots.or(self.pool.settings.seats.slots),
            ..self.pool.settings.seats
        }
    }

    /// Takes over what it says now.
    fn update(&self, ask: &Ask) {
        let mut said = self.desk.said.lock();
        if said.instance != ask.instance {
            said.instance.clone_from(&ask.instance);
            // Another process: what the old one had is lost, and so is its cache.
            self.lose_all(Loss::Reborn);
            self.pool.report(self.id, Report::Dead { refused: true });
            self.pool.report(self.id, Report::Alive);
        }
        said.agent.clone_from(&ask.agent);
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
    fn lose_all(&self, why: Loss) {
        self.poll(|| self.desk.clear(why));
    }

    /// Its owner wants it to get nothing, or (None) again what there is. What runs goes on.
    pub(super) fn maintain(&self, why: Option<String>) {
        let ends = why.is_some();
        self.desk.said.lock().maintenance = why;
        if ends {
            self.poll(|| self.desk.dismiss());
        }
    }
}

/// All workers that pull.
pub(crate) struct Broker {
    pub(super) gateway: Arc<Gateway>,
    pub(super) settings: PullSettings,
    pub(super) past: Arc<Past>,
    members: Mutex<BTreeMap<String, Arc<Member>>>,
    owners: Mutex<BTreeMap<String, String>>,
}

impl Broker {
    pub(crate) fn new(gateway: Arc<Gateway>, settings: PullSettings) -> Self {
        Self {
            gateway,
            settings,
            past: Arc::default(),
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
        if !token.allows_name(&ask.name) && !token.allows_name(&ask.shown_name) {
            return Err(Refused::NameNotAllowed);
        }
        let mut members = self.members.lock();
        if let Some(member) = members.get(&ask.name) {
            if !member.belongs_to(token) || member.desk.speaks != ask.speaks {
                return Err(Refused::NotYours);
            }
            let member = Arc::clone(member);
            let is_there = member.pool.upstream(member.id).is_some();
            if is_there && self.may_serve(token, ask, &member.pool) {
                drop(members);
                member.heard();
                member.update(ask);
                return Ok(member);
            }
            // An operator removed it, and it is back; or it is for another pool now.
            members.remove(&ask.name);
            self.forget(&member);
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
        let said = Said {
            instance: ask.instance.clone(),
            agent: ask.agent.clone(),
            models: ask.models.clone(),
            slots: ask.slots,
            limits: ask.limits.clone(),
            silent: false,
            maintenance: None,
        };
        let past = Arc::clone(&self.past);
        let desk = Arc::new(Desk::new(ask.speaks, &token.owner, said, past));
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
            pool: Arc::clone(pool),
            id,
            desk,
        })
    }

    /// Whether the pool is one that a worker may serve that says this.
    fn may_serve(&self, token: &PullToken, ask: &Ask, pool: &Pool) -> bool {
        let allowed = token.pools.is_empty() || token.pools.contains(&pool.name);
        let named = ask.pool.as_ref().is_none_or(|name| *name == pool.name);
        let fits = ask.models.is_empty()
            || pool.models.is_empty()
            || ask.models.iter().any(|model| pool.is_configured(model));
        allowed && named && fits
    }

    /// The pool that it names, or that is configured for one of its models, or the only one.
    fn pool_for(&self, token: &PullToken, ask: &Ask) -> Result<&Arc<Pool>, Refused> {
        if let Some(name) = &ask.pool
            && !token.pools.is_empty()
            && !token.pools.contains(name)
        {
            return Err(Refused::PoolNotAllowed(name.clone()));
        }
        let pools = self.gateway.pools.iter();
        let fitting: Vec<&Arc<Pool>> = pools
            .filter(|pool| self.may_serve(token, ask, pool))
            .collect();
        let configured = |pool: &&&Arc<Pool>| ask.models.iter().any(|m| pool.is_configured(m));
        match fitting.as_slice() {
            [] => Err(Refused::NoPool(match &ask.pool {
                Some(name) => format!("no pool `{name}` that this worker may serve"),
                None => "no pool that this worker may serve has one of its models".to_owned(),
            })),
            [only] => Ok(*only),
            several => several.iter().find(configured).copied().ok_or_else(|| {
                Refused::NoPool("several pools could be meant: name one as `pool`".to_owned())
            }),
        }
    }

    /// It leaves: running jobs go back.
    pub(super) fn leave(&self, member: &Member) {
        self.members.lock().remove(&member.name);
        self.forget(member);
        tracing::info!(pool = %member.pool.name, worker = %member.name, "worker pulls no more");
    }

    fn forget(&self, member: &Member) {
        if member.pool.upstream(member.id).is_some() {
            // It may have been removed at the same moment.
            let _ = member.pool.remove(&member.name);
        }
        member.lose_all(Loss::Left);
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
        let most = self.silence(member);
        if silent > most {
            if !std::mem::replace(&mut member.desk.said.lock().silent, true) {
                tracing::warn!(worker = %member.name, "worker is silent");
            }
            member.lose_all(Loss::Silent);
            member
                .pool
                .report(member.id, Report::Dead { refused: false });
        }
        if member.desk.speaks == Speaks::Horde {
            member.desk.expire(self.settings.horde.ttl);
            member.desk.give_up_doubted(DOUBTED_MAX);
        }
        if silent > self.settings.idle.max(most) && member.desk.jobs() == 0 {
            self.leave(member);
        }
    }

    /// How long it may say nothing. A Horde worker says nothing while it works.
    fn silence(&self, member: &Member) -> Duration {
        match member.desk.speaks {
            Speaks::Maitred => self.settings.silence,
            Speaks::Horde => self.settings.horde.ttl.max(self.settings.horde.wait * 2),
        }
    }

    /// Workers of an owner.
    pub(super) fn count_of(&self, owner: &str) -> usize {
        let members = self.members.lock();
        members.values().filter(|m| m.desk.owner == owner).count()
    }
}
