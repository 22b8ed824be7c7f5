//! The agent's life: find out about the engine, ask for jobs, show that it lives, leave in order.

use crate::Settings;
use crate::call::CallError;
use crate::engine::{self, About};
use crate::job::{self, Job};
use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// The first wait after a failure; doubled up to the longest.
const BACKOFF: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// What a poll's answer may take beyond the wait asked for.
const GRACE: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(10);
/// Signs of life come no more often.
const BEAT_MIN: Duration = Duration::from_millis(50);

/// Why an agent can not go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The broker refuses it for good: token, name, pool or a field.
    #[error("the broker refuses this worker: {0}")]
    Refused(String),
}

struct Agent {
    settings: Settings,
    about: About,
    instance: String,
    running: Mutex<HashMap<String, Option<AbortHandle>>>,
}

/// Pulls and serves until `stop` is ready; then running jobs are finished, and the worker leaves.
///
/// # Errors
/// The broker refuses the worker for good.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), AgentError> {
    let mut stop = std::pin::pin!(stop);
    let about = tokio::select! {
        about = meet(&settings) => about,
        () = &mut stop => return Ok(()),
    };
    tracing::info!(models = ?about.models, context = ?about.context_max, "engine is ready");
    let agent = Arc::new(Agent {
        instance: format!("{:016x}", random()),
        settings,
        about,
        running: Mutex::default(),
    });
    let (ending, ended) = watch::channel(false);
    let mut slots = JoinSet::new();
    for _ in 0..agent.settings.slots.max(1) {
        slots.spawn(Arc::clone(&agent).keep_asking(ended.clone()));
    }
    let beat = tokio::spawn(Arc::clone(&agent).keep_beating());
    let mut result = Ok(());
    let mut stopping = false;
    loop {
        tokio::select! {
            () = &mut stop, if !stopping => {
                stopping = true;
                let _ = ending.send(true);
                tracing::info!(jobs = agent.running.lock().len(), "stops; running jobs are finished");
            }
            slot = slots.join_next() => match slot {
                Some(Ok(Err(error))) => {
                    let _ = ending.send(true);
                    result = Err(error);
                }
                Some(_) => {}
                None => break,
            },
        }
    }
    beat.abort();
    if result.is_ok() {
        agent.leave().await;
    }
    result
}

/// Waits for the engine.
async fn meet(settings: &Settings) -> About {
    let mut backoff = Backoff::default();
    loop {
        match engine::ask(&settings.engine, settings.engine_key.as_deref()).await {
            Ok(mut about) => {
                if !settings.models.is_empty() {
                    about.models.clone_from(&settings.models);
                }
                about.context_max = settings.context_max.or(about.context_max);
                return about;
            }
            Err(error) => tracing::warn!(%error, "the engine is not ready"),
        }
        backoff.wait().await;
    }
}

enum Popped {
    Job(Job),
    Nothing,
    Refused(String),
}

impl Agent {
    /// One slot.
    async fn keep_asking(
        self: Arc<Self>,
        mut ended: watch::Receiver<bool>,
    ) -> Result<(), AgentError> {
        let mut backoff = Backoff::default();
        while !*ended.borrow() {
            let popped = tokio::select! {
                popped = self.pop() => popped,
                _ = ended.changed() => break,
            };
            match popped {
                Ok(Popped::Job(job)) => {
                    backoff = Backoff::default();
                    self.work(job).await;
                }
                Ok(Popped::Nothing) => backoff = Backoff::default(),
                Ok(Popped::Refused(message)) => return Err(AgentError::Refused(message)),
                Err(error) => {
                    tracing::warn!(%error, "can not ask for a job");
                    tokio::select! {
                        () = backoff.wait() => {}
                        _ = ended.changed() => break,
                    }
                }
            }
        }
        Ok(())
    }

    async fn pop(&self) -> Result<Popped, CallError> {
        let settings = &self.settings;
        let ask = json!({
            "name": settings.name,
            "instance": self.instance,
            "pool": settings.pool,
            "models": self.about.models,
            "context_max": self.about.context_max,
            "output_max": settings.output_max,
            "slots": settings.slots.max(1),
            "wait": settings.wait.as_secs_f64(),
        });
        let limit = settings.wait + GRACE;
        let (status, body) = self.call(Method::POST, "/pull/v1/pop", &ask, limit).await?;
        match status {
            200 => Job::read(&body)
                .map(Popped::Job)
                .ok_or_else(|| CallError::Broken("the job can not be read".to_owned())),
            204 => Ok(Popped::Nothing),
            400 | 401 | 403 => Ok(Popped::Refused(message_of(&body))),
            status => Err(CallError::Broken(format!(
                "status {status}: {}",
                message_of(&body)
            ))),
        }
    }

    async fn work(self: &Arc<Self>, job: Job) {
        let id = job.id.clone();
        self.running.lock().insert(id.clone(), None);
        let agent = Arc::clone(self);
        let task = tokio::spawn(async move {
            if let Err(error) = job::run(&agent.settings, job).await {
                tracing::warn!(%error, "a job ended early");
            }
        });
        if let Some(handle) = self.running.lock().get_mut(&id) {
            *handle = Some(task.abort_handle());
        }
        // Aborted, or a defect of ours: the next job is another one.
        let _ = task.await;
        self.running.lock().remove(&id);
    }

    async fn keep_beating(self: Arc<Self>) {
        let mut pause = self.settings.beat;
        loop {
            // The first one comes before the first poll: its answer says how often they must come.
            if let Some(word) = self.beat().await {
                pause = pause_for(&word, self.settings.beat);
                self.drop_unwanted(&word);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Says which jobs there are; returns what the broker says to that.
    async fn beat(&self) -> Option<Value> {
        let jobs: Vec<String> = self.running.lock().keys().cloned().collect();
        let beat = json!({"name": self.settings.name, "jobs": jobs});
        let said = self.call(Method::POST, "/pull/v1/heartbeat", &beat, CALL);
        match said.await {
            Ok((200, body)) => serde_json::from_slice(&body).ok(),
            _ => None,
        }
    }

    fn drop_unwanted(&self, word: &Value) {
        let cancel = word["cancel"].as_array().map_or(&[][..], Vec::as_slice);
        let running = self.running.lock();
        for id in cancel.iter().filter_map(Value::as_str) {
            if let Some(Some(handle)) = running.get(id) {
                handle.abort();
            }
        }
    }

    async fn leave(&self) {
        let path = format!("/pull/v1/workers/{}", self.settings.name);
        let left = self.call(Method::DELETE, &path, &Value::Null, CALL).await;
        if let Err(error) = left {
            tracing::warn!(%error, "could not say goodbye");
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<(u16, Bytes), CallError> {
        let body = body.to_string().into_bytes();
        let token = Some(self.settings.token.as_str());
        self.settings
            .broker
            .ask(method, path, token, body, limit)
            .await
    }
}

/// A third of what the broker takes for silence, and no more than `most`.
fn pause_for(word: &Value, most: Duration) -> Duration {
    let silence = word["silence"].as_f64();
    let silence = silence.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    silence.map_or(most, |silence| {
        (silence / 3).clamp(BEAT_MIN.min(most), most)
    })
}

fn message_of(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    value["error"]["message"]
        .as_str()
        .unwrap_or("no reason given")
        .to_owned()
}

/// Waits that grow, with chance in them so that many agents do not come at once.
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(BACKOFF)
    }
}

impl Backoff {
    async fn wait(&mut self) {
        let share = (random() % 1_000) as f64 / 1_000.0;
        tokio::time::sleep(self.0.mul_f64(0.5 + 0.5 * share)).await;
        self.0 = (self.0 * 2).min(BACKOFF_MAX);
    }
}

/// The standard library's hasher is keyed from the system's randomness.
fn random() -> u64 {
    let state = std::collections::hash_map::RandomState::new();
    state.build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::{Duration, json, pause_for};

    #[test]
    fn signs_of_life_come_thrice_within_what_counts_as_silence() {
        let most = Duration::from_secs(2);
        let pause = |word| pause_for(&word, most);
        assert_eq!(pause(json!({"silence": 1.5})), Duration::from_millis(500));
        assert_eq!(pause(json!({"silence": 10.0})), most);
        assert_eq!(pause(json!({"silence": 0.01})), Duration::from_millis(50));
        for unknown in [json!({}), json!({"silence": "x"}), json!({"silence": -1.0})] {
            assert_eq!(pause(unknown), most);
        }
    }
}
