//! Who may ask: keys, the host that was asked for, and pages of other origins.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, AUTHORIZATION, HOST, ORIGIN, VARY,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Uri};
use sha2::{Digest as _, Sha256};

use super::config::Server;
use super::error::{ApiError, Code};

/// The keys, the hosts and the origins that are let in.
#[derive(Debug)]
pub(super) struct Gate {
    /// Digests of the keys: comparing them takes the same time whatever was guessed.
    keys: Vec<[u8; 32]>,
    share_cache: bool,
    /// Names of hosts; nothing if any will do.
    hosts: Option<Vec<String>>,
    origins: Vec<String>,
}

/// The namespace of a client's cached prefixes and pictures.
pub(super) type Salt = [u8; 32];

impl Gate {
    /// Reads the keys, and refuses to listen to the world without any.
    pub(super) fn open(server: &Server) -> Result<Self> {
        let mut keys: Vec<String> = server.api_keys.clone();
        if let Some(path) = &server.api_key_file {
            let text =
                fs::read_to_string(path).with_context(|| cider::files::shown(path).to_string())?;
            let lines = text.lines().map(str::trim);
            let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
            let before = keys.len();
            keys.extend(lines.map(str::to_owned));
            ensure!(
                keys.len() > before,
                "{}: no key in it",
                cider::files::shown(path)
            );
        }
        ensure!(
            keys.iter()
                .all(|key| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic())),
            "an API key is empty or has characters that a header cannot carry"
        );
        let loopback = server.host.is_loopback();
        ensure!(
            loopback || !keys.is_empty() || server.no_auth,
            "{} is no loopback address: give API keys (server.api_key_file), or say --no-auth",
            server.host
        );
        let hosts =
            (loopback || !server.allowed_hosts.is_empty()).then(|| server.allowed_hosts.clone());
        Ok(Self {
            keys: keys.iter().map(|key| digest(key.as_bytes())).collect(),
            share_cache: server.share_cache,
            hosts,
            origins: server.cors_origins.clone(),
        })
    }

    /// Refuses a request without a key, if there are keys; gives the namespace of its cache.
    pub(super) fn check_key(&self, headers: &HeaderMap) -> Result<Salt, ApiError> {
        if self.keys.is_empty() {
            return Ok(Salt::default());
        }
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let (scheme, key) = given
            .and_then(|value| value.split_at_checked(BEARER.len()))
            .unwrap_or_default();
        let key = digest(key.trim_ascii());
        // Every key is looked at, whichever fits.
        let fits = self
            .keys
            .iter()
            .fold(false, |fits, known| fits | same(known, &key));
        if !fits || !scheme.eq_ignore_ascii_case(BEARER) {
            return Err(ApiError::new(
                Code::InvalidApiKey,
                "a key is needed: Authorization: Bearer KEY",
            ));
        }
        Ok(if self.share_cache {
            Salt::default()
        } else {
            key
        })
    }

    /// Refuses a request for another host: a page whose name was bound to this address is not let in.
    pub(super) fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(allowed) = &self.hosts else {
            return Ok(());
        };
        let mut named = headers.get_all(HOST).iter();
        let header = named.next().and_then(|value| value.to_str().ok());
        let header = header.and_then(|value| value.parse::<Authority>().ok());
        let lone = named.next().is_none();
        let known =
            |authority: &Authority| is_loopback(authority.host()) || is_listed(allowed, authority);
        let uri_is_known = uri.authority().is_none_or(known);
        if lone && uri_is_known && header.as_ref().is_some_and(known) {
            return Ok(());
        }
        let what = "the host is not one that this server answers to: see --allowed-host";
        Err(ApiError::new(Code::HostNotAllowed, what))
    }

    /// What a page of another origin may see of an answer.
    pub(super) fn cors(&self, request: &HeaderMap, answer: &mut HeaderMap, preflight: bool) {
        if self.origins.is_empty() {
            return;
        }
        answer.append(VARY, HeaderValue::from_static("origin"));
        let Some(origin) = request.get(ORIGIN) else {
            return;
        };
        let listed = |known: &String| known == "*" || known.as_bytes() == origin.as_bytes();
        if !self.origins.iter().any(listed) {
            return;
        }
        answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        if preflight {
            answer.insert(
                ACCESS_CONTROL_ALLOW_METHODS,
                HeaderValue::from_static("GET, POST"),
            );
            let headers = "authorization, content-type";
            answer.insert(
                ACCESS_CONTROL_ALLOW_HEADERS,
                HeaderValue::from_static(headers),
            );
            answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        }
    }
}

/// Whether a host name means this machine, and can mean nothing else.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

fn is_listed(allowed: &[String], authority: &Authority) -> bool {
    let (whole, host) = (
        authority.as_str().to_ascii_lowercase(),
        authority.host().to_ascii_lowercase(),
    );
    allowed
        .iter()
        .any(|known| *known == whole || *known == host)
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(bytes).finalize().into()
}

/// Whether two digests are equal, in a time that does not depend on where they differ.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter()
        .zip(b)
        .fold(0, |different, (a, b)| different | (a ^ b))
        == 0
}

const BEARER: &[u8] = b"Bearer ";

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(change: impl FnOnce(&mut Server)) -> Result<Gate> {
        let mut server = Server::default();
        change(&mut server);
        Gate::open(&server)
    }

    fn with(name: axum::http::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn only_the_right_keys_are_let_in_and_each_has_its_own_cache() {
        let gate = gate(|server| server.api_keys = vec!["k".to_owned(), "l".to_owned()]).unwrap();
        let check = |value: &str| gate.check_key(&with(AUTHORIZATION, value));
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer m",
            "Bearer kk",
            "k",
            "Basic k",
            "Bearerk",
        ] {
            assert_eq!(check(bad).unwrap_err().code(), Code::InvalidApiKey, "{bad}");
        }
        assert!(gate.check_key(&HeaderMap::new()).is_err());
        assert_ne!(check("Bearer k").unwrap(), check("bearer l").unwrap());
    }

    #[test]
    fn keys_are_needed_beyond_loopback() {
        let everywhere = |server: &mut Server| server.host = [0, 0, 0, 0].into();
        assert!(gate(everywhere).is_err());
        assert!(
            gate(|server| {
                everywhere(server);
                server.no_auth = true;
            })
            .is_ok()
        );
        assert!(
            gate(|server| {
                everywhere(server);
                server.api_keys.push("k".into());
            })
            .is_ok()
        );
        assert!(gate(|server| server.api_keys.push("two words".into())).is_err());
    }

    #[test]
    fn other_hosts_are_refused_on_loopback() {
        let gate = gate(|server| server.allowed_hosts.push("chat.test".into())).unwrap();
        let check = |host: &str| {
            gate.check_host(&"/".parse().unwrap(), &with(HOST, host))
                .is_ok()
        };
        for good in [
            "localhost",
            "LOCALHOST:8000",
            "127.0.0.1:1",
            "[::1]:80",
            "chat.test",
            "chat.test:8000",
        ] {
            assert!(check(good), "{good}");
        }
        for bad in [
            "evil.test",
            "localhost.evil.test",
            "127.0.0.1.evil.test",
            "0.0.0.0",
            "",
            "a b",
            "user@evil.test",
        ] {
            assert!(!check(bad), "{bad}");
        }
        assert!(
            gate.check_host(&"/".parse().unwrap(), &HeaderMap::new())
                .is_err()
        );
        let absolute: Uri = "http://evil.test/".parse().unwrap();
        assert!(
            gate.check_host(&absolute, &with(HOST, "localhost"))
                .is_err()
        );
    }

    #[test]
    fn only_listed_origins_are_told_that_they_may_read() {
        let gate = gate(|server| server.cors_origins.push("https://a.test".into())).unwrap();
        let mut answer = HeaderMap::new();
        gate.cors(&with(ORIGIN, "https://evil.test"), &mut answer, true);
        assert!(!answer.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
        gate.cors(&with(ORIGIN, "https://a.test"), &mut answer, true);
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.test");
    }
}
