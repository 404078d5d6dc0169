//! Pictures from the network: public addresses alone, looked up once and held to.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{ACCEPT, HOST, LOCATION};
use axum::http::uri::Scheme;
use axum::http::{Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::address::is_public;

/// What may be fetched.
#[derive(Clone, Debug)]
pub(super) struct Fetcher {
    /// The time for all of it, redirects included.
    pub(super) limit: Duration,
    /// Bytes of a picture.
    pub(super) bytes: u64,
    pub(super) address_is_allowed: fn(IpAddr) -> bool,
    pub(super) port_is_allowed: fn(u16) -> bool,
}

/// Why there is no picture, in the words that a client is told: what lies behind an address is not.
pub(super) type Refusal = &'static str;

impl Fetcher {
    /// One that asks public addresses on the web's own ports.
    pub(super) fn new(limit: Duration, bytes: u64) -> Self {
        Self {
            limit,
            bytes,
            address_is_allowed: is_public,
            port_is_allowed: |port| port == 80 || port == 443,
        }
    }

    /// The bytes behind a URL.
    pub(super) async fn fetch(&self, url: &str) -> Result<Vec<u8>, Refusal> {
        let fetched = timeout(self.limit, self.follow(url)).await;
        fetched.unwrap_or(Err("the URL took too long to answer"))
    }

    async fn follow(&self, url: &str) -> Result<Vec<u8>, Refusal> {
        let mut target: Uri = url.parse().map_err(|_| NO_URL)?;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.ask(&target).await?;
            let status = response.status();
            if status.is_success() {
                return self.body(response.into_body()).await;
            }
            let location = response
                .headers()
                .get(LOCATION)
                .filter(|_| status.is_redirection());
            let location = location.and_then(|value| value.to_str().ok());
            target = resolved(&target, location.ok_or("the URL gave no picture")?).ok_or(NO_URL)?;
        }
        Err("the URL redirects too often")
    }

    /// Asks one host, at the one address that was looked up and allowed.
    async fn ask(&self, target: &Uri) -> Result<Response<Incoming>, Refusal> {
        if target.scheme() != Some(&Scheme::HTTP) {
            return Err("only http: URLs are fetched, https: is not supported");
        }
        let authority = target.authority().ok_or(NO_URL)?;
        if authority.as_str().contains('@') {
            return Err("the URL has a user");
        }
        let port = target.port_u16().unwrap_or(80);
        if !(self.port_is_allowed)(port) {
            return Err("only the ports 80 and 443 are asked");
        }
        let address = self.look_up(authority.host(), port).await?;
        let stream = TcpStream::connect(address).await.map_err(|_| UNREACHABLE)?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|_| UNREACHABLE)?;
        // It ends with its request.
        tokio::spawn(connection);
        let path = target.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::get(path)
            .header(HOST, authority.as_str())
            .header(ACCEPT, "image/*")
            .body(Body::empty())
            .map_err(|_| NO_URL)?;
        sender.send_request(request).await.map_err(|_| UNREACHABLE)
    }

    /// The address of a host. Where one of its addresses is not public, none is taken.
    async fn look_up(&self, host: &str, port: u16) -> Result<SocketAddr, Refusal> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let found: Vec<SocketAddr> = lookup_host((bare, port))
            .await
            .map_err(|_| NOT_PUBLIC)?
            .collect();
        if !found
            .iter()
            .all(|address| (self.address_is_allowed)(address.ip()))
        {
            return Err(NOT_PUBLIC);
        }
        found.first().copied().ok_or(NOT_PUBLIC)
    }

    async fn body(&self, mut body: Incoming) -> Result<Vec<u8>, Refusal> {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| UNREACHABLE)?;
            if let Some(data) = frame.data_ref() {
                if (bytes.len() + data.len()) as u64 > self.bytes {
                    return Err("the picture has too many bytes");
                }
                bytes.extend_from_slice(data);
            }
        }
        Ok(bytes)
    }
}

/// Where a redirect leads.
fn resolved(from: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next()?;
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let text = if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = from
            .path()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    text.parse().ok()
}

const MAX_REDIRECTS: usize = 3;
const MAX_HEAD: usize = 64 << 10;
const NO_URL: Refusal = "not a URL that can be fetched";
const UNREACHABLE: Refusal = "the URL could not be read";
// The same for names that do not exist: which names there are inside is not told.
const NOT_PUBLIC: Refusal = "the host has no address, or one that is not public";

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// A host that gives the same answer to everybody, and how often it was asked.
    async fn host(
        address: &str,
        answer: String,
    ) -> (SocketAddr, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let asked: std::sync::Arc<std::sync::atomic::AtomicUsize> = std::sync::Arc::default();
        let count = std::sync::Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let mut head = [0; 1024];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        (at, asked)
    }

    fn ok(body: &str) -> String {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    fn to(location: &str) -> String {
        format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
    }

    /// Takes 127.0.0.2 for the public network.
    fn fetcher() -> Fetcher {
        Fetcher {
            address_is_allowed: |address| address == IpAddr::from([127, 0, 0, 2]),
            port_is_allowed: |_| true,
            ..Fetcher::new(Duration::from_secs(5), 10)
        }
    }

    #[tokio::test]
    async fn c069_no_spelling_of_an_inner_address_is_asked() {
        let (inner, asked) = host("127.0.0.1", ok("secret")).await;
        let port = inner.port();
        for host in [
            "127.0.0.1",
            "localhost",
            "2130706433",
            "0x7f.1",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "[::ffff:127.0.0.1]",
            "[::1]",
            "0.0.0.0",
            "169.254.169.254",
            "[64:ff9b::7f00:1]",
            "[fe80::1%25lo]",
            "127.0.0.1.",
            "user@127.0.0.1",
        ] {
            let url = format!("http://{host}:{port}/a.png");
            let any_port = Fetcher {
                port_is_allowed: |_| true,
                ..Fetcher::new(Duration::from_secs(5), 10)
            };
            assert!(any_port.fetch(&url).await.is_err(), "{host}");
            let refused = Fetcher::new(Duration::from_secs(5), 10).fetch(&url).await;
            assert!(refused.is_err(), "{host}");
        }
        let (outer, _) = host("127.0.0.2", to(&format!("http://127.0.0.1:{port}/a.png"))).await;
        assert_eq!(
            fetcher().fetch(&format!("http://{outer}/")).await,
            Err(NOT_PUBLIC)
        );
        assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn redirects_are_followed_three_times_and_bodies_have_a_limit() {
        let (last, _) = host("127.0.0.2", ok("pixels")).await;
        let mut url = format!("http://{last}/a.png?b#c");
        assert_eq!(fetcher().fetch(&url).await.as_deref(), Ok(&b"pixels"[..]));
        for _ in 0..3 {
            let (next, _) = host("127.0.0.2", to(&url)).await;
            url = format!("http://{next}/x/");
        }
        assert!(fetcher().fetch(&url).await.is_ok());
        let (fourth, _) = host("127.0.0.2", to(&url)).await;
        assert!(fetcher().fetch(&format!("http://{fourth}/")).await.is_err());
        let (long, _) = host("127.0.0.2", ok("more than ten bytes")).await;
        assert!(fetcher().fetch(&format!("http://{long}/")).await.is_err());
        for bad in [
            "https://a.test/",
            "ftp://a.test/",
            "http://",
            "http:///a",
            "a.png",
            "",
            "http://[::1",
            "http://a b/",
        ] {
            assert!(fetcher().fetch(bad).await.is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_silent_host_is_left() {
        let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let short = Fetcher {
            limit: Duration::from_millis(50),
            ..fetcher()
        };
        assert!(
            short
                .fetch(&format!("http://{}/", listener.local_addr().unwrap()))
                .await
                .is_err()
        );
    }

    #[test]
    fn places_are_resolved_against_the_one_before() {
        let from: Uri = "http://a.test/b/c?d".parse().unwrap();
        for (location, to) in [
            ("/x", "http://a.test/x"),
            ("x?y", "http://a.test/b/x?y"),
            ("//b.test/x", "http://b.test/x"),
            ("https://c.test/", "https://c.test/"),
        ] {
            assert_eq!(
                resolved(&from, location),
                Some(to.parse().unwrap()),
                "{location}"
            );
        }
    }
}
