//! Where workers may be registered. A URL that somebody sends makes this process open connections:
//! addresses that only this machine's platform should reach are refused before any is opened.

use super::answer::Wrong;
use crate::config::{AllowRule, KvEventsSettings, WorkerUrl};
use http::StatusCode;
use maitred_zmtp::Endpoint;
use std::net::IpAddr;

/// Checks a worker's host against the allow-list, after resolving its name.
pub(super) async fn check(rules: &[AllowRule], url: &WorkerUrl) -> Result<(), Wrong> {
    check_host(rules, "url", &url.host, url.port).await
}

/// The same for where its KV events come from. A socket file is of this machine, which a list of hosts
/// must name to allow it.
pub(super) async fn check_events(
    rules: &[AllowRule],
    events: &KvEventsSettings,
) -> Result<(), Wrong> {
    const FIELD: &str = "kv_events";
    for endpoint in events.connects_to() {
        match endpoint {
            Endpoint::Tcp { host, port } => check_host(rules, FIELD, host, *port).await?,
            Endpoint::Ipc(_) if rules.is_empty() => {}
            Endpoint::Ipc(_) => check_host(rules, FIELD, "127.0.0.1", 0).await?,
        }
    }
    Ok(())
}

async fn check_host(
    rules: &[AllowRule],
    field: &'static str,
    host: &str,
    port: u16,
) -> Result<(), Wrong> {
    let forbidden =
        |message: &str| Wrong::new(StatusCode::FORBIDDEN, "not-allowed", Some(field), message);
    let addresses = resolve(field, host, port).await?;
    if addresses.iter().any(|address| is_link_local(*address)) {
        return Err(forbidden("is a link-local address, which is never allowed"));
    }
    if rules.is_empty() {
        return Ok(());
    }
    let by_name = rules
        .iter()
        .any(|rule| matches!(rule, AllowRule::Host(allowed) if allowed == host));
    let by_address = !addresses.is_empty()
        && addresses
            .iter()
            .all(|address| rules.iter().any(|rule| rule.contains(*address)));
    if by_name || by_address {
        Ok(())
    } else {
        Err(forbidden("is not in `worker_allow`"))
    }
}

async fn resolve(field: &str, host: &str, port: u16) -> Result<Vec<IpAddr>, Wrong> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![address]);
    }
    match tokio::net::lookup_host((host, port)).await {
        Ok(addresses) => Ok(addresses.map(|address| address.ip()).collect()),
        Err(error) => Err(Wrong::field(
            field,
            format!("`{host}` cannot be resolved: {error}"),
        )),
    }
}

/// 169.254/16 and fe80::/10, also where written as an IPv4-mapped address.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_link_local())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_link_local;

    #[test]
    fn link_local_in_every_spelling() {
        let check = |text: &str| text.parse().is_ok_and(is_link_local);
        assert!(check("169.254.169.254"));
        assert!(check("fe80::1"));
        assert!(check("::ffff:169.254.169.254"));
        assert!(!check("127.0.0.1"));
        assert!(!check("10.0.0.1"));
    }
}
