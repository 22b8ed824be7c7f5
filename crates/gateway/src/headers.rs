//! Which headers go from the client to the worker and back.

use http::header::{CONNECTION, HeaderName, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Uri};

/// Names that the HTTP library does not know, made once.
pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) static API_KEY: HeaderName = HeaderName::from_static("x-api-key");
pub(crate) static AZURE_KEY: HeaderName = HeaderName::from_static("api-key");

/// By which vLLM and SGLang let a request choose among their data-parallel ranks.
const DATA_PARALLEL_RANK: &str = "x-data-parallel-rank";

/// A header's value as text, where it is ASCII.
pub(crate) fn text_of(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}

/// What a header is about, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// One connection only (RFC 9110 section 7.6.1).
    Connection,
    Credential,
    /// Set anew on every hop.
    Ours,
    /// What a request says to us and not to a worker.
    Request,
    /// What a worker says of itself.
    Worker,
    ContentEncoding,
    Else,
}

fn about(name: &str) -> About {
    match name {
        "connection"
        | "transfer-encoding"
        | "upgrade"
        | "te"
        | "trailer"
        | "keep-alive"
        | "proxy-connection"
        | "proxy-authenticate"
        | "proxy-authorization" => About::Connection,
        "authorization" | "x-api-key" | "api-key" => About::Credential,
        "x-request-id" | "traceparent" => About::Ours,
        // The observer reads the answer: it has to come without a coding.
        "host" | "content-length" | "expect" | "cookie" | "accept-encoding" => About::Request,
        "server" | "set-cookie" => About::Worker,
        "content-encoding" => About::ContentEncoding,
        _ => About::Else,
    }
}

/// What `Connection` names goes no further either.
fn connection_names(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(text_of)
        .flat_map(|v| v.split(','))
        .map(str::trim)
        .filter(|name| !matches!(*name, "" | "close" | "keep-alive"))
}

/// The client's target and headers as far as they may go to a worker, as lines of a head. A request
/// that waits keeps these bytes and not the map, which takes several times as much, nor the buffer
/// that all was read into.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passing {
    /// Path and query.
    pub(crate) target: Box<str>,
    lines: Box<[u8]>,
    /// Where the credentials begin, and of these `authorization`, which comes last.
    credentials: u32,
    authorization: u32,
    /// The client itself names the rank of the engine that is to serve it.
    names_rank: bool,
}

impl Passing {
    /// `decoded`: the body was decoded here, so that its coding is not sent on. `tenant_header`: the
    /// header in which tenants are named to us, not sent on.
    pub(crate) fn of(
        uri: &Uri,
        headers: &HeaderMap,
        decoded: bool,
        tenant_header: Option<&str>,
    ) -> Self {
        let has_named = headers.contains_key(CONNECTION);
        let named = |name: &str| {
            has_named && connection_names(headers).any(|n| n.eq_ignore_ascii_case(name))
        };
        let (mut lines, mut keys, mut authorization) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in headers {
            let name = name.as_str();
            let to = match about(name) {
                About::Connection | About::Ours | About::Request => continue,
                About::ContentEncoding if decoded => continue,
                About::Credential if name == "authorization" => &mut authorization,
                About::Credential => &mut keys,
                About::ContentEncoding | About::Worker | About::Else => &mut lines,
            };
            if tenant_header != Some(name) && !named(name) {
                put(to, name, value);
            }
        }
        let credentials = lines.len() as u32;
        let authorization_at = credentials + keys.len() as u32;
        lines.append(&mut keys);
        lines.append(&mut authorization);
        Self {
            target: uri.path_and_query().map_or("/", |p| p.as_str()).into(),
            lines: lines.into(),
            credentials,
            authorization: authorization_at,
            names_rank: headers.contains_key(DATA_PARALLEL_RANK),
        }
    }

    /// What goes to a worker: with the credentials or without, and without `authorization` where the
    /// worker has its own.
    fn lines(&self, credentials: bool, has_own: bool) -> &[u8] {
        let end = match (credentials, has_own) {
            (false, _) => self.credentials as usize,
            (true, true) => self.authorization as usize,
            (true, false) => self.lines.len(),
        };
        self.lines.get(..end).unwrap_or_default()
    }
}

/// What a request to a worker is made of.
pub(crate) struct Outbound<'a> {
    pub(crate) method: &'a Method,
    pub(crate) passing: &'a Passing,
    pub(crate) request_id: &'a HeaderValue,
    pub(crate) traceparent: &'a HeaderValue,
    /// The body's length; None: the request has none.
    pub(crate) body_length: Option<usize>,
    pub(crate) pass_credentials: bool,
    /// The rank of the engine that holds its beginning, where the engine takes that.
    pub(crate) rank: Option<u32>,
}

/// The head of the request to a worker.
pub(crate) fn request_head(
    out: &Outbound<'_>,
    authority: &str,
    base_path: &str,
    authorization: Option<&HeaderValue>,
) -> Vec<u8> {
    let mut head = Vec::with_capacity(768);
    head.extend_from_slice(out.method.as_str().as_bytes());
    head.push(b' ');
    head.extend_from_slice(base_path.as_bytes());
    let target = &*out.passing.target;
    if !target.starts_with('/') {
        head.push(b'/');
    }
    head.extend_from_slice(target.as_bytes());
    head.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    head.extend_from_slice(authority.as_bytes());
    head.extend_from_slice(b"\r\n");
    let own = authorization.is_some();
    head.extend_from_slice(out.passing.lines(out.pass_credentials, own));
    if let Some(value) = authorization {
        put(&mut head, "authorization", value);
    }
    put(&mut head, "x-request-id", out.request_id);
    put(&mut head, "traceparent", out.traceparent);
    if let Some(rank) = out.rank.filter(|_| !out.passing.names_rank) {
        put(&mut head, DATA_PARALLEL_RANK, &HeaderValue::from(rank));
    }
    if let Some(length) = out.body_length {
        put(&mut head, "content-length", &HeaderValue::from(length));
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Whether an answer of this content type is an event stream.
pub(crate) fn is_event_stream(content_type: Option<&[u8]>) -> bool {
    content_type.is_some_and(|t| {
        t.get(..17)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
    })
}

/// The client's headers as they go to a worker that pulls, and our own two. What is no text stays here.
pub(crate) fn passing(out: &Outbound<'_>) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    let lines = out.passing.lines(out.pass_credentials, false);
    let theirs = lines.split(|b| *b == b'\n').filter_map(|line| {
        let line = line.strip_suffix(b"\r")?;
        let colon = memchr::memchr(b':', line)?;
        let value = line.get(colon + 2..).filter(|value| value.is_ascii())?;
        Some((text(&line[..colon])?, text(value)?))
    });
    let ours = [
        ("x-request-id", out.request_id),
        ("traceparent", out.traceparent),
    ];
    let ours = ours.into_iter();
    let ours = ours.filter_map(|(name, value)| Some((name.to_owned(), text_of(value)?.to_owned())));
    theirs.chain(ours).collect()
}

fn put(head: &mut Vec<u8>, name: &str, value: &HeaderValue) {
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value.as_bytes());
    head.extend_from_slice(b"\r\n");
}

/// Takes out of a worker's response headers what does not go to the client: connection matters,
/// cookies, the engine's name, and places that only we can reach.
pub(crate) fn clean_response(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = connection_names(headers)
            .filter_map(|n| n.parse().ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    let stay = |name: &&HeaderName| {
        matches!(
            about(name.as_str()),
            About::Connection | About::Ours | About::Worker
        )
    };
    // Most answers have one or none: a list without an element takes no memory.
    let staying: Vec<HeaderName> = headers.keys().filter(stay).cloned().collect();
    for name in staying {
        headers.remove(name);
    }
    let leaves =
        |v: &HeaderValue| !v.as_bytes().starts_with(b"/") || v.as_bytes().starts_with(b"//");
    if headers.get(LOCATION).is_some_and(leaves) {
        headers.remove(LOCATION);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Outbound, Passing, clean_response, request_head};
    use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in list {
            map.append(
                name.parse::<HeaderName>().unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        map
    }

    fn head(list: &[(&str, &str)], own: Option<&str>, pass: bool) -> String {
        let uri: Uri = "/v1/messages?beta=true".parse().unwrap();
        let out = Outbound {
            method: &Method::POST,
            passing: &Passing::of(&uri, &headers(list), true, None),
            request_id: &HeaderValue::from_static("r-1"),
            traceparent: &HeaderValue::from_static("t-1"),
            body_length: Some(2),
            pass_credentials: pass,
            rank: None,
        };
        let own = own.map(|o| HeaderValue::from_str(o).unwrap());
        let head = request_head(&out, "10.0.0.1:80", "/pre", own.as_ref());
        String::from_utf8(head).unwrap()
    }

    #[test]
    fn only_end_to_end_headers_go_up() {
        let text = head(
            &[
                ("host", "gw"),
                ("connection", "x-a, close"),
                ("x-a", "1"),
                ("x-b", "2"),
                ("expect", "100-continue"),
                ("cookie", "c=1"),
                ("content-encoding", "zstd"),
                ("accept-encoding", "gzip"),
                ("transfer-encoding", "chunked"),
                ("x-request-id", "old"),
            ],
            None,
            false,
        );
        assert_eq!(
            text,
            "POST /pre/v1/messages?beta=true HTTP/1.1\r\nhost: 10.0.0.1:80\r\nx-b: 2\r\n\
             x-request-id: r-1\r\ntraceparent: t-1\r\ncontent-length: 2\r\n\r\n"
        );
    }

    #[test]
    fn a_rank_is_named_once_and_the_clients_own_word_counts() {
        let named = |list: &[(&str, &str)], rank| {
            let out = Outbound {
                method: &Method::GET,
                passing: &Passing::of(&Uri::from_static("/"), &headers(list), true, None),
                request_id: &HeaderValue::from_static("r"),
                traceparent: &HeaderValue::from_static("t"),
                body_length: None,
                pass_credentials: false,
                rank,
            };
            let head = String::from_utf8(request_head(&out, "h", "", None)).unwrap();
            let lines = head
                .lines()
                .filter(|l| l.starts_with("x-data-parallel-rank"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(named(&[], Some(3)), ["x-data-parallel-rank: 3"]);
        assert!(named(&[], None).is_empty());
        let own = [("x-data-parallel-rank", "1")];
        assert_eq!(named(&own, Some(3)), ["x-data-parallel-rank: 1"]);
    }

    #[test]
    fn credentials_stay_here_unless_asked() {
        let sent = [
            ("authorization", "Bearer gw-1"),
            ("x-api-key", "gw-1"),
            ("api-key", "gw-1"),
        ];
        assert!(!head(&sent, None, false).contains("gw-1"));
        let own = head(&sent, Some("Bearer own"), false);
        assert!(own.contains("authorization: Bearer own\r\n") && !own.contains("gw-1"));
        assert!(head(&sent, None, true).contains("authorization: Bearer gw-1\r\n"));
    }

    #[test]
    fn internal_places_and_cookies_stay_here() {
        let mut map = headers(&[
            ("server", "uvicorn"),
            ("set-cookie", "a=1"),
            ("location", "http://10.0.0.5:8000/x"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("x-engine", "kept"),
        ]);
        clean_response(&mut map);
        assert_eq!(map.len(), 1);
        assert_eq!(map["x-engine"], "kept");
        let mut map = headers(&[("location", "/v1/files/1")]);
        clean_response(&mut map);
        assert_eq!(map.len(), 1);
    }
}
