//! Who sent a request: the one place where a credential, a header or an address becomes a tenant.

use super::Client;
use crate::config::{AllowRule, Anonymous, valid_name};
use crate::headers::{API_KEY, AZURE_KEY, text_of};
use crate::reply::Problem;
use crate::tenants::{Identity, tenant_id};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use maitred_core::ids::{FlowKey, SessionKey, TenantId};
use std::net::{IpAddr, SocketAddr};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Seeds of the hashes of addresses and of what is made of them.
const PEER_SEED: u64 = 0x7065_6572_0000_0001;

/// Who sent a request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Caller {
    /// Who pays. Anonymous callers are one tenant, the default one, whatever they send.
    pub(crate) tenant: TenantId,
    /// Whose cache it may use where tenants are isolated.
    pub(crate) identity: Identity,
    /// Where an anonymous caller comes from; 0 for named tenants, who may come from anywhere.
    origin: u64,
}

impl Caller {
    fn named(name: &str) -> Self {
        let identity = Identity::of_tenant(name);
        Self {
            tenant: tenant_id(name),
            identity,
            origin: 0,
        }
    }

    /// A credential that nobody knows makes no tenant, or everybody could be as many as he likes.
    /// But who does not know it must not be taken for who does.
    fn anonymous(from: IpAddr, credential: Option<&[u8]>) -> Self {
        Self {
            tenant: TenantId::default(),
            identity: credential.map(Identity::of_credential).unwrap_or_default(),
            origin: origin(from),
        }
    }

    /// Tells callers of one tenant apart in session keys: no anonymous caller can take another's
    /// session by naming it.
    pub(crate) fn client_scope(&self) -> u64 {
        self.origin
    }

    /// Whose turns share a place in the line: the tenant's session; of anonymous callers all that
    /// comes from one place, whatever sessions they name. None: a flow of its own.
    pub(crate) fn flow(&self, session: Option<SessionKey>) -> Option<FlowKey> {
        if self.origin != 0 {
            return Some(FlowKey(self.origin));
        }
        session.map(|session| FlowKey(session.0))
    }
}

/// Who sent it.
///
/// # Errors
/// 401: a key is needed, or the one that was sent is nobody's.
pub(super) fn resolve(client: &Client, headers: &HeaderMap) -> Result<Caller, Problem> {
    let gateway = &client.shard.gateway;
    let config = &gateway.config;
    let is_trusted = |address| config.trusted_proxies.iter().any(|r| r.contains(address));
    if let Some(header) = &config.tenant_header
        && is_trusted(client.peer.to_canonical())
        && let Some(name) = headers.get(header)
    {
        let name = text_of(name).map(str::trim).filter(|name| valid_name(name));
        return name
            .map(Caller::named)
            .ok_or_else(|| refused("invalid-tenant", "the tenant header names no tenant"));
    }
    let credential = credential(headers);
    let tenants = gateway.tenants();
    let needs_key = tenants.anonymous() == Anonymous::Refuse;
    match credential {
        Some(key) if needs_key || !tenants.is_empty() => {
            let tenant = tenants.by_key(key);
            tenant
                .map(|tenant| Caller::named(&tenant.name))
                .ok_or_else(|| refused("invalid-key", "the API key is not known here"))
        }
        None if needs_key => Err(refused(
            "key-required",
            "an API key is needed: send it as `Authorization: Bearer` or `x-api-key`",
        )),
        credential => {
            let from = client_address(&config.trusted_proxies, client.peer, headers);
            Ok(Caller::anonymous(from, credential))
        }
    }
}

fn refused(code: &'static str, message: &'static str) -> Problem {
    // The body was not read.
    Problem::new(StatusCode::UNAUTHORIZED, code, message).closing()
}

/// The first credential that is not blank, without its scheme.
fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    let sent = [&AUTHORIZATION, &API_KEY, &AZURE_KEY].into_iter();
    sent.filter_map(|name| headers.get(name))
        .map(HeaderValue::as_bytes)
        .map(|value| match value.split_at_checked(7) {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
            _ => value.trim_ascii(),
        })
        .find(|key| !key.is_empty() && !key.eq_ignore_ascii_case(b"bearer"))
}

/// A number for the place that a client can not change at will: its address, or its network where
/// that is one subscriber's (IPv6: 64 bits). Never 0.
fn origin(from: IpAddr) -> u64 {
    let hash = match from.to_canonical() {
        IpAddr::V4(a) => xxh3_64_with_seed(&a.octets(), PEER_SEED),
        IpAddr::V6(a) => xxh3_64_with_seed(&a.octets()[..8], PEER_SEED),
    };
    hash.max(1)
}

/// The nearest address that no trusted proxy vouches for.
fn client_address(trusted: &[AllowRule], peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|rule| rule.contains(address));
    let mut from = peer.to_canonical();
    if !is_trusted(from) {
        return from;
    }
    let lines = headers.get_all("x-forwarded-for").iter();
    let mut hops: Vec<&str> = lines
        .filter_map(text_of)
        .flat_map(|line| line.split(','))
        .collect();
    while let Some(hop) = hops.pop() {
        let Some(address) = address(hop.trim()) else {
            break;
        };
        from = address;
        if !is_trusted(from) {
            break;
        }
    }
    from
}

/// An address, with a port where a proxy adds one.
fn address(hop: &str) -> Option<IpAddr> {
    let bare = hop.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let alone = bare.unwrap_or(hop).parse().ok();
    let address: Option<IpAddr> =
        alone.or_else(|| hop.parse().ok().map(|with_port: SocketAddr| with_port.ip()));
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Caller, client_address, credential, origin};
    use crate::config::AllowRule;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use maitred_core::ids::{FlowKey, SessionKey};
    use std::net::IpAddr;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let trusted = [AllowRule::Range {
            address: ip("10.0.0.0"),
            prefix: 8,
        }];
        let from = |peer: &str, hops: &'static str| {
            client_address(&trusted, ip(peer), &headers(&[("x-forwarded-for", hops)]))
        };
        let hops = "6.6.6.6, 1.2.3.4, 10.0.0.9";
        assert_eq!(from("10.0.0.1", hops), ip("1.2.3.4"));
        assert_eq!(from("::ffff:10.0.0.1", hops), ip("1.2.3.4"));
        assert_eq!(from("9.9.9.9", hops), ip("9.9.9.9"));
        assert_eq!(from("10.0.0.1", "1.2.3.4:5678"), ip("1.2.3.4"));
        assert_eq!(from("10.0.0.1", "[2001:db8::1]:443"), ip("2001:db8::1"));
        assert_eq!(from("10.0.0.1", "1.2.3.4, nonsense"), ip("10.0.0.1"));
        let sent = headers(&[("x-forwarded-for", hops)]);
        assert_eq!(client_address(&[], ip("10.0.0.1"), &sent), ip("10.0.0.1"));
    }

    #[test]
    fn an_ipv6_network_is_one_place() {
        let one = origin(ip("2001:db8:1:2::1"));
        assert_eq!(one, origin(ip("2001:db8:1:2:ffff::9")));
        assert_ne!(one, origin(ip("2001:db8:1:3::1")));
        assert_ne!(origin(ip("1.2.3.4")), origin(ip("1.2.3.5")));
        assert_eq!(origin(ip("::ffff:1.2.3.4")), origin(ip("1.2.3.4")));
    }

    #[test]
    fn minted_sessions_and_credentials_make_no_flow() {
        let [a, b] = [1, 2].map(|n| Some(SessionKey(n)));
        let plain = Caller::anonymous(ip("1.2.3.4"), None);
        let minted = Caller::anonymous(ip("1.2.3.4"), Some(b"made up"));
        let other = Caller::anonymous(ip("1.2.3.5"), None);
        assert_eq!(plain.flow(a), plain.flow(b));
        assert_eq!(plain.flow(a), plain.flow(None));
        assert_eq!(plain.flow(a), minted.flow(a));
        assert_ne!(plain.flow(a), other.flow(a));
        assert!(plain.tenant == minted.tenant && plain.tenant == other.tenant);
        assert!(plain.identity != minted.identity);
        let named = Caller::named("t");
        assert_eq!(named.flow(a), Some(FlowKey(1)));
        assert_ne!(named.flow(a), named.flow(b));
        assert_eq!(named.flow(None), None);
        assert_ne!(named.tenant, plain.tenant);
    }

    #[test]
    fn the_first_credential_that_says_something_counts() {
        let of = |list| credential(&headers(list)).map(<[u8]>::to_vec);
        assert_eq!(of(&[("authorization", "Bearer k")]).unwrap(), b"k");
        assert_eq!(of(&[("authorization", "bearer  k ")]).unwrap(), b"k");
        assert_eq!(of(&[("authorization", "k")]).unwrap(), b"k");
        let blank = &[("authorization", "Bearer "), ("x-api-key", "x")];
        assert_eq!(of(blank).unwrap(), b"x");
        assert_eq!(of(&[("api-key", "z")]).unwrap(), b"z");
        assert_eq!(of(&[("authorization", "  ")]), None);
        assert_eq!(of(&[]), None);
    }
}
