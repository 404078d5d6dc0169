//! What the vision tower made of the last pictures.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::generate::ImageFeatures;

/// Encoded pictures, within a bound of bytes; the latest is kept in any case.
#[derive(Debug)]
pub(super) struct ImageCache {
    /// The latest last.
    pictures: VecDeque<Picture>,
    bytes: usize,
    limit: usize,
}

/// Whose picture it is, and what tells it from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImageKey {
    salt: [u8; 32],
    digest: [u8; 32],
}

impl ImageKey {
    pub(super) fn new(salt: &[u8; 32], digest: [u8; 32]) -> Self {
        Self {
            salt: *salt,
            digest,
        }
    }

    /// What tells the picture from all others.
    pub(super) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

#[derive(Debug)]
struct Picture {
    key: ImageKey,
    features: Arc<ImageFeatures>,
    used: Instant,
}

impl ImageCache {
    /// A cache of `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            pictures: VecDeque::new(),
            bytes: 0,
            limit,
        }
    }

    /// Bytes of all pictures.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A picture, which becomes the latest.
    pub(super) fn find(&mut self, key: &ImageKey, now: Instant) -> Option<Arc<ImageFeatures>> {
        let at = self.pictures.iter().position(|known| known.key == *key)?;
        let mut picture = self.pictures.remove(at)?;
        picture.used = now;
        let features = Arc::clone(&picture.features);
        self.pictures.push_back(picture);
        Some(features)
    }

    /// Takes a picture that is not there, and forgets the oldest where there is no room for it.
    pub(super) fn remember(&mut self, key: ImageKey, features: &Arc<ImageFeatures>, now: Instant) {
        self.bytes += features.bytes();
        self.pictures.push_back(Picture {
            key,
            features: Arc::clone(features),
            used: now,
        });
        while self.bytes > self.limit && self.pictures.len() > 1 {
            self.forget_oldest();
        }
    }

    /// Forgets pictures that were last used longer than `ttl` ago.
    pub(super) fn forget_idle(&mut self, now: Instant, ttl: Duration) {
        let idle = |picture: &Picture| now.saturating_duration_since(picture.used) > ttl;
        while self.pictures.front().is_some_and(idle) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.pictures.pop_front() {
            self.bytes -= oldest.features.bytes();
        }
    }
}
