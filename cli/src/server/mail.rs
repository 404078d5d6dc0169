//! What the engine's thread sends to a request: it never waits for the one who reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cider::{Outcome, TokenInfo};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::error::ApiError;

/// News of one of a request's answers.
#[derive(Debug)]
pub(super) enum News {
    /// So many tokens of the prompt are computed.
    Progress {
        done: usize,
        total: usize,
    },
    /// More text, and the tokens since the last text.
    Text {
        text: String,
        tokens: Vec<TokenInfo>,
    },
    Finished(Box<Outcome>),
    Failed(Box<ApiError>),
}

impl News {
    /// Bytes of memory, about.
    fn bytes(&self) -> usize {
        let Self::Text { text, tokens } = self else {
            return size_of::<Self>();
        };
        let top = |token: &TokenInfo| {
            token
                .top
                .iter()
                .map(|top| top.1.len() + size_of_val(top))
                .sum::<usize>()
        };
        let tokens = tokens
            .iter()
            .map(|token| size_of_val(token) + token.bytes.len() + top(token));
        size_of::<Self>() + text.len() + tokens.sum::<usize>()
    }
}

/// The way to the reader of a request, for one of its answers.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    sender: UnboundedSender<(usize, News)>,
    waiting: Arc<AtomicUsize>,
    /// Bytes that may wait.
    limit: usize,
    pub(super) choice: usize,
}

/// Why nothing more is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsent {
    /// Nobody reads any more.
    Gone,
    /// The reader is too slow: more waits than may.
    Full,
}

/// Where a request reads.
#[derive(Debug)]
pub(super) struct Inbox {
    receiver: UnboundedReceiver<(usize, News)>,
    waiting: Arc<AtomicUsize>,
}

/// Ways for `choices` answers to one reader, for whom `limit` bytes may wait.
pub(super) fn mailbox(choices: usize, limit: usize) -> (Vec<Outbox>, Inbox) {
    let (sender, receiver) = unbounded_channel();
    let waiting: Arc<AtomicUsize> = Arc::default();
    let outbox = |choice| Outbox {
        sender: sender.clone(),
        waiting: Arc::clone(&waiting),
        limit,
        choice,
    };
    let outboxes = (0..choices).map(outbox).collect();
    (outboxes, Inbox { receiver, waiting })
}

impl Outbox {
    /// Sends news.
    pub(super) fn send(&self, news: News) -> Result<(), Unsent> {
        let bytes = news.bytes();
        if self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes > self.limit {
            return Err(Unsent::Full);
        }
        let sent = self.sender.send((self.choice, news));
        sent.map_err(|_| Unsent::Gone)
    }

    /// Sends the last news, whatever waits.
    pub(super) fn fail(&self, error: ApiError) {
        // With nobody to read it, it is of no use.
        let _ = self
            .sender
            .send((self.choice, News::Failed(Box::new(error))));
    }

    /// Whether nobody reads any more.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Inbox {
    /// The next news and whose they are; nothing once the engine is gone.
    pub(super) async fn next(&mut self) -> Option<(usize, News)> {
        let (choice, news) = self.receiver.recv().await?;
        self.waiting.fetch_sub(news.bytes(), Ordering::Relaxed);
        Some((choice, news))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(length: usize) -> News {
        News::Text {
            text: "x".repeat(length),
            tokens: Vec::new(),
        }
    }

    #[tokio::test]
    async fn no_more_waits_than_may_and_what_is_read_makes_room() {
        let (outboxes, mut inbox) = mailbox(2, 2000);
        outboxes[1].send(text(1000)).unwrap();
        assert_eq!(outboxes[0].send(text(1000)), Err(Unsent::Full));
        drop(outboxes);
        let (outboxes, mut other) = mailbox(1, 2000);
        for _ in 0..10 {
            outboxes[0].send(text(1000)).unwrap();
            assert!(matches!(other.next().await, Some((0, News::Text { .. }))));
        }
        assert!(matches!(inbox.next().await, Some((1, News::Text { .. }))));
        assert!(inbox.next().await.is_none(), "its outboxes are gone");
        drop(other);
        assert!(outboxes[0].is_closed());
        assert_eq!(outboxes[0].send(text(1)), Err(Unsent::Gone));
    }
}
