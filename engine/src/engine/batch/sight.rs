//! Pictures on their way through the vision tower, some blocks a step.

use std::sync::Arc;
use std::time::Instant;

use super::entry::{Entry, Pixels};
use super::events::{BatchStats, RequestId};
use super::guarded;
use crate::engine::image_cache::ImageCache;
use crate::error::Result;
use crate::generate::Runner;
use crate::models::ImageEncoding;

/// The pictures that are encoded and the one on its way.
#[derive(Debug)]
pub(super) struct Sight {
    pub(super) images: ImageCache,
    current: Option<Current>,
}

/// A picture on its way, and whose it is.
#[derive(Debug)]
struct Current {
    owner: RequestId,
    start: usize,
    encoding: ImageEncoding,
}

impl Sight {
    /// Remembers `bytes` bytes of pictures.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            images: ImageCache::new(bytes),
            current: None,
        }
    }

    /// Takes the pictures of the requests that run so far that a step is not much longer for it: the picture that was
    /// begun, then those of the oldest.
    pub(super) fn step(
        &mut self,
        runner: &Runner,
        running: &mut [Entry],
        counts: &mut BatchStats,
        now: Instant,
    ) {
        let begun = self.current.as_ref().map(|current| current.owner);
        let owner = running.iter().position(|entry| Some(entry.id) == begun);
        if owner.is_none() {
            self.current = None;
        }
        let mut patches = PATCHES;
        for at in owner.into_iter().chain(0..running.len()) {
            let entry = &mut running[at];
            if entry.sees || entry.has_ended() {
                continue;
            }
            if let Err(error) = guarded(|| self.encode(runner, entry, counts, &mut patches, now)) {
                self.current = None;
                entry.fail(error);
            }
            entry.see_if_ready();
        }
    }

    /// Takes the pictures of a request through blocks of the tower while there are patches left.
    fn encode(
        &mut self,
        runner: &Runner,
        entry: &mut Entry,
        counts: &mut BatchStats,
        patches: &mut usize,
        now: Instant,
    ) -> Result<()> {
        let owner = entry.id;
        while *patches > 0
            && let Some(picture) = entry.unseen()
            && let Pixels::Prepared(prepared) = &picture.pixels
        {
            let start = picture.start;
            // What comes before another picture may have been remembered since.
            self.current.take_if(|current| current.start != start);
            if self.current.is_none() {
                counts.image_queries += 1;
                if let Some(features) = self.images.find(&picture.key, now) {
                    counts.image_hits += 1;
                    picture.pixels = Pixels::Encoded(features);
                    continue;
                }
            }
            let current = match self.current.take() {
                Some(current) => current,
                None => Current {
                    owner,
                    start,
                    encoding: runner.begin_image(prepared.patches())?,
                },
            };
            let encoding = &mut self.current.insert(current).encoding;
            *patches = patches.saturating_sub(encoding.patches());
            if let Some(features) = runner.advance_image(encoding)? {
                let features = Arc::new(features);
                self.current = None;
                self.images.remember(picture.key, &features, now);
                picture.pixels = Pixels::Encoded(features);
            }
        }
        Ok(())
    }
}

/// Patches that are taken through a block in a step, and one block in any case: about what a step of 512 tokens of
/// the decoder behind a tower costs.
const PATCHES: usize = 4096;
