//! One measurement: our variants and other programs' at the same work, in the same rounds.

use anyhow::Result;
use cider_kernels::PlainRead;

use super::Bench;
use super::peer::{Ask, Peers};
use super::record::{CIDER, MACHINE, Place, Row};
use super::roofline::Cost;
use super::timing::{self, Spread};

/// Somebody who takes part: of ours all that there are come first, in the order of their numbers.
pub(super) struct Contender {
    /// The number of the peer; none for one of ours.
    pub(super) peer: Option<usize>,
    pub(super) who: &'static str,
    pub(super) variant: String,
    pub(super) ask: Ask,
    pub(super) cost: Cost,
    pub(super) error: Option<f64>,
}

impl Contender {
    /// A variant of ours at a piece of work.
    pub(super) fn ours(variant: &str, cost: Cost, error: Option<f64>) -> Self {
        Self {
            peer: None,
            who: CIDER,
            variant: variant.to_owned(),
            ask: Ask::Work,
            cost,
            error,
        }
    }

    /// A peer at the same, given what our counterpart costs.
    pub(super) fn theirs(peers: &Peers, number: usize, cost: Cost, error: Option<f64>) -> Self {
        Self {
            peer: Some(number),
            ..Self::ours(&peers.get(number).variant, cost, error)
        }
    }

    /// The machine itself, which reads as many bytes: after all of ours.
    pub(super) fn plain_read(bytes: f64, ask: Ask) -> Self {
        let cost = Cost {
            bytes,
            ..Cost::NOTHING
        };
        Self {
            who: MACHINE,
            ask,
            ..Self::ours(PLAIN_READ, cost, None)
        }
    }

    /// The row of what was measured.
    pub(super) fn row<const N: usize>(
        &self,
        peers: &Peers,
        work: &'static str,
        (shape, place): ([(&str, usize); N], Place),
        spread: Spread,
    ) -> Row {
        let who = self.peer.map_or(self.who, |number| &peers.get(number).name);
        Row {
            who: who.to_owned(),
            variant: self.variant.clone(),
            relative_error: self.error,
            ..Row::new(work, shape, place, (self.cost, spread))
        }
    }
}

/// The seconds of each of some plain reads of `bytes` bytes.
pub(super) fn plain_reads(
    bench: &Bench<'_>,
    plain: &mut PlainRead,
    (bytes, repetitions): (f64, usize),
) -> Vec<f64> {
    let read = |_| plain.read(&bench.backend, bytes as usize).as_secs_f64();
    (0..repetitions).map(read).collect()
}

/// Times everybody in turn: `ours(number, repetitions)` gives the seconds of each run of one of ours. A peer that was
/// given up on the way has no place in what comes back.
pub(super) fn measure(
    bench: &Bench<'_>,
    peers: &mut Peers,
    contenders: Vec<Contender>,
    mut ours: impl FnMut(usize, usize) -> Result<Vec<f64>>,
) -> Result<Vec<(Contender, Spread)>> {
    let utmost = if peers.is_empty() {
        bench.best()
    } else {
        bench.utmost()?
    };
    let figures = timing::interleave(contenders.len(), bench.rounds(), |number, repetitions| {
        let Contender {
            peer, ask, cost, ..
        } = &contenders[number];
        match peer {
            Some(peer) => peers.run(*peer, *ask, repetitions, (cost, &utmost)),
            None => ours(number, repetitions).map(Some),
        }
    })?;
    let found = contenders.into_iter().zip(figures);
    Ok(found
        .filter_map(|(contender, figures)| Some((contender, Spread::new(figures?))))
        .collect())
}

/// What the machine does where work waits for memory.
const PLAIN_READ: &str = "plain read";
