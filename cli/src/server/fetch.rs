//! Pictures from the network: public addresses alone, looked up once and held to.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{ACCEPT, HOST, LOCATION};
use axum::http::uri::Scheme;
use axum::http::{Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

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
    /// Who vouches for hosts of `https:`, and how they are talked to.
    pub(super) tls: Arc<ClientConfig>,
}

/// Why there is no picture, in the words that a client is told: what lies behind an address is not.
pub(super) type Refusal = &'static str;

impl Fetcher {
    /// One that asks public addresses on the web's own ports, and trusts the authorities that browsers trust.
    pub(super) fn new(limit: Duration, bytes: u64) -> Result<Self, rustls::Error> {
        Ok(Self {
            limit,
            bytes,
            address_is_allowed: is_public,
            port_is_allowed: |port| port == 80 || port == 443,
            tls: trusting(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect())?,
        })
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
            let next = resolved(&target, location.ok_or("the URL gave no picture")?);
            let next = next.ok_or(NO_URL)?;
            if target.scheme() == Some(&Scheme::HTTPS) && next.scheme() != Some(&Scheme::HTTPS) {
                return Err("the URL redirects from https: to another scheme");
            }
            target = next;
        }
        Err("the URL redirects too often")
    }

    /// Asks one host, at the one address that was looked up and allowed.
    async fn ask(&self, target: &Uri) -> Result<Response<Incoming>, Refusal> {
        let secure = match target.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err("only http: and https: URLs are fetched"),
        };
        let authority = target.authority().ok_or(NO_URL)?;
        if authority.as_str().contains('@') {
            return Err("the URL has a user");
        }
        let port = target.port_u16().unwrap_or(if secure { 443 } else { 80 });
        if !(self.port_is_allowed)(port) {
            return Err("only the ports 80 and 443 are asked");
        }
        let host = bare(authority.host());
        let address = self.look_up(host, port).await?;
        let stream = TcpStream::connect(address).await.map_err(|_| UNREACHABLE)?;
        let mut sender = if secure {
            // The name in the URL counts, whatever address it led to.
            let name = ServerName::try_from(host.to_owned()).map_err(|_| NO_URL)?;
            let connector = TlsConnector::from(Arc::clone(&self.tls));
            let stream = connector.connect(name, stream).await;
            speak(stream.map_err(|_| UNTRUSTED)?).await?
        } else {
            speak(stream).await?
        };
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
        let found: Vec<SocketAddr> = lookup_host((host, port))
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

/// How hosts are talked to that one of `roots` vouches for.
fn trusting(roots: RootCertStore) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

/// A host as it is looked up: an IPv6 address without its brackets.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Begins HTTP on a connection.
async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Body>, Refusal> {
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| UNREACHABLE)?;
    // It ends with its request.
    tokio::spawn(connection);
    Ok(sender)
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
const UNTRUSTED: Refusal = "the host shows no certificate of its name that can be trusted";
// The same for names that do not exist: which names there are inside is not told.
const NOT_PUBLIC: Refusal = "the host has no address, or one that is not public";

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

    use super::*;

    /// A host that gives the same answer to everybody, and how often it was asked.
    async fn host(address: &str, answer: String) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let asked: Arc<AtomicUsize> = Arc::default();
        let count = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
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

    fn public() -> Fetcher {
        Fetcher::new(Duration::from_secs(5), 10).unwrap()
    }

    /// Takes 127.0.0.2 for the public network.
    fn fetcher() -> Fetcher {
        Fetcher {
            address_is_allowed: |address| address == IpAddr::from([127, 0, 0, 2]),
            port_is_allowed: |_| true,
            ..public()
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
                ..public()
            };
            for url in [url.replace("http:", "https:"), url] {
                assert!(any_port.fetch(&url).await.is_err(), "{url}");
                assert!(public().fetch(&url).await.is_err(), "{url}");
            }
        }
        let (outer, _) = host("127.0.0.2", to(&format!("http://127.0.0.1:{port}/a.png"))).await;
        assert_eq!(
            fetcher().fetch(&format!("http://{outer}/")).await,
            Err(NOT_PUBLIC)
        );
        assert_eq!(asked.load(Ordering::SeqCst), 0);
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
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://{}/", listener.local_addr().unwrap());
            let refused = short.fetch(&url).await;
            assert_eq!(refused, Err("the URL took too long to answer"));
        }
    }

    /// A host of `https:` with one of the certificates of `testdata/tls`, the names it was asked by, and how many
    /// requests reached it.
    async fn secure_host(address: IpAddr, certificate: &str, answer: String) -> Secure {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/tls/");
        let certificate = CertificateDer::from_pem_file(format!("{folder}{certificate}")).unwrap();
        let key = PrivateKeyDer::from_pem_file(format!("{folder}hosts.key")).unwrap();
        let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let host = Secure {
            at: listener.local_addr().unwrap(),
            names: Arc::default(),
            requests: Arc::default(),
        };
        let seen = host.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let name = stream.get_ref().1.server_name().map(str::to_owned);
                seen.names.lock().unwrap().push(name);
                let mut head = [0; 1024];
                // One that does not trust the certificate leaves here.
                if stream.read(&mut head).await.is_ok_and(|read| read > 0) {
                    seen.requests.fetch_add(1, Ordering::SeqCst);
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.shutdown().await;
                }
            }
        });
        host
    }

    #[derive(Clone)]
    struct Secure {
        at: SocketAddr,
        names: Arc<Mutex<Vec<Option<String>>>>,
        requests: Arc<AtomicUsize>,
    }

    /// Trusts the authority of `testdata/tls`, and takes every address of this machine for the public network.
    fn trusting_fetcher() -> Fetcher {
        let authority = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/tls/authority.pem");
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(authority).unwrap())
            .unwrap();
        Fetcher {
            address_is_allowed: |address| address.is_loopback(),
            tls: trusting(roots).unwrap(),
            ..fetcher()
        }
    }

    const SECOND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

    #[tokio::test]
    async fn a_host_shows_a_certificate_of_its_name() {
        let local = lookup_host(("localhost", 0)).await.unwrap().next().unwrap();
        let named = secure_host(local.ip(), "localhost.pem", ok("pixels")).await;
        let url = format!("https://localhost:{}/a.png", named.at.port());
        let fetched = trusting_fetcher().fetch(&url).await;
        assert_eq!(fetched.as_deref(), Ok(&b"pixels"[..]));
        assert_eq!(*named.names.lock().unwrap(), [Some("localhost".to_owned())]);
        // The authorities of browsers do not know ours.
        let browser = Fetcher {
            tls: public().tls,
            ..trusting_fetcher()
        };
        assert_eq!(browser.fetch(&url).await, Err(UNTRUSTED));
        assert_eq!(fetcher().fetch(&url).await, Err(NOT_PUBLIC));
        let addressed = secure_host(SECOND, "localhost.pem", ok("pixels")).await;
        let url = format!("https://{}/", addressed.at);
        assert!(trusting_fetcher().fetch(&url).await.is_ok());
        let short = Fetcher {
            bytes: 5,
            ..trusting_fetcher()
        };
        assert!(short.fetch(&url).await.is_err());
    }

    #[tokio::test]
    async fn other_certificates_and_plain_text_are_refused() {
        for certificate in ["elsewhere.pem", "expired.pem", "unsigned.pem"] {
            let host = secure_host(SECOND, certificate, ok("pixels")).await;
            let refused = trusting_fetcher()
                .fetch(&format!("https://{}/", host.at))
                .await;
            assert_eq!(refused, Err(UNTRUSTED), "{certificate}");
            assert_eq!(host.requests.load(Ordering::SeqCst), 0, "{certificate}");
        }
        let (plain, _) = host("127.0.0.2", ok("pixels")).await;
        let refused = trusting_fetcher().fetch(&format!("https://{plain}/")).await;
        assert_eq!(refused, Err(UNTRUSTED));
    }

    #[tokio::test]
    async fn redirects_lead_to_https_and_never_back() {
        let last = secure_host(SECOND, "localhost.pem", ok("pixels")).await;
        let (first, _) = host("127.0.0.2", to(&format!("https://{}/a.png", last.at))).await;
        let fetched = trusting_fetcher().fetch(&format!("http://{first}/")).await;
        assert_eq!(fetched.as_deref(), Ok(&b"pixels"[..]));
        let (plain, asked) = host("127.0.0.2", ok("pixels")).await;
        let back = secure_host(SECOND, "localhost.pem", to(&format!("http://{plain}/"))).await;
        let refused = trusting_fetcher()
            .fetch(&format!("https://{}/", back.at))
            .await;
        assert!(refused.is_err());
        assert_eq!(back.requests.load(Ordering::SeqCst), 1);
        assert_eq!(asked.load(Ordering::SeqCst), 0);
        let (inner, asked) = host("127.0.0.1", ok("secret")).await;
        let inward = secure_host(SECOND, "localhost.pem", to(&format!("https://{inner}/"))).await;
        let second_alone = Fetcher {
            address_is_allowed: |address| address == SECOND,
            ..trusting_fetcher()
        };
        let refused = second_alone.fetch(&format!("https://{}/", inward.at)).await;
        assert_eq!(refused, Err(NOT_PUBLIC));
        assert_eq!(asked.load(Ordering::SeqCst), 0);
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
