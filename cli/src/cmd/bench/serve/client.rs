//! One request to a server, and when what of its answer came.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::failure::Usage;

/// A server that is measured.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    /// Host and port.
    authority: String,
    /// What comes before the routes.
    base: String,
    key: Option<HeaderValue>,
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reply {
    /// From the beginning to the first text.
    pub(super) first: Duration,
    /// Between one text and the next.
    pub(super) gaps: Vec<Duration>,
    /// From the beginning to the end.
    pub(super) whole: Duration,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) generated_tokens: u64,
}

/// Why there is no reply, in a word or two.
pub(super) type Failure = String;

impl Target {
    /// A server at `[NAME=]URL`.
    pub(super) fn parse(text: &str, key: Option<&str>) -> Result<Self> {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if !name.contains("://") && !name.is_empty() => (Some(name), url),
            _ => (None, text),
        };
        let wrong = || Usage(format!("--url {text}: expected [NAME=]http://HOST:PORT"));
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, base) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let host = authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host);
        if host.is_empty() || text.contains(char::is_whitespace) || url.contains(['?', '#', '@']) {
            return Err(wrong().into());
        }
        let base = base.trim_end_matches('/');
        let key = key.map(|key| HeaderValue::from_str(&format!("Bearer {key}")));
        Ok(Self {
            name: name.unwrap_or(authority).to_owned(),
            authority: authority.to_owned(),
            base: base.strip_suffix("/v1").unwrap_or(base).to_owned(),
            key: key.transpose().context(KEY)?,
        })
    }

    /// The name of the model that it serves; of the first, where there are several.
    pub(super) async fn model(&self) -> Result<String> {
        let (mut response, _connection) =
            self.send(Method::GET, "/v1/models", Bytes::new()).await?;
        let status = response.status();
        let body = Limited::new(response.body_mut(), MOST_BYTES)
            .collect()
            .await;
        let body = body.map_err(|error| anyhow!("{error}"))?.to_bytes();
        ensure!(status == StatusCode::OK, "/v1/models: status {status}");
        let list: Value = serde_json::from_slice(&body).context("/v1/models")?;
        let name = list.pointer("/data/0/id").and_then(Value::as_str);
        Ok(name.context("/v1/models names no model")?.to_owned())
    }

    /// Asks for a chat. Times count from `due`.
    pub(super) async fn ask(
        &self,
        body: Bytes,
        due: Instant,
        limit: Duration,
    ) -> Result<Reply, Failure> {
        match tokio::time::timeout(limit, self.chat(body, due)).await {
            Ok(reply) => reply,
            Err(_) => Err(format!("longer than {} s", limit.as_secs())),
        }
    }

    async fn chat(&self, body: Bytes, due: Instant) -> Result<Reply, Failure> {
        let sent = self.send(Method::POST, "/v1/chat/completions", body).await;
        let (mut response, _connection) = sent.map_err(|error| format!("{error:#}"))?;
        let status = response.status();
        if status != StatusCode::OK {
            return Err(refusal(&mut response).await);
        }
        let mut answer = Answer::new(due);
        while let Some(frame) = response.body_mut().frame().await {
            let frame = frame.map_err(|error| format!("connection: {error}"))?;
            if let Some(bytes) = frame.data_ref() {
                answer.take(bytes, Instant::now())?;
            }
        }
        answer.end(Instant::now())
    }

    /// Sends a request over a connection of its own.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(Response<Incoming>, Connection)> {
        let address = if self.authority.contains(':') {
            self.authority.clone()
        } else {
            format!("{}:80", self.authority)
        };
        let stream = TcpStream::connect(&address).await.context("connection")?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = Connection(tokio::spawn(async {
            // Whatever ends it, the answer shows.
            let _ = connection.await;
        }));
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        let response = sender.send_request(request.body(Full::new(body))?).await?;
        Ok((response, connection))
    }
}

/// A connection, closed with this.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The code of a refusal, or its status where it has none.
async fn refusal(response: &mut Response<Incoming>) -> Failure {
    let status = response.status();
    let body = Limited::new(response.body_mut(), MOST_BYTES)
        .collect()
        .await;
    let body = body.map(Collected::to_bytes).unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    match body.pointer("/error/code").and_then(Value::as_str) {
        Some(code) => code.to_owned(),
        None => format!("status {}", status.as_u16()),
    }
}

/// A streamed answer as it comes.
struct Answer {
    due: Instant,
    last: Option<Instant>,
    /// What has come of a line.
    line: Vec<u8>,
    reply: Reply,
    texts: u64,
    done: bool,
}

impl Answer {
    fn new(due: Instant) -> Self {
        Self {
            due,
            last: None,
            line: Vec::new(),
            reply: Reply::default(),
            texts: 0,
            done: false,
        }
    }

    /// Takes bytes that came at a moment.
    fn take(&mut self, bytes: &[u8], now: Instant) -> Result<(), Failure> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > MOST_BYTES {
                return Err("a line without an end".to_owned());
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.event(&line, now)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, line: &[u8], now: Instant) -> Result<(), Failure> {
        let Some(data) = line.strip_prefix(b"data:") else {
            return Ok(());
        };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let chunk: Value =
            serde_json::from_slice(data).map_err(|_| "an event that is no JSON".to_owned())?;
        if let Some(error) = chunk.get("error") {
            let code = error.get("code").and_then(Value::as_str);
            return Err(code.unwrap_or("an error in the stream").to_owned());
        }
        if has_text(&chunk) {
            self.texts += 1;
            match self.last.replace(now) {
                None => self.reply.first = now - self.due,
                Some(last) => self.reply.gaps.push(now - last),
            }
        }
        let count = |path: &str| chunk.pointer(path).and_then(Value::as_u64);
        let counts = [
            (&mut self.reply.prompt_tokens, "/usage/prompt_tokens"),
            (&mut self.reply.generated_tokens, "/usage/completion_tokens"),
            (
                &mut self.reply.cached_tokens,
                "/usage/prompt_tokens_details/cached_tokens",
            ),
        ];
        for (place, path) in counts {
            *place = count(path).unwrap_or(*place);
        }
        Ok(())
    }

    fn end(mut self, now: Instant) -> Result<Reply, Failure> {
        if !self.done {
            return Err("an answer without an end".to_owned());
        }
        if self.last.is_none() {
            return Err("an answer without text".to_owned());
        }
        if self.reply.generated_tokens == 0 {
            // A server that does not count them: there is a text for each, or nearly so.
            self.reply.generated_tokens = self.texts;
        }
        self.reply.whole = now - self.due;
        Ok(self.reply)
    }
}

fn has_text(chunk: &Value) -> bool {
    let delta = chunk.pointer("/choices/0/delta");
    let texts = ["content", "reasoning_content"].into_iter();
    let mut texts = texts.filter_map(|name| delta?.get(name)?.as_str());
    texts.any(|text| !text.is_empty())
}

/// Refuses servers that nobody could tell apart.
pub(super) fn check_names(targets: &[Target]) -> Result<()> {
    for (i, target) in targets.iter().enumerate() {
        if targets[..i].iter().any(|other| other.name == target.name) {
            bail!(Usage(format!(
                "--url: two servers are named {}",
                target.name
            )));
        }
    }
    Ok(())
}

/// The environment variable of the key.
pub(super) const KEY: &str = "CIDER_BENCH_API_KEY";

/// More than an event or a list of models has.
const MOST_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_named() {
        let parsed = |text: &str| {
            let target = Target::parse(text, Some("k")).unwrap();
            [target.name, target.authority, target.base]
        };
        assert_eq!(parsed("http://a:1"), ["a:1", "a:1", ""]);
        assert_eq!(parsed("x=http://a:1/b/v1/"), ["x", "a:1", "/b"]);
        assert_eq!(parsed("http://[::1]:80/v1"), ["[::1]:80", "[::1]:80", ""]);
        for text in [
            "",
            "a:1",
            "https://a",
            "http://",
            "http:///v1",
            "http://a b",
            "x=y",
            "http://a?x=1",
        ] {
            assert!(
                Target::parse(text, None).unwrap_err().is::<Usage>(),
                "{text}"
            );
        }
        let two = ["x=http://a", "x=http://b"].map(|text| Target::parse(text, None).unwrap());
        check_names(&two).unwrap_err();
        check_names(&two[..1]).unwrap();
    }

    #[test]
    fn texts_are_timed_however_the_bytes_are_cut() {
        let stream = b": waiting\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"reasoning_content\":\"b\"}}]}\r\n\r\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n\
            data: [DONE]\n\n";
        let due = Instant::now();
        for size in [1, 7, 1000] {
            let mut answer = Answer::new(due);
            let mut now = due;
            for piece in stream.chunks(size) {
                now += Duration::from_millis(1);
                answer.take(piece, now).unwrap();
            }
            let reply = answer.end(now).unwrap();
            assert_eq!(
                (
                    reply.prompt_tokens,
                    reply.generated_tokens,
                    reply.cached_tokens
                ),
                (5, 3, 4)
            );
            assert_eq!(reply.gaps.len(), 1);
            assert!(reply.first > Duration::ZERO && reply.first + reply.gaps[0] <= reply.whole);
        }
    }

    #[test]
    fn what_is_no_answer_is_a_failure() {
        let now = Instant::now();
        let taken = |text: &str| {
            let mut answer = Answer::new(now);
            answer
                .take(text.as_bytes(), now)
                .and_then(|()| answer.end(now))
        };
        let content = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n";
        assert_eq!(taken(content).unwrap_err(), "an answer without an end");
        assert_eq!(
            taken("data: [DONE]\n").unwrap_err(),
            "an answer without text"
        );
        assert_eq!(
            taken("data: {\"error\":{\"code\":\"slow_reader\"}}\n").unwrap_err(),
            "slow_reader"
        );
        assert_eq!(taken("data: {\n").unwrap_err(), "an event that is no JSON");
        assert_eq!(
            taken(&format!("{content}data: [DONE]\n"))
                .unwrap()
                .generated_tokens,
            1
        );
    }
}
