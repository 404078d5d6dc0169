//! Bodies of requests: within limits of size, time and depth, and as the types they should be.

use std::collections::BTreeSet;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::runtime::Handle;
use tokio::time::{Duration, timeout};

use super::app::App;
use super::budget::Share;
use super::error::{ApiError, Code};

impl App {
    /// The JSON of a request, and the share of memory that it holds.
    pub(super) async fn read_json<T: DeserializeOwned>(
        &self,
        request: Request<Body>,
    ) -> Result<(T, Share), ApiError> {
        check_type(request.headers())?;
        let (bytes, share) = self.read_body(request).await?;
        let (value, unknown) = parse(&bytes)?;
        for field in unknown {
            self.unknown.note(&field);
        }
        Ok((value, share))
    }

    async fn read_body(&self, request: Request<Body>) -> Result<(Vec<u8>, Share), ApiError> {
        let limit = self.limits.body_bytes;
        let mut share = self.budget.share();
        let (parts, body) = request.into_parts();
        let length = parts
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: u64| length > limit as u64) {
            return Err(too_large(limit));
        }
        let reading = timeout(self.limits.body_timeout, collect(body, limit, &mut share)).await;
        let late = || ApiError::new(Code::BodyTimeout, "the body did not come in time");
        let bytes = reading.map_err(|_| late())??;
        Ok((bytes, share))
    }
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let what = "the body must be sent with Content-Type: application/json";
    Err(ApiError::new(Code::UnsupportedMediaType, what))
}

async fn collect(mut body: Body, limit: usize, share: &mut Share) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    if let Some(exact) = body.size_hint().exact() {
        // The limit was looked at before: this is no more than it.
        let exact = (exact as usize).min(limit);
        share.take(exact)?;
        bytes.reserve_exact(exact);
    }
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|_| ApiError::new(Code::InvalidBody, "the body ended before its time"))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        let length = bytes.len() + data.len();
        if length > limit {
            return Err(too_large(limit));
        }
        share.take(length.saturating_sub(share.bytes()))?;
        bytes.extend_from_slice(data);
    }
    Ok(bytes)
}

/// A body of which the rest is read for a while and forgotten once nobody wants it: a client that is cut off while it
/// sends may not see its answer.
pub(super) struct Heard {
    body: Body,
    limit: usize,
    ended: bool,
}

impl Heard {
    /// The request with such a body.
    pub(super) fn request(request: Request<Body>, limit: usize) -> Request<Body> {
        // One that waits for a word before it sends is not to be asked for what nobody wants.
        if request.headers().contains_key(EXPECT) || request.body().is_end_stream() {
            return request;
        }
        let ended = false;
        request.map(|body| Body::new(Self { body, limit, ended }))
    }
}

impl HttpBody for Heard {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.ended |= matches!(frame, Poll::Ready(None | Some(Err(_))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        if self.ended || self.body.is_end_stream() {
            return;
        }
        // When the server ends there is nobody to read it.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(drain(mem::take(&mut self.body), self.limit));
        }
    }
}

async fn drain(mut body: Body, limit: usize) {
    let reading = async {
        let mut left = limit;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // Whether it came to its end does not matter.
    let _ = timeout(DRAIN, reading).await;
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(
        Code::BodyTooLarge,
        format!("the body has more than {limit} bytes"),
    )
}

/// The value, and the names of fields that are not known.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, BTreeSet<String>), ApiError> {
    // Lists of values would pass for an object whose fields have no names.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiError::new(
            Code::InvalidBody,
            "the body must be a JSON object",
        ));
    }
    let mut unknown = BTreeSet::new();
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let mut note = |path: serde_ignored::Path<'_>| {
        unknown.insert(field(&path.to_string()));
    };
    let value = T::deserialize(serde_ignored::Deserializer::new(tracked, &mut note));
    let value = value.map_err(|error| refusal(&error, &track.path().to_string()))?;
    json.end().map_err(|error| refusal(&error, "."))?;
    Ok((value, unknown))
}

/// The name of a field, wherever it stands in a list.
fn field(path: &str) -> String {
    let names = path.split('.').filter(|name| {
        name.bytes()
            .any(|byte| !byte.is_ascii_digit() && byte != b'?')
    });
    names.collect::<Vec<_>>().join(".")
}

fn refusal(error: &serde_json::Error, path: &str) -> ApiError {
    let text = error.to_string();
    match error.classify() {
        Category::Data => {
            // What a schema misses it names between backticks.
            let missing = text
                .strip_prefix("missing field `")
                .and_then(|rest| rest.split('`').next());
            let text = text.split(" at line ").next().unwrap_or_default();
            let error = ApiError::new(Code::InvalidValue, format!("{path}: {text}"));
            match (missing, path) {
                (Some(name), ".") => ApiError::value(name, text),
                (Some(name), path) => error.at(format!("{path}.{name}")),
                (None, "." | "?") => ApiError::new(Code::InvalidBody, format!("the body: {text}")),
                (None, path) => error.at(path),
            }
        }
        Category::Syntax | Category::Eof | Category::Io => {
            ApiError::new(Code::InvalidBody, format!("the body is not JSON: {text}"))
        }
    }
}

/// How long what is not wanted is read.
const DRAIN: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::super::wire::{ChatRequest, CompletionRequest};
    use super::*;

    fn refused(body: &str) -> (Code, Option<String>, String) {
        let error = parse::<ChatRequest>(body.as_bytes()).unwrap_err();
        let detail = error.body().error;
        (error.code(), detail.param, detail.message)
    }

    #[test]
    fn c050_what_is_no_json_is_said_to_be_none() {
        let deep = format!("{{\"messages\":{}", "[".repeat(100_000));
        let deep_value = format!("{{\"tools\":{}{}}}", "[".repeat(200), "]".repeat(200));
        for body in ["", "{", "hello", "{\"a\":1}x", "[1", &deep, &deep_value] {
            assert_eq!(refused(body).0, Code::InvalidBody, "{body:.40}");
        }
        assert_eq!(refused("[]").0, Code::InvalidBody);
    }

    #[test]
    fn c052_c053_wrong_types_name_their_field() {
        for (field, values) in [
            ("temperature", &["\"NaN\"", "[]", "true"][..]),
            ("top_k", &["1.5", "\"1\""]),
            ("max_tokens", &["-1", "1.5", "\"2\""]),
            ("seed", &["1.5", "9223372036854775808"]),
            ("logprobs", &["\"yes\"", "1"]),
            ("n", &["-1", "true", "1.5", "\"2\""]),
            ("messages", &["\"hi\"", "{}"]),
        ] {
            for value in values {
                let (code, param, message) = refused(&format!("{{\"{field}\": {value}}}"));
                assert_eq!(
                    (code, param.as_deref()),
                    (Code::InvalidValue, Some(field)),
                    "{value}: {message}"
                );
            }
        }
        let (_, param, _) = refused("{\"messages\": [{\"role\": \"user\"}, {\"role\": \"foo\"}]}");
        assert_eq!(param.as_deref(), Some("messages[1].role"));
        let (_, param, _) = refused("{\"messages\": [{\"content\": \"a\"}]}");
        assert_eq!(param.as_deref(), Some("messages[0].role"));
    }

    #[test]
    fn c054_fields_that_are_not_known_are_noted() {
        let body = "{\"max_tokns\": 1, \"user\": \"u\", \"messages\": [{\"role\": \"user\", \"x\": 1}], \"stream_options\": {\"y\": 1}}";
        let (_, unknown) = parse::<ChatRequest>(body.as_bytes()).unwrap();
        let expected = ["max_tokns", "messages.x", "stream_options.y", "user"];
        assert_eq!(unknown.iter().collect::<Vec<_>>(), expected);
        assert!(
            parse::<CompletionRequest>(b"{\"temperature\": null}")
                .unwrap()
                .0
                .temperature
                .is_none()
        );
    }
}
