//! Who may use the admin API.

use super::answer::Wrong;
use crate::config::{Config, Secret};
use http::{HeaderMap, StatusCode, header};
use std::net::IpAddr;

/// Lets a request pass, or says why not.
pub(super) fn check(config: &Config, headers: &HeaderMap) -> Result<(), Wrong> {
    match &config.admin_token {
        Some(token) => check_token(token, headers),
        None => check_local(headers),
    }
}

fn check_token(token: &Secret, headers: &HeaderMap) -> Result<(), Wrong> {
    let given = headers
        .get(header::AUTHORIZATION)
        .map_or(&b""[..], |value| value.as_bytes());
    let given = given
        .strip_prefix(b"Bearer ")
        .or_else(|| given.strip_prefix(b"bearer "))
        .unwrap_or(b"");
    if equal(given, token.reveal().as_bytes()) {
        return Ok(());
    }
    Err(Wrong::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        None,
        "send `Authorization: Bearer` with the admin token",
    ))
}

/// Without a token only this machine can connect; a web page open on it must not act in its name
/// (another site's `Origin`, or a name that was made to resolve to this machine).
fn check_local(headers: &HeaderMap) -> Result<(), Wrong> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|v: &http::HeaderValue| v.to_str().ok())
    };
    let foreign_host = text(header::HOST).is_some_and(|host| !is_local(host));
    let foreign_origin = headers.contains_key(header::ORIGIN)
        && text(header::ORIGIN) != text(header::HOST).map(|h| format!("http://{h}")).as_deref();
    if foreign_host || foreign_origin {
        return Err(Wrong::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            None,
            "without `admin_token` only local requests are answered",
        ));
    }
    Ok(())
}

fn is_local(host: &str) -> bool {
    let name = host
        .parse::<http::uri::Authority>()
        .map_or_else(|_| host.to_owned(), |a| a.host().to_owned());
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Equality in a time that depends on the length of `given` only.
fn equal(given: &[u8], secret: &[u8]) -> bool {
    let mut difference = given.len() ^ secret.len();
    for (index, byte) in given.iter().enumerate() {
        let other = secret.get(index % secret.len().max(1)).copied();
        difference |= usize::from(byte ^ other.unwrap_or(0));
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::{equal, is_local};

    #[test]
    fn equal_means_equal() {
        assert!(equal(b"abc", b"abc"));
        assert!(!equal(b"abd", b"abc"));
        assert!(!equal(b"abcabc", b"abc"));
        assert!(!equal(b"", b"abc"));
        assert!(!equal(b"a", b""));
    }

    #[test]
    fn local_names() {
        for host in ["127.0.0.1:8081", "localhost:1", "[::1]:8081", "localhost"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["evil.example:8081", "10.0.0.1:1", "localhost.evil.example"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
