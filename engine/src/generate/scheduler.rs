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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Requests as a cache with blocks would have them, without the cache: each comes at a time, has a prompt, and is
    /// to be answered with some tokens.
    #[derive(Clone, Debug)]
    struct Request {
        comes: usize,
        prompt: usize,
        answer: usize,
        /// Steps that its pictures take.
        pictures: usize,
    }

    #[derive(Clone, Debug)]
    struct Life {
        id: usize,
        state: Runnable,
        /// Tokens, generated ones included, when it is done.
        end: usize,
        pictures: usize,
        stepped: usize,
    }

    /// A machine that runs a scheduler.
    struct World {
        scheduler: Scheduler,
        rows: usize,
        blocks: usize,
        waiting: Vec<Life>,
        running: Vec<Life>,
        done: Vec<usize>,
        preempted: usize,
    }

    impl World {
        fn free(&self) -> usize {
            self.blocks
                - self
                    .running
                    .iter()
                    .map(|life| life.state.blocks)
                    .sum::<usize>()
        }

        fn states(&self) -> Vec<Runnable> {
            self.running.iter().map(|life| life.state).collect()
        }

        fn step(&mut self) {
            while let Some(next) = self.waiting.first() {
                let needed = blocks(next.state.known + 1);
                if !self.scheduler.admits(&self.states(), self.free(), needed) {
                    break;
                }
                self.running.push(self.waiting.remove(0));
            }
            assert!(
                self.running.is_sorted_by(|a, b| a.id < b.id),
                "in order of arrival"
            );
            let oldest = self.running.first().map(|life| life.id);
            let shares = loop {
                let (states, free) = (self.states(), self.free());
                match self.scheduler.plan(&states, free) {
                    Plan::Run(shares) => break shares.to_vec(),
                    Plan::Preempt(index) => {
                        let mut life = self.running.remove(index);
                        assert_ne!(Some(life.id), oldest, "the oldest stays");
                        assert!(life.state.blocks > 0, "it gives something back");
                        (life.state.computed, life.state.blocks) = (0, 0);
                        self.preempted += 1;
                        self.waiting.insert(0, life);
                    }
                }
            };
            self.check(&shares);
            self.run(&shares);
        }

        fn check(&self, shares: &[Share]) {
            let rows: usize = shares.iter().map(|share| share.tokens).sum();
            assert!(rows <= self.rows, "{rows} of {} rows", self.rows);
            let mut seen = vec![false; self.running.len()];
            for share in shares {
                let state = self.running[share.index].state;
                assert!(!std::mem::replace(&mut seen[share.index], true), "once");
                assert!(state.ready && share.tokens > 0 && share.tokens <= state.left());
            }
            let needed = |share: &Share| self.running[share.index].state.lacks(share.tokens);
            let needed: usize = shares.iter().map(needed).sum();
            assert!(needed <= self.free());
            // The oldest that can goes on, and so does everybody who is answered, unless every block is taken.
            if let Some(first) = self.running.iter().position(|life| life.state.ready) {
                assert!(seen[first], "the oldest goes on");
            }
            let mut all = self.running.iter().zip(&seen);
            let waits = |life: &Life| life.state.ready && life.state.left() == 1;
            if all.any(|(life, seen)| waits(life) && !seen) {
                assert_eq!(needed, self.free(), "a token waits beside free blocks");
            }
        }

        fn run(&mut self, shares: &[Share]) {
            for share in shares {
                let life = &mut self.running[share.index];
                life.state.blocks += life.state.lacks(share.tokens);
                life.state.computed += share.tokens;
                life.stepped += 1;
                if life.state.left() == 0 {
                    life.state.known += 1;
                }
            }
            let first_blind = self.running.iter_mut().find(|life| !life.state.ready);
            if let Some(life) = first_blind {
                life.pictures -= 1;
                life.state.ready = life.pictures == 0;
            }
            let done = self
                .running
                .iter()
                .filter(|life| life.state.known > life.end);
            self.done.extend(done.map(|life| life.id));
            self.running.retain(|life| life.state.known <= life.end);
        }
    }

    fn request(capacity: usize) -> impl Strategy<Value = Request> {
        let prompt = prop_oneof![1..capacity, 1..capacity.min(80)];
        (
            0..60_usize,
            prompt,
            1..100_usize,
            prop_oneof![4 => Just(0_usize), 1 => 1..5_usize],
        )
            .prop_map(|(comes, prompt, answer, pictures)| Request {
                comes,
                prompt,
                answer,
                pictures,
            })
    }

    fn worlds() -> impl Strategy<Value = (usize, usize, usize, Vec<Request>)> {
        (2..100_usize, 1..12_usize, 2..20_usize).prop_flat_map(|(rows, running, blocks)| {
            let requests = prop::collection::vec(request(blocks * KV_BLOCK), 1..20);
            (Just(rows), Just(running), Just(blocks), requests)
        })
    }

    proptest! {
        /// Whatever comes: every request ends, in a bounded number of steps, no step is too large, no block is given
        /// twice, and the oldest never loses its blocks.
        #[test]
        fn every_request_ends((rows, running, blocks, mut requests) in worlds()) {
            requests.sort_by_key(|request| request.comes);
            let mut world = World {
                scheduler: Scheduler::new(rows, running),
                rows,
                blocks,
                waiting: Vec::new(),
                running: Vec::new(),
                done: Vec::new(),
                preempted: 0,
            };
            let total: usize = requests.iter().map(|request| request.prompt + request.answer).sum();
            let mut next = 0;
            let mut steps = 0;
            while world.done.len() < requests.len() {
                while let Some(request) = requests.get(next).filter(|r| r.comes <= steps) {
                    let end = (request.prompt + request.answer).min(blocks * KV_BLOCK);
                    let state = Runnable {
                        computed: 0,
                        known: request.prompt.min(end),
                        blocks: 0,
                        ready: request.pictures == 0,
                    };
                    let pictures = request.pictures;
                    world.waiting.push(Life { id: next, state, end, pictures, stepped: 0 });
                    next += 1;
                }
                world.step();
                steps += 1;
                // Each step of the oldest computes a token at least.
                prop_assert!(steps <= 60 + 5 * requests.len() + total, "{steps} steps");
            }
            prop_assert!(world.free() == blocks);
        }

        /// A prompt with less left than all others has half of the rows that answers leave, from its first step on.
        #[test]
        fn the_shortest_prompt_is_next(
            rows in 8..600_usize,
            lengths in prop::collection::vec(100..4000_usize, 1..8),
            short in 2..100_usize,
        ) {
            let mut running: Vec<_> = lengths.iter().map(|&known| prompt(known)).collect();
            running.push(prompt(short));
            let mut scheduler = Scheduler::new(rows, 16);
            let Plan::Run(shares) = scheduler.plan(&running, 10_000) else {
                return Err(TestCaseError::fail("there is room"));
            };
            let last = running.len() - 1;
            let share = shares.iter().find(|share| share.index == last).map(|share| share.tokens);
            prop_assert_eq!(share, Some(short.min(rows / 2)));
            let first = shares.iter().find(|share| share.index == 0).unwrap();
            prop_assert!(first.tokens >= lengths[0].min(rows / 2));
            let all: usize = shares.iter().map(|share| share.tokens).sum();
            let left: usize = running.iter().map(Runnable::left).sum();
            prop_assert_eq!(all, rows.min(left), "no row is left over");
        }
    }

    fn prompt(known: usize) -> Runnable {
        Runnable {
            computed: 0,
            known,
            blocks: 0,
            ready: true,
        }
    }

    #[test]
    fn only_the_younger_make_room() {
        let full = |blocks: usize, ready: bool| Runnable {
            computed: blocks * KV_BLOCK,
            known: blocks * KV_BLOCK + 1,
            blocks,
            ready,
        };
        let mut scheduler = Scheduler::new(64, 8);
        // The second needs a block: the youngest that holds any gives its own.
        let running = [full(2, false), full(1, true), full(3, true), prompt(9)];
        assert_eq!(scheduler.plan(&running, 0), Plan::Preempt(2));
        // The youngest waits.
        let running = [full(2, false), full(1, true)];
        assert_eq!(scheduler.plan(&running, 0), Plan::Run(&[]));
        let running = [full(2, true), full(1, true)];
        let share = |index| Share { index, tokens: 1 };
        assert_eq!(
            scheduler.plan(&running, 2),
            Plan::Run(&[share(0), share(1)])
        );
        assert_eq!(scheduler.plan(&running, 1), Plan::Run(&[share(0)]));
    }
}
