//! The blocks of the cache: who holds them, and which of those that nobody holds may be used again.
//!
//! A full block of prompt tokens has a name, the digest of all that its keys and values depend on. Requests with the
//! same beginning hold the same blocks. A named block that nobody holds stays until its room is needed, the one that
//! was idle longest first.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::prefix_digest::PrefixDigest;

/// The blocks of a cache.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    /// Blocks without a name that nobody holds, the next one last.
    free: Vec<u32>,
    named: HashMap<PrefixDigest, u32>,
    /// Named blocks that nobody holds: the one that was idle longest, and the latest.
    idle: (u32, u32),
    idle_count: usize,
    now: Instant,
}

#[derive(Clone, Debug)]
struct Block {
    /// Requests that hold it.
    holders: u32,
    name: Option<PrefixDigest>,
    idle_since: Instant,
    /// Neighbours among the idle ones.
    older: u32,
    newer: u32,
}

impl BlockPool {
    /// `count` blocks that nobody holds.
    pub(crate) fn new(count: u32) -> Self {
        let now = Instant::now();
        let block = Block {
            holders: 0,
            name: None,
            idle_since: now,
            older: NONE,
            newer: NONE,
        };
        Self {
            blocks: vec![block; count as usize],
            free: (0..count).rev().collect(),
            named: HashMap::with_capacity(count as usize),
            idle: (NONE, NONE),
            idle_count: 0,
            now,
        }
    }

    /// All blocks.
    pub(crate) fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that nobody holds.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.idle_count
    }

    /// Blocks that nobody holds and that have a name.
    pub(crate) fn idle(&self) -> usize {
        self.idle_count
    }

    /// Tells the time, from which idleness is counted.
    pub(crate) fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// A block to write to; a name that it had is gone.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => self.forget_oldest()?,
        };
        self.block(block).holders = 1;
        Some(block)
    }

    /// One more holds the block of this name, if there is one.
    pub(crate) fn take_named(&mut self, name: &PrefixDigest) -> Option<u32> {
        let block = *self.named.get(name)?;
        if self.block(block).holders == 0 {
            self.unlink(block);
        }
        self.block(block).holders += 1;
        Some(block)
    }

    /// Whether there is a block of this name, and whether somebody holds it.
    pub(crate) fn find(&self, name: &PrefixDigest) -> Option<bool> {
        let block = *self.named.get(name)?;
        Some(self.blocks[block as usize].holders > 0)
    }

    /// Names a block that is held, unless another has the name already.
    pub(crate) fn name(&mut self, block: u32, name: PrefixDigest) {
        if self.block(block).name.is_none() && !self.named.contains_key(&name) {
            self.named.insert(name, block);
            self.block(block).name = Some(name);
        }
    }

    /// One less holds a block.
    pub(crate) fn give_back(&mut self, block: u32) {
        let held = self.block(block);
        held.holders -= 1;
        if held.holders > 0 {
            return;
        }
        if held.name.is_some() {
            self.link(block);
        } else {
            self.free.push(block);
        }
    }

    /// Forgets the names of blocks that were idle for longer than `ttl`.
    pub(crate) fn forget_idle(&mut self, ttl: Duration) {
        while let Some(oldest) = self.blocks.get(self.idle.0 as usize) {
            if self.now.saturating_duration_since(oldest.idle_since) <= ttl {
                return;
            }
            if let Some(block) = self.forget_oldest() {
                self.free.push(block);
            }
        }
    }

    /// Takes the name from the block that was idle longest.
    fn forget_oldest(&mut self) -> Option<u32> {
        let block = self.idle.0;
        if block == NONE {
            return None;
        }
        self.unlink(block);
        if let Some(name) = self.block(block).name.take() {
            self.named.remove(&name);
        }
        Some(block)
    }

    /// Becomes the latest of the idle ones.
    fn link(&mut self, block: u32) {
        let (_, latest) = self.idle;
        let now = self.now;
        let entry = self.block(block);
        (entry.older, entry.newer, entry.idle_since) = (latest, NONE, now);
        match latest {
            NONE => self.idle.0 = block,
            latest => self.block(latest).newer = block,
        }
        self.idle.1 = block;
        self.idle_count += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Block { older, newer, .. } = *self.block(block);
        match older {
            NONE => self.idle.0 = newer,
            older => self.block(older).newer = newer,
        }
        match newer {
            NONE => self.idle.1 = older,
            newer => self.block(newer).older = older,
        }
        self.idle_count -= 1;
    }

    fn block(&mut self, block: u32) -> &mut Block {
        &mut self.blocks[block as usize]
    }
}

/// No block.
const NONE: u32 = u32::MAX;
