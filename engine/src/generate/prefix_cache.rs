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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::prefix_digest::prefix_digests;
    use super::*;

    fn names(count: usize) -> Vec<PrefixDigest> {
        prefix_digests(&[0; 32], &vec![7; 64 * count], &[])
    }

    /// What somebody does with a pool.
    #[derive(Clone, Debug)]
    enum Act {
        Take,
        TakeNamed(usize),
        Name(usize, usize),
        GiveBack(usize),
        Wait(u64),
        Forget(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => Just(Act::Take),
            2 => (0..12_usize).prop_map(Act::TakeNamed),
            3 => (any::<usize>(), 0..12_usize).prop_map(|(held, name)| Act::Name(held, name)),
            4 => any::<usize>().prop_map(Act::GiveBack),
            1 => (0..5_u64).prop_map(Act::Wait),
            1 => (0..9_u64).prop_map(Act::Forget),
        ]
    }

    proptest! {
        /// Blocks are neither lost nor given twice, a name leads to what was named, and the one that was idle longest
        /// goes first.
        #[test]
        fn blocks_are_conserved(acts in prop::collection::vec(act(), 0..200), count in 1..10_u32) {
            let names = names(12);
            let mut pool = BlockPool::new(count);
            let mut now = pool.now;
            // Blocks by holder, names that are known, and idle ones by age.
            let mut held: Vec<u32> = Vec::new();
            let mut named: HashMap<usize, u32> = HashMap::new();
            let mut idle: Vec<(u32, Instant)> = Vec::new();
            for act in acts {
                let distinct: BTreeSet<u32> = held.iter().copied().collect();
                match act {
                    Act::Take => {
                        let free = count as usize - distinct.len() - idle.len();
                        let taken = pool.take();
                        prop_assert_eq!(taken.is_some(), free + idle.len() > 0);
                        if let Some(block) = taken {
                            prop_assert!(!distinct.contains(&block), "it is held");
                            if free == 0 {
                                prop_assert_eq!(block, idle.remove(0).0);
                                named.retain(|_, known| *known != block);
                            }
                            held.push(block);
                        }
                    }
                    Act::TakeNamed(name) => {
                        let taken = pool.take_named(&names[name]);
                        prop_assert_eq!(taken, named.get(&name).copied());
                        if let Some(block) = taken {
                            idle.retain(|(known, _)| *known != block);
                            held.push(block);
                        }
                    }
                    Act::Name(holder, name) if !held.is_empty() => {
                        let block = held[holder % held.len()];
                        pool.name(block, names[name]);
                        if !named.values().any(|known| *known == block) {
                            named.entry(name).or_insert(block);
                        }
                    }
                    Act::GiveBack(holder) if !held.is_empty() => {
                        let block = held.swap_remove(holder % held.len());
                        pool.give_back(block);
                        if !held.contains(&block) && named.values().any(|known| *known == block) {
                            idle.push((block, now));
                        }
                    }
                    Act::Wait(seconds) => {
                        now += Duration::from_secs(seconds);
                        pool.set_time(now);
                    }
                    Act::Forget(seconds) => {
                        let ttl = Duration::from_secs(seconds);
                        pool.forget_idle(ttl);
                        let (gone, kept) = idle.iter().partition(|(_, since)| now - *since > ttl);
                        idle = kept;
                        let gone: Vec<(u32, Instant)> = gone;
                        named.retain(|_, known| gone.iter().all(|(block, _)| known != block));
                    }
                    Act::Name(..) | Act::GiveBack(_) => {}
                }
                let distinct: BTreeSet<u32> = held.iter().copied().collect();
                prop_assert_eq!(pool.available(), count as usize - distinct.len());
                prop_assert_eq!(pool.idle(), idle.len());
                for (name, block) in &named {
                    prop_assert_eq!(pool.find(&names[*name]), Some(distinct.contains(block)));
                }
            }
        }
    }
}
