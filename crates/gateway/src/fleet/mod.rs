//! Fleet: the task of each worker.
