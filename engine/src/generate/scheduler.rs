//! Which tokens of whom are computed next: a pure function of numbers.
//!
//! Tokens that are generated come first, one of each request. What is left of the step goes to prompts: half to the
//! oldest, so that none waits for ever, the rest to those with the least left, so that a short prompt never waits
//! behind a long one for more than a step. Where blocks of the cache run out, the youngest request makes room for
//! older ones; the oldest never does.

use cider_kernels::KV_BLOCK;

/// A request that runs, as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Runnable {
    /// Tokens whose keys and values are there.
    pub(crate) computed: usize,
    /// Tokens that are known: `computed..known` can be computed.
    pub(crate) known: usize,
    /// Blocks of the cache that it holds.
    pub(crate) blocks: usize,
    /// Whether it can go on: not while its pictures are encoded, nor while an older request computes what both
    /// begin with.
    pub(crate) ready: bool,
}

impl Runnable {
    /// Tokens to compute.
    fn left(&self) -> usize {
        self.known - self.computed
    }

    /// Blocks it lacks for its next `tokens` tokens.
    fn lacks(&self, tokens: usize) -> usize {
        blocks(self.computed + tokens).saturating_sub(self.blocks)
    }

    /// Blocks it lacks for all tokens that are known and for one more.
    fn will_need(&self) -> usize {
        self.lacks(self.left() + 1)
    }

    /// Of `tokens`, how many there is room for with `free` more blocks.
    fn fitting(&self, tokens: usize, free: usize) -> usize {
        tokens.min(((self.blocks + free) * KV_BLOCK).saturating_sub(self.computed))
    }
}

/// Tokens of a request to compute in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// The place of the request among those that run.
    pub(crate) index: usize,
    /// How many tokens.
    pub(crate) tokens: usize,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan<'a> {
    /// A step; without shares there is nothing to compute.
    Run(&'a [Share]),
    /// The request at this place must give its blocks back first.
    Preempt(usize),
}

/// Makes the plans of steps.
#[derive(Debug)]
pub(crate) struct Scheduler {
    rows: usize,
    max_running: usize,
    shares: Vec<Share>,
    /// Prompts, the least left first.
    order: Vec<usize>,
}

impl Scheduler {
    /// A scheduler of steps of `rows` rows of at most `max_running` requests, which is cut so that a step always has
    /// rows for prompts.
    pub(crate) fn new(rows: usize, max_running: usize) -> Self {
        let max_running = max_running.clamp(1, (rows / 2).max(1));
        Self {
            rows,
            max_running,
            shares: Vec::with_capacity(max_running),
            order: Vec::with_capacity(max_running),
        }
    }

    /// Requests that run at once.
    pub(crate) fn max_running(&self) -> usize {
        self.max_running
    }

    /// Whether one more request that will take `needed` of the `free` blocks may join those that run: only if all
    /// have room for their prompts and a token more. One that is alone always may.
    pub(crate) fn admits(&self, running: &[Runnable], free: usize, needed: usize) -> bool {
        let promised: usize = running.iter().map(Runnable::will_need).sum();
        running.is_empty() || (running.len() < self.max_running && promised + needed <= free)
    }

    /// The next step of requests in the order of their arrival, with `free` blocks that nobody holds.
    pub(crate) fn plan(&mut self, running: &[Runnable], free: usize) -> Plan<'_> {
        self.shares.clear();
        let mut room = Room {
            rows: self.rows,
            free,
        };
        let planned = self
            .plan_generated(running, &mut room)
            .and_then(|()| self.plan_prompts(running, &mut room));
        match planned {
            Ok(()) => Plan::Run(&self.shares),
            Err(Victim(index)) => Plan::Preempt(index),
        }
    }

    /// One token of each request that has one left.
    fn plan_generated(&mut self, running: &[Runnable], room: &mut Room) -> Result<(), Victim> {
        for (index, request) in running.iter().enumerate() {
            if request.ready && request.left() == 1 {
                self.give(running, index, 1, room)?;
            }
        }
        Ok(())
    }

    /// Half of the rows to the oldest, then all to those with the least left, and to the oldest what is over.
    fn plan_prompts(&mut self, running: &[Runnable], room: &mut Room) -> Result<(), Victim> {
        let waits = |request: &Runnable| request.ready && request.left() > 1;
        let Some(oldest) = running.iter().position(waits) else {
            return Ok(());
        };
        let half = room.rows - room.rows / 2;
        let first = self.shares.len();
        self.give(running, oldest, half, room)?;
        self.order.clear();
        let others = (oldest + 1..running.len()).filter(|&index| waits(&running[index]));
        self.order.extend(others);
        self.order
            .sort_unstable_by_key(|&index| (running[index].left(), index));
        for place in 0..self.order.len() {
            self.give(running, self.order[place], room.rows, room)?;
        }
        let Some(share) = self
            .shares
            .get_mut(first)
            .filter(|share| share.index == oldest)
        else {
            return Ok(());
        };
        let request = Runnable {
            computed: running[oldest].computed + share.tokens,
            blocks: running[oldest].blocks + running[oldest].lacks(share.tokens),
            ..running[oldest]
        };
        share.tokens += request.fitting(request.left().min(room.rows), room.free);
        Ok(())
    }

    /// Gives a request rows, as many as it wants and there is room for. Where there is no block for even one, the
    /// youngest behind it that holds some must go; without one it waits.
    fn give(
        &mut self,
        running: &[Runnable],
        index: usize,
        rows: usize,
        room: &mut Room,
    ) -> Result<(), Victim> {
        let request = &running[index];
        let wanted = request.left().min(rows).min(room.rows);
        let tokens = request.fitting(wanted, room.free);
        if tokens > 0 {
            room.rows -= tokens;
            room.free -= request.lacks(tokens);
            self.shares.push(Share { index, tokens });
            return Ok(());
        }
        let younger = running[index + 1..].iter();
        match younger.rev().position(|request| request.blocks > 0) {
            Some(from_behind) if wanted > 0 => Err(Victim(running.len() - 1 - from_behind)),
            _ => Ok(()),
        }
    }
}

/// Blocks that hold `tokens` tokens.
pub(crate) fn blocks(tokens: usize) -> usize {
    tokens.div_ceil(KV_BLOCK)
}

/// What is left of a step.
struct Room {
    rows: usize,
    free: usize,
}

/// The request that must make room.
struct Victim(usize);
