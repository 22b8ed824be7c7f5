//! What the kernel says about a process: CPU time and resident memory.

use std::fs;
use std::time::Duration;

/// CPU time of all threads of a process so far, user and system.
///
/// `/proc/PID/task/*/schedstat` where the kernel has it (nanoseconds), else `/proc/PID/stat`
/// (ticks of 10 ms).
pub(crate) fn cpu_time(pid: u32) -> Result<Duration, String> {
    schedstat(pid).map_or_else(|| ticks(pid), Ok)
}

fn schedstat(pid: u32) -> Option<Duration> {
    let mut nanos = 0u64;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        nanos += text.split_ascii_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanos))
}

fn ticks(pid: u32) -> Result<Duration, String> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    // The command name, in parentheses, may hold spaces; fields 14 and 15 are utime and stime.
    let after = text.rsplit_once(')').map_or("", |(_, after)| after);
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let field = |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok());
    match (field(11), field(12)) {
        (Some(user), Some(system)) => Ok(Duration::from_millis((user + system) * 10)),
        _ => Err(format!("{path}: no utime and stime")),
    }
}

/// Resident memory in bytes.
pub(crate) fn resident(pid: u32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok())
        .map(|kib| kib * 1024)
        .ok_or_else(|| format!("{path}: no VmRSS"))
}
