//! Newtypes for everything that is counted, so that one id can not be passed for another.

/// A client's request; chosen by the caller, unique while the request lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One try of a request on one worker. `number` is 1 for the first try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The request it belongs to.
    pub request: RequestId,
    /// 1 for the first attempt.
    pub number: u8,
}

/// A worker, by slot and generation. The slot (dense, reused) indexes arrays; the generation makes
/// sure that what is released on a removed worker never touches the next one in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId {
    /// Dense index, reused after removal; below [`crate::limits::WORKERS_MAX`].
    pub slot: u32,
    /// Counts the lives of the slot.
    pub generation: u32,
}

/// Who pays and who is isolated: a hash of the credential, or of the peer's scope where there is
/// none. Never from a header that the client sets at will.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

/// A conversation: the hash of its session value, already scoped by tenant and model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u64);

/// The unit of queue fairness: a session of a tenant, or whatever tells callers apart where there
/// is none. Unique over tenants, and never at the client's free choice across tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey(pub u64);

/// The hash of an id that a worker gave out (`resp_...`), scoped by tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResponseKey(pub u64);

/// A model or adapter name's hash, as workers list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelKey(pub u64);
