//! Answers as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Response};
use hyper::body::Frame;
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};

use super::answers::{Answers, Happened};
use super::app::App;
use super::error::ApiError;

/// How the pieces of a kind of answer are written.
pub(super) trait Form: Send + Sync + 'static {
    /// What comes before all.
    fn begin(&mut self, answers: &Answers) -> Vec<Bytes>;
    /// What happened to an answer.
    fn write(&mut self, happened: Happened, answers: &Answers) -> Vec<Bytes>;
    /// What comes after all answers.
    fn end(&mut self, answers: &Answers) -> Vec<Bytes>;
}

/// A piece of a stream.
pub(super) fn event(value: &impl Serialize) -> Bytes {
    let mut line = b"data: ".to_vec();
    // Wire types serialise always: their keys are strings.
    if serde_json::to_writer(&mut line, value).is_err() {
        return Bytes::new();
    }
    line.extend_from_slice(b"\n\n");
    line.into()
}

/// The answer whose body is written while the engine works.
pub(super) fn respond(app: Arc<App>, answers: Answers, form: impl Form) -> Response<Body> {
    // What is written waits here for the connection; what the engine says waits in its mailbox.
    let (sender, receiver) = channel(4);
    let pump = Pump {
        app,
        answers,
        form,
        sender,
    };
    tokio::spawn(pump.run());
    let mut response = Response::new(Body::new(Stream(receiver)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that collect answers would defeat the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Carries what happens to the connection. It ends, and with it the answers, when the connection does.
struct Pump<F> {
    app: Arc<App>,
    answers: Answers,
    form: F,
    sender: Sender<Bytes>,
}

/// The client is gone.
struct Gone;

impl<F: Form> Pump<F> {
    async fn run(mut self) {
        match self.carry().await {
            Ok(()) | Err(None) => {}
            Err(Some(error)) => {
                self.app.metrics.failed(error.code());
                // Nothing follows an error: no end mark, so that nobody takes a part for the whole.
                let _ = self.sender.send(event(&error.body())).await;
            }
        }
    }

    /// Until the end, a failure, or nobody reads.
    async fn carry(&mut self) -> Result<(), Option<ApiError>> {
        let begin = self.form.begin(&self.answers);
        self.send(begin).await?;
        let pause = self.app.limits.keep_alive;
        let mut quiet = Instant::now() + pause;
        let mut comment = Bytes::from_static(b": waiting\n\n");
        loop {
            tokio::select! {
                happened = self.answers.next() => match happened? {
                    Some(Happened::Progress { done, total }) => {
                        comment = format!(": prompt {done}/{total}\n\n").into();
                        continue;
                    }
                    Some(happened) => {
                        let pieces = self.form.write(happened, &self.answers);
                        if pieces.is_empty() {
                            continue;
                        }
                        self.send(pieces).await?;
                    }
                    None => break,
                },
                () = sleep_until(quiet) => self.send(vec![comment.clone()]).await?,
                () = self.sender.closed() => return Err(None),
            }
            quiet = Instant::now() + pause;
        }
        let end = self.form.end(&self.answers);
        self.send(end).await?;
        self.send(vec![Bytes::from_static(b"data: [DONE]\n\n")])
            .await?;
        Ok(())
    }

    async fn send(&self, pieces: Vec<Bytes>) -> Result<(), Gone> {
        for piece in pieces {
            self.sender.send(piece).await.map_err(|_| Gone)?;
        }
        Ok(())
    }
}

impl From<Gone> for Option<ApiError> {
    fn from(_: Gone) -> Self {
        None
    }
}

/// A body whose pieces come through a channel.
struct Stream(Receiver<Bytes>);

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(context)
            .map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
